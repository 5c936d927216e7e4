#include "layerwise/layer_trainer.h"

#include <cmath>
#include <utility>

#include "mpi/sparse_filter.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

std::vector<double> saved(const LayerTrainer& trainer, const std::string& name) {
  TensorFile file;
  trainer.save(file);
  const auto values = file.get("layer.train." + name).as<double>();
  return {values.begin(), values.end()};
}

// Runs the layer over one map, as a stage does, adding to the statistics.
void run_layer(const LayerTrainer& trainer, const Buffer<std::uint64_t>& input, LayerSums& sums) {
  const BinaryLayer& layer = trainer.layer();
  const MapShape& map = layer.geometry().output;
  const MapShape& in = layer.geometry().input;
  Buffer<std::uint64_t> bits(map.size()), window(map.size());
  simd::ConvOutput out;
  out.bits = bits.data();
  out.bits_pitch = map.pitch();
  out.window = window.data();
  out.sum = sums.count().data();
  out.sum_of_squares = sums.count_squared().data();
  simd::kernels().conv(layer.conv_shape(), input.data(), layer.conv_weights(), trainer.thresholds(), out);
  for (std::size_t p = 0; p < map.height * map.width; ++p) {
    for (std::size_t o = 0; o < layer.channels(); ++o) sums.active()[o] += get_bit(window.data() + p * map.words(), o) ? 1 : 0;
  }
  for (std::size_t y = 0; y < in.height; ++y) {
    for (std::size_t x = 0; x < in.width; ++x) {
      const std::uint64_t* pixel = input.data() + in.interior() + y * in.pitch() + x * in.words();
      for (std::size_t c = 0; c < sums.in_channels; ++c) sums.input()[c] += get_bit(pixel, c) ? 1 : 0;
    }
  }
}

Buffer<std::uint64_t> random_input(const BinaryLayer& layer, std::size_t channels, Random& random) {
  MapShape shape = layer.geometry().input;
  shape.channels = channels;
  Buffer<std::uint64_t> input(shape.size());
  draw_map(input.data(), shape, 2, random);
  return input;
}

// The same at every pixel: then shares per channel and tap give the mean exactly.
Buffer<std::uint64_t> even_input(const BinaryLayer& layer, std::size_t channels, Random& random) {
  const MapShape& in = layer.geometry().input;
  Buffer<std::uint64_t> input(in.size());
  for (std::size_t c = 0; c < channels; ++c) {
    const bool bit = random.below(3) == 0;
    for (std::size_t p = 0; p < in.height * in.width; ++p) {
      set_bit(input.data() + in.interior() + p / in.width * in.pitch() + p % in.width * in.words(), c, bit);
    }
  }
  return input;
}

void draw_gradient(LayerSums& sums, std::size_t channels, Random& random) {
  for (std::int32_t& sum : sums.weight) sum = static_cast<std::int32_t>(random.below(201)) - 100;
  for (std::size_t o = 0; o < channels; ++o) sums.value()[o] = static_cast<std::int64_t>(random.below(101)) - 50;
  sums.magnitude()[0] = 1000;
}

LayerOptions with_rule(const std::string& name) {
  LayerOptions options;
  options.rule.name = name;
  return options;
}

}  // namespace

TEST_CASE("statistics are the mean and variance of the counts, and place the threshold", "[layer_trainer]") {
  Random random(1, Stream::test);
  BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 6, 6, 70);
  LayerTrainer trainer(layer, {}, 1, 2);
  const Buffer<std::uint64_t> input = random_input(layer, 70, random);
  LayerSums sums = trainer.make_sums();
  run_layer(trainer, input, sums);
  std::vector<std::int32_t> counts(36 * 32);
  simd::kernels().conv_counts(layer.conv_shape(), input.data(), layer.conv_weights(), counts.data());
  trainer.set_statistics(sums, 1);
  const auto mean = saved(trainer, "mean");
  const auto variance = saved(trainer, "variance");
  for (std::size_t o = 0; o < 20; ++o) {
    double sum = 0;
    double squares = 0;
    for (std::size_t p = 0; p < 36; ++p) sum += counts[p * 32 + o];
    for (std::size_t p = 0; p < 36; ++p) squares += std::pow(counts[p * 32 + o] - sum / 36, 2);
    CHECK(std::fabs(mean[o] - sum / 36) < 1e-9);
    CHECK(std::fabs(variance[o] - std::max(squares / 36, 0.25)) < 1e-6);
    // One standard deviation below the mean; the window holds the threshold and the count above it.
    const double centre = mean[o] - std::sqrt(variance[o]);
    CHECK(layer.thresholds()[o] == static_cast<std::int32_t>(std::ceil(centre)) - 1);
    CHECK(trainer.thresholds().low[o] <= layer.thresholds()[o]);
    CHECK(trainer.thresholds().high[o] >= layer.thresholds()[o] + 1);
    CHECK(trainer.slope()[o] > 0);
  }
  for (std::size_t o = 20; o < 64; ++o) {
    CHECK(layer.thresholds()[o] == -1);
    CHECK(trainer.thresholds().low[o] > trainer.thresholds().high[o]);
    CHECK(trainer.slope()[o] == 0);
  }
}

TEST_CASE("a flip moves the mean at once to where the flipped layer's mean is", "[layer_trainer]") {
  Random random(2, Stream::test);
  for (const bool ternary : {false, true}) {
    for (const std::size_t stride : {1U, 2U}) {
      BinaryLayer layer = make_layer(layer_spec(20, 3, stride, ternary), 6, 8, 70);
      LayerOptions options;
      options.rule.learning_rate = 0.2;  // many flips
      LayerTrainer trainer(layer, options, 1, 2);
      const Buffer<std::uint64_t> input = even_input(layer, 70, random);
      LayerSums sums = trainer.make_sums();
      run_layer(trainer, input, sums);
      trainer.set_statistics(sums, 1);
      const auto before = saved(trainer, "mean");
      draw_gradient(sums, 20, random);
      CHECK(trainer.update(sums, 1, 1.0, true, 0) > 100);
      const auto moved = saved(trainer, "mean");
      LayerSums now = trainer.make_sums();
      run_layer(trainer, input, now);
      const double pixels = static_cast<double>(layer.geometry().output.height * layer.geometry().output.width);
      bool any = false;
      for (std::size_t o = 0; o < 20; ++o) {
        const double mean = static_cast<double>(now.count()[o]) / pixels + 0.5 * static_cast<double>(layer.patch_bits());
        CHECK(std::fabs(moved[o] - mean) < 1e-3);
        any = any || std::fabs(moved[o] - before[o]) > 1;
      }
      CHECK(any);
    }
  }
}

TEST_CASE("statistics from before a flip do not draw the mean back", "[layer_trainer]") {
  constexpr std::size_t before = 3;
  constexpr std::size_t steps = before + 1;
  Random random(3, Stream::test);
  BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 6, 8, 70);
  LayerOptions options;
  options.rule.learning_rate = 0.2;  // many flips
  LayerTrainer trainer(layer, options, 1, 2);
  const Buffer<std::uint64_t> input = even_input(layer, 70, random);
  LayerSums sums = trainer.make_sums();
  run_layer(trainer, input, sums);
  trainer.set_statistics(sums, 1);
  LayerSums all = trainer.make_sums();
  for (std::size_t n = 0; n < before; ++n) run_layer(trainer, input, all);
  draw_gradient(sums, 20, random);
  trainer.choose(sums, 1.0, 0);
  CHECK(trainer.apply(before) > 100);
  run_layer(trainer, input, all);
  const auto moved = saved(trainer, "mean");
  trainer.observe(all, steps, steps, 1);
  const auto observed = saved(trainer, "mean");
  for (std::size_t o = 0; o < 20; ++o) CHECK(std::fabs(observed[o] - moved[o]) < 1e-3);
}

TEST_CASE("topk flips exactly its share, the weights that most want it", "[layer_trainer]") {
  Random random(3, Stream::test);
  for (const double share : {0.0, 0.003, 0.1}) {
    BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 6, 6, 70);
    LayerOptions options = with_rule("topk");
    options.rule.flip_share = share;
    options.rule.momentum = 0;
    LayerTrainer trainer(layer, options, 1, 2);
    const std::vector<std::uint64_t> before(layer.rows().begin(), layer.rows().end());
    LayerSums sums = trainer.make_sums();
    run_layer(trainer, random_input(layer, 70, random), sums);
    trainer.set_statistics(sums, 1);
    draw_gradient(sums, 0, random);  // total 0: the gradient of weight k is -sums.weight[k]
    const std::size_t flips = trainer.update(sums, 1, 0.5, true, 0);
    const std::size_t weights = 20 * 9 * 70;
    CHECK(flips == static_cast<std::size_t>(share * 0.5 * static_cast<double>(weights) + 0.5));
    std::size_t changed = 0;
    std::int32_t least_flipped = 1000;
    std::int32_t most_kept = -1000;
    for (std::size_t o = 0; o < 20; ++o) {
      for (std::size_t k = 0; k < layer.patch_bits(); ++k) {
        if (!get_bit(layer.valid_bits().data(), k)) continue;
        const std::uint64_t* old_row = before.data() + o * layer.patch_words();
        const bool was = get_bit(old_row, k);
        const std::int32_t wish = -sums.weight[o * layer.patch_bits() + k] * bit_value(was);
        if (was != get_bit(layer.rows().data() + o * layer.patch_words(), k)) {
          ++changed;
          least_flipped = std::min(least_flipped, wish);
        } else {
          most_kept = std::max(most_kept, wish);
        }
      }
    }
    CHECK(changed == flips);
    if (flips != 0) CHECK(least_flipped >= most_kept);
    if (flips != 0) CHECK(least_flipped > 0);
  }
}

TEST_CASE("every rule leaves tails alone and counts its flips", "[layer_trainer]") {
  Random random(4, Stream::test);
  for (const UpdateRule& rule : update_rules()) {
    for (const bool ternary : {false, true}) {
      if (ternary && !rule.ternary) continue;
      INFO(rule.name << (ternary ? " ternary" : ""));
      BinaryLayer layer = make_layer(layer_spec(20, 3, 1, ternary), 6, 6, 70);
      LayerOptions options = with_rule(rule.name);
      options.rule.learning_rate = 0.1;
      options.rule.flip_rate = 0.1;
      LayerTrainer trainer(layer, options, 1, 2);
      const Buffer<std::uint64_t> input = random_input(layer, 70, random);
      std::size_t flips = 0;
      for (std::uint64_t step = 0; step < 5; ++step) {
        const Buffer<std::uint64_t> rows = layer.rows();
        const Buffer<std::uint64_t> nonzero = layer.nonzero_rows();
        LayerSums sums = trainer.make_sums();
        run_layer(trainer, input, sums);
        if (step == 0) trainer.set_statistics(sums, 1);
        draw_gradient(sums, 20, random);
        const std::size_t reported = trainer.update(sums, 1, 1.0, true, step);
        std::size_t changed = 0;
        for (std::size_t w = 0; w < rows.size(); ++w) {
          std::uint64_t difference_of_words = rows[w] ^ layer.rows()[w];
          if (ternary) difference_of_words |= nonzero[w] ^ layer.nonzero_rows()[w];
          changed += static_cast<std::size_t>(std::popcount(difference_of_words));
          REQUIRE((layer.rows()[w] & ~layer.valid_bits()[w % layer.patch_words()]) == 0);
          if (ternary) REQUIRE((layer.rows()[w] & ~layer.nonzero_rows()[w]) == 0);
        }
        REQUIRE(changed == reported);
        flips += reported;
      }
      CHECK(flips > 0);
    }
  }
}

TEST_CASE("the control learns thresholds and no weights", "[layer_trainer]") {
  Random random(5, Stream::test);
  BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 6, 6, 64);
  LayerOptions options;
  options.learn_weights = false;
  options.rule.learning_rate = 1;
  LayerTrainer trainer(layer, options, 1, 2);
  const std::vector<std::uint64_t> before(layer.rows().begin(), layer.rows().end());
  const double offset = trainer.mean_offset();
  LayerSums sums = trainer.make_sums();
  run_layer(trainer, random_input(layer, 64, random), sums);
  trainer.set_statistics(sums, 1);
  draw_gradient(sums, 20, random);
  for (std::size_t o = 0; o < 20; ++o) sums.value()[o] = 10;
  CHECK(trainer.update(sums, 1, 1.0, false, 0) == 0);
  CHECK(trainer.mean_offset() == offset);  // warm-up: nothing learns
  CHECK(trainer.update(sums, 1, 1.0, true, 1) == 0);
  CHECK(std::equal(before.begin(), before.end(), layer.rows().begin()));
  CHECK(std::fabs(trainer.mean_offset() - (offset - 0.1)) < 1e-6);  // Adam's first step
}

TEST_CASE("greedy flips the weight that lowers the loss most, and none if no flip lowers it", "[layer_trainer]") {
  Random random(9, Stream::test);
  BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 6, 6, 64);
  LayerOptions options = with_rule("greedy");
  options.exact = true;
  LayerTrainer trainer(layer, options, 1, 2);
  LayerSums sums = trainer.make_sums();
  run_layer(trainer, random_input(layer, 64, random), sums);
  trainer.set_statistics(sums, 1);
  const std::size_t bits = layer.patch_bits();
  sums.exact.assign(20 * bits, 0);
  for (std::int64_t& change : sums.exact) change = 1000 + random.below(5000);
  std::vector<std::uint64_t> before(layer.rows().begin(), layer.rows().end());
  for (std::uint64_t step = 0; step < 5; ++step) CHECK(trainer.update(sums, 1, 1.0, true, step) == 0);
  CHECK(std::equal(before.begin(), before.end(), layer.rows().begin()));
  sums.exact[3 * bits + 100] = -2000;
  sums.exact[3 * bits + 101] = -4000;
  sums.exact[17 * bits + 5] = -3000;
  CHECK(trainer.update(sums, 1, 1.0, true, 5) == 1);
  std::uint64_t* const row = before.data() + 3 * layer.patch_words();
  set_bit(row, 101, !get_bit(row, 101));
  CHECK(std::equal(before.begin(), before.end(), layer.rows().begin()));
}

// Layers, stages and seeds drew the same numbers.
TEST_CASE("what rules draw depends on the seed and the stream", "[layer_trainer]") {
  const auto rows_after = [](std::uint64_t seed, std::uint64_t stream) {
    BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 6, 6, 64);
    LayerOptions options = with_rule("stochastic");
    options.rule.flip_rate = 0.1;
    LayerTrainer trainer(layer, options, seed, stream);
    const std::vector<std::uint64_t> before(layer.rows().begin(), layer.rows().end());
    Random random(10, Stream::test);
    LayerSums sums = trainer.make_sums();
    run_layer(trainer, random_input(layer, 64, random), sums);
    trainer.set_statistics(sums, 1);
    // Every weight is pushed in the direction that it has, so that every one may flip.
    for (std::size_t k = 0; k < sums.weight.size(); ++k) {
      const std::size_t row = k / layer.patch_bits();
      sums.weight[k] = get_bit(before.data() + row * layer.patch_words(), k % layer.patch_bits()) ? 100 : -100;
    }
    CHECK(trainer.update(sums, 1, 1.0, true, 0) > 0);
    std::vector<std::uint64_t> flipped(layer.rows().begin(), layer.rows().end());
    for (std::size_t w = 0; w < flipped.size(); ++w) flipped[w] ^= before[w];
    return flipped;
  };
  CHECK(rows_after(1, 2) == rows_after(1, 2));
  CHECK(rows_after(1, 2) != rows_after(2, 2));
  CHECK(rows_after(1, 2) != rows_after(1, 3));
}

TEST_CASE("thresholds stay between their bounds", "[layer_trainer]") {
  Random random(8, Stream::test);
  BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 6, 6, 64);
  LayerOptions options;
  options.smallest_offset = -1.5;
  options.largest_offset = -0.5;
  LayerTrainer trainer(layer, options, 1, 2);
  LayerSums sums = trainer.make_sums();
  run_layer(trainer, random_input(layer, 64, random), sums);
  trainer.set_statistics(sums, 1);
  sums.magnitude()[0] = 1000;
  // The first ten channels want fewer bits, the others more.
  for (std::size_t o = 0; o < 20; ++o) sums.value()[o] = o < 10 ? 10 : -10;
  for (std::uint64_t step = 0; step < 50; ++step) trainer.update(sums, 1, 1.0, true, step);
  CHECK(std::fabs(trainer.mean_offset() - -1.0) < 1e-12);
  for (std::size_t o = 0; o < 20; ++o) sums.value()[o] = -10;
  for (std::uint64_t step = 50; step < 200; ++step) trainer.update(sums, 1, 1.0, true, step);
  CHECK(trainer.mean_offset() == -0.5);
}

TEST_CASE("the window is steered to the wanted share of pixels", "[layer_trainer]") {
  Random random(6, Stream::test);
  BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 16, 16, 64);
  LayerOptions options;
  options.active_share = 0.3;
  options.final_active_share = 0.06;
  LayerTrainer trainer(layer, options, 1, 2);
  const Buffer<std::uint64_t> input = random_input(layer, 64, random);
  LayerSums sums = trainer.make_sums();
  run_layer(trainer, input, sums);
  trainer.set_statistics(sums, 1);
  // As a learning rate falls that is 1 at first.
  for (const auto& [rate, share] : {std::pair(1.0, 0.3), std::pair(0.5, 0.18), std::pair(0.0, 0.06)}) {
    for (std::uint64_t step = 0; step < 150; ++step) {
      sums.clear();
      run_layer(trainer, input, sums);
      trainer.update(sums, 1, rate, false, step);
    }
    double active = 0;
    for (std::size_t o = 0; o < 20; ++o) active += static_cast<double>(sums.active()[o]) / (20.0 * 256.0);
    CHECK(std::fabs(active - share) < 0.03);
  }
}

TEST_CASE("a trainer saved and loaded continues as if nothing had happened", "[layer_trainer]") {
  for (const UpdateRule& rule : update_rules()) {
    for (const bool ternary : {false, true}) {
      if (ternary && !rule.ternary) continue;
      INFO(rule.name << (ternary ? " ternary" : ""));
      LayerOptions options = with_rule(rule.name);
      const bool muon = !ternary && std::string_view(rule.name) == "accumulate";
      (muon ? options.muon_momentum : options.second_moment_decay) = 0.9;
      BinaryLayer one = make_layer(layer_spec(20, 3, 1, ternary), 6, 6, 70);
      BinaryLayer two = one;
      LayerTrainer trainer(one, options, 1, 2);
      LayerTrainer loaded(two, options, 1, 2);
      TensorFile file, first, second;
      const auto advance = [](LayerTrainer& each, std::uint64_t step) {
        Random random(7, Stream::test, step);
        LayerSums sums = each.make_sums();
        run_layer(each, random_input(each.layer(), 70, random), sums);
        if (step == 0) each.set_statistics(sums, 1);
        draw_gradient(sums, 20, random);
        each.update(sums, 1, 1.0, true, step);
      };
      for (std::uint64_t step = 9; step < 12; ++step) advance(loaded, step);  // its state before does not matter
      for (std::uint64_t step = 0; step < 6; ++step) {
        if (step == 3) {
          one.save(file);
          trainer.save(file);
          loaded.load(file);
        }
        advance(trainer, step);
        if (step >= 3) advance(loaded, step);
      }
      one.save(first);
      trainer.save(first);
      two.save(second);
      loaded.save(second);
      CHECK(difference(first, second) == "");
      CHECK(trainer.unit() == loaded.unit());
      CHECK(trainer.slope() == loaded.slope());
      CHECK(trainer.state_bits_per_weight() == rule.state_bits + (muon ? Muon::state_bits : 0));
    }
  }
}

TEST_CASE("the slopes of exact loss changes do not depend on what a weight is", "[layer_trainer]") {
  for (const bool ternary : {false, true}) {
    CAPTURE(ternary);
    BinaryLayer layer = make_layer(layer_spec(20, 3, 1, ternary), 6, 6, 70);
    const LayerTrainer trainer(layer, {}, 1, 2);
    const std::size_t bits = layer.patch_bits();
    std::vector<std::int64_t> changes;
    std::vector<std::int32_t> expected(20 * bits);
    // The loss is slope * weight, of a slope of its own for every weight.
    for (std::size_t o = 0; o < 20; ++o) {
      std::vector<std::int64_t> moves[2];
      for (std::size_t k = 0; k < bits; ++k) {
        const auto slope = static_cast<std::int64_t>(o * bits + k) - 5000;
        const bool sign = get_bit(layer.rows().data() + o * layer.patch_words(), k);
        const bool zero = ternary && !get_bit(layer.nonzero_rows().data() + o * layer.patch_words(), k);
        const int value = zero ? 0 : sign ? -1 : 1;
        if (ternary) {
          const std::array<int, 2> to = {value == 1 ? 0 : 1, value == -1 ? 0 : -1};
          for (std::size_t m = 0; m < 2; ++m) moves[m].push_back(slope * (to[m] - value));
        } else {
          moves[0].push_back(slope * -value);  // in units of half a flip
        }
        expected[o * bits + k] = static_cast<std::int32_t>(-slope * (ternary ? 4 : 1));
      }
      for (const auto& each : moves) changes.insert(changes.end(), each.begin(), each.end());
    }
    std::vector<std::int32_t> slopes(20 * bits);
    trainer.exact_slopes(changes, slopes);
    CHECK(slopes == expected);
    // Beyond 29 bits they are cut off.
    std::fill(changes.begin(), changes.end(), (std::int64_t{1} << 40U) + (std::int64_t{1} << 30U) + 77);
    trainer.exact_slopes(changes, slopes);
    const std::int32_t most = mpi::largest_kept<std::int32_t>;
    // Both moves of a trit may cancel.
    CHECK(std::ranges::all_of(slopes, [&](std::int32_t slope) { return std::abs(slope) == most || (ternary && slope == 0); }));
  }
}

TEST_CASE("what a trainer cannot do is refused", "[layer_trainer]") {
  BinaryLayer layer = make_layer(layer_spec(20, 3, 1, true), 6, 6, 70);
  CHECK(has(message_of(ErrorKind::usage, [&] { LayerTrainer(layer, with_rule("topk"), 1, 2); }),
            "`rule`: 'topk' cannot train the ternary weights of layer 'layer'"));
  LayerTrainer trainer(layer, {}, 1, 2);
  TensorFile file;
  layer.save(file);
  trainer.save(file);
  file.tensors.erase("layer.train.window");
  CHECK(has(message_of(ErrorKind::data, [&] { trainer.load(file); }), "layer.train.window"));
}
