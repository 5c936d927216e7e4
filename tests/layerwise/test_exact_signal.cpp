// The exact learning signal against brute force: flip the weight, run the layer and the head again, subtract the losses.
#include "layerwise/exact_signal.h"

#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "core/softmax.h"
#include "tests/support/catch.h"
#include "tests/support/threads.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using bitloom::test::Threads;

namespace {

struct Case {
  std::size_t height, width, in_channels, out_channels, kernel, stride, images, classes;
  bool ternary;
  HeadSpec head;
};

HeadSpec class_conv(std::size_t kernel) { return {"class_conv", 1, 0, kernel}; }
HeadSpec linear(std::size_t grid) { return {"linear", grid, 0, 0}; }
HeadSpec hidden(std::size_t grid) { return {"hidden", grid, 16, 0}; }

// A random layer with thresholds near the counts' mean, random images, and a head that has seen a few of them.
struct Setup {
  explicit Setup(const Case& c, std::uint64_t seed) : random(seed, Stream::test) {
    LayerSpec spec;
    spec.name = "layer";
    spec.inputs = {"input"};
    spec.width = c.out_channels;
    spec.kernel = c.kernel;
    spec.stride = c.stride;
    spec.padding = (c.kernel - 1) / 2;
    spec.ternary = c.ternary;
    NetSpec net;
    net.layers = {spec};
    layer = BinaryLayer(spec, derive_geometry(net, c.height, c.width, c.in_channels)[0]);
    images = c.images;
    draw_weights();
    draw_images(c.in_channels);
    for (std::size_t i = 0; i < images; ++i) labels.push_back(static_cast<std::uint16_t>(random.below(c.classes)));
    run();
    train_head(c);
  }

  void draw_weights() {
    const std::size_t words = layer.patch_words();
    for (std::size_t o = 0; o < layer.channels(); ++o) {
      std::vector<std::uint64_t> sign(words);
      std::vector<std::uint64_t> nonzero(words);
      std::size_t weights = 0;
      for (std::size_t w = 0; w < words; ++w) {
        nonzero[w] = layer.valid_bits()[w] & (layer.spec().ternary ? random.next() | random.next() : ~std::uint64_t{0});
        sign[w] = random.next() & nonzero[w];
        weights += static_cast<std::size_t>(std::popcount(nonzero[w]));
      }
      layer.set_row(o, sign.data(), layer.spec().ternary ? nonzero.data() : nullptr);
      layer.thresholds()[o] = static_cast<std::int32_t>(weights / 2) - static_cast<std::int32_t>(random.below(3));
    }
  }

  void draw_images(std::size_t in_channels) {
    const MapShape& input = layer.geometry().input;
    inputs = Buffer<std::uint64_t>(images * input.size());
    for (std::size_t i = 0; i < images; ++i) {
      for (std::size_t y = 0; y < input.height; ++y) {
        for (std::size_t x = 0; x < input.width; ++x) {
          std::uint64_t* pixel = inputs.data() + i * input.size() + input.interior() + y * input.pitch() + x * input.words();
          for (std::size_t k = 0; k < in_channels; ++k) set_bit(pixel, k, random.below(5) < 2);
        }
      }
    }
  }

  void run() {
    const MapShape& output = layer.geometry().output;
    outputs = Buffer<std::uint64_t>(images * output.size());
    edges = Buffer<std::uint64_t>(images * output.size());
    // T and T + 1, and nothing beyond the layer's channels.
    Buffer<std::int32_t> low(layer.padded_channels());
    Buffer<std::int32_t> high(layer.padded_channels());
    for (std::size_t o = 0; o < low.size(); ++o) {
      low[o] = o < layer.channels() ? layer.thresholds()[o] : 1;
      high[o] = o < layer.channels() ? layer.thresholds()[o] + 1 : 0;
    }
    for (std::size_t i = 0; i < images; ++i) {
      simd::ConvOutput out;
      out.bits = outputs.data() + i * output.size();
      out.bits_pitch = output.pitch();
      out.window = edges.data() + i * output.size();
      kernels.conv(layer.conv_shape(), inputs.data() + i * layer.geometry().input.size(), layer.conv_weights(),
                   {layer.thresholds().data(), low.data(), high.data()}, out);
    }
  }

  void train_head(const Case& c) {
    head = std::make_unique<Head>(c.head, layer.geometry().output, c.classes, 7, 0);
    counts.resize(images * head->features());
    std::vector<float> gradient(counts.size());
    for (int step = 0; step < 8; ++step) {
      count();
      Head::Sums sums = head->make_sums();
      head->backward(kernels, counts.data(), labels.data(), images, {}, sums, gradient.data());
      // Slowly enough for losses that are not 0.
      head->update(sums, images, 0.3 / static_cast<double>(c.out_channels * head->regions()), 0);
    }
  }

  void count() {
    for (std::size_t i = 0; i < images; ++i) {
      head->count(kernels, outputs.data() + i * layer.geometry().output.size(), counts.data() + i * head->features());
    }
  }

  // Per image, in nats.
  std::vector<double> losses() {
    std::vector<float> logits(images * head->classes());
    count();
    head->predict(kernels, counts.data(), images, logits.data());
    std::vector<double> result;
    for (std::size_t i = 0; i < images; ++i) {
      result.push_back(cross_entropy({logits.data() + i * head->classes(), head->classes()}, labels[i]));
    }
    return result;
  }

  ExactStatistics exact(std::vector<std::int64_t>& deltas) {
    count();
    ExactSignal signal(layer);
    deltas.resize(signal.size());
    const ExactHead view(*head, layer.geometry().output);
    return signal.add(kernels, view, {inputs.data(), outputs.data(), edges.data(), counts.data(), labels.data(), images},
                      deltas);
  }

  // Trits as -1, 0, +1; binary weights as -1, +1.
  int weight(std::size_t o, std::size_t k) const {
    const std::size_t first = o * layer.patch_words();
    const bool nonzero = !layer.spec().ternary || get_bit(layer.nonzero_rows().data() + first, k);
    return nonzero ? bit_value(get_bit(layer.rows().data() + first, k)) : 0;
  }
  void set_weight(std::size_t o, std::size_t k, int value) {
    const std::size_t first = o * layer.patch_words();
    std::vector<std::uint64_t> sign(layer.rows().data() + first, layer.rows().data() + first + layer.patch_words());
    set_bit(sign.data(), k, value < 0);
    if (!layer.spec().ternary) return layer.set_row(o, sign.data(), nullptr);
    std::vector<std::uint64_t> nonzero(layer.nonzero_rows().data() + first,
                                       layer.nonzero_rows().data() + first + layer.patch_words());
    set_bit(nonzero.data(), k, value != 0);
    layer.set_row(o, sign.data(), nonzero.data());
  }

  const simd::Kernels& kernels = simd::kernels();
  Random random;
  BinaryLayer layer;
  std::size_t images = 0;
  Buffer<std::uint64_t> inputs, outputs, edges;
  std::vector<std::uint16_t> labels;
  std::unique_ptr<Head> head;
  std::vector<std::int16_t> counts;
};

// Compares every move of every `stride`-th weight; returns how many moves change the loss.
std::size_t check_against_brute_force(Setup& setup, std::size_t stride) {
  std::vector<std::int64_t> deltas;
  const ExactStatistics statistics = setup.exact(deltas);
  CHECK(statistics.edge_pixels > 0);
  CHECK(statistics.distinct > 0);
  const std::vector<double> before = setup.losses();
  const std::size_t bits = setup.layer.patch_bits();
  const std::size_t moves = setup.layer.spec().ternary ? 2 : 1;
  std::size_t moving = 0;
  std::size_t wrong = 0;
  for (std::size_t o = 0; o < setup.layer.channels(); ++o) {
    for (std::size_t k = o % stride; k < bits; k += stride) {
      if (!get_bit(setup.layer.valid_bits().data(), k)) {
        for (std::size_t m = 0; m < moves; ++m) wrong += deltas[(o * moves + m) * bits + k] == 0 ? 0 : 1;
        continue;
      }
      const int value = setup.weight(o, k);
      for (std::size_t m = 0; m < moves; ++m) {
        setup.set_weight(o, k, moves == 1 ? -value : trit_moves(value)[m]);
        setup.run();
        const std::vector<double> after = setup.losses();
        std::int64_t expected = 0;
        for (std::size_t i = 0; i < setup.images; ++i) expected += std::llrint((after[i] - before[i]) * exact_steps);
        const std::int64_t actual = deltas[(o * moves + m) * bits + k];
        wrong += actual == expected ? 0 : 1;
        if (actual != expected && wrong < 5)
          UNSCOPED_INFO("channel " << o << " weight " << k << " move " << m << ": " << actual << " not " << expected);
        moving += expected != 0 ? 1 : 0;
      }
      setup.set_weight(o, k, value);
    }
  }
  CHECK(wrong == 0);
  setup.run();
  return moving;
}

}  // namespace

TEST_CASE("exact deltas equal brute force for every flip") {
  const std::vector<Case> cases = {
      {5, 5, 3, 4, 3, 1, 6, 10, false, class_conv(3)}, {8, 8, 20, 5, 3, 1, 3, 10, false, class_conv(3)},
      {8, 8, 70, 4, 3, 1, 2, 10, false, linear(4)},    {5, 5, 64, 9, 1, 1, 4, 3, false, linear(2)},
      {8, 8, 12, 4, 3, 2, 3, 17, false, linear(1)},    {5, 7, 3, 4, 3, 1, 4, 10, false, class_conv(1)},
      {8, 8, 5, 4, 3, 1, 3, 10, false, class_conv(5)}, {8, 8, 9, 4, 3, 1, 3, 10, false, hidden(2)},
      {5, 5, 3, 4, 3, 1, 6, 10, true, class_conv(3)},  {8, 8, 9, 5, 3, 1, 3, 10, true, linear(4)},
      {6, 6, 66, 4, 1, 1, 4, 10, true, linear(3)},     {5, 5, 7, 4, 3, 1, 3, 10, true, hidden(1)},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    INFO("case " << i << ": " << c.head.kind << (c.ternary ? ", ternary" : ", binary"));
    Setup setup(c, i);
    CHECK(check_against_brute_force(setup, 1) > setup.layer.geometry().valid_bits);
  }
}

TEST_CASE("exact deltas of maps with more edge pixels than one pass of keys can hold") {
  for (const bool ternary : {false, true}) {
    INFO("ternary " << ternary);
    // Every fifth pixel is on the edge: dozens of them in 64 zones, at least a bit of a key for each.
    Setup many_zones({16, 16, 8, 4, 3, 1, 2, 10, ternary, linear(8)}, 50);
    CHECK(check_against_brute_force(many_zones, 1) > 72);
    // Three inputs under a 1x1 kernel: d is 0 .. 3, most of 400 pixels are on the edge, all in one zone.
    Setup one_zone({20, 20, 3, 4, 1, 1, 2, 10, ternary, linear(1)}, 51);
    for (std::size_t o = 0; o < 4; ++o) one_zone.layer.thresholds()[o] = static_cast<std::int32_t>(o) - 1;
    one_zone.run();
    CHECK(check_against_brute_force(one_zone, 1) > 0);
  }
}

TEST_CASE("exact deltas of a wide layer, sampled") {
  Setup setup({8, 8, 128, 70, 3, 1, 2, 10, false, linear(4)}, 60);
  CHECK(check_against_brute_force(setup, 997) > 0);
}

// The table of keys had one place, which a shift by all 64 bits of a hash was to find.
TEST_CASE("exact deltas of channels of one weight each") {
  for (const HeadSpec& head : {linear(1), class_conv(1)}) {
    INFO(head.kind);
    Setup setup({5, 5, 1, 70, 1, 1, 6, 10, false, head}, 65);
    REQUIRE(setup.layer.geometry().valid_bits == 1);
    CHECK(check_against_brute_force(setup, 1) > 0);
  }
}

TEST_CASE("exact deltas add up and do not depend on the number of threads") {
  Setup setup({8, 8, 20, 9, 3, 1, 70, 10, true, class_conv(3)}, 70);
  std::vector<std::int64_t> once;
  const ExactStatistics statistics = [&] {
    const Threads limit(1);
    return setup.exact(once);
  }();
  for (const int count : {2, 3}) {
    const Threads limit(count);
    std::vector<std::int64_t> again;
    const ExactStatistics other = setup.exact(again);
    CHECK(again == once);
    CHECK(other.distinct == statistics.distinct);
  }
  std::vector<std::int64_t> twice = once;
  setup.exact(twice);
  for (std::int64_t& delta : once) delta *= 2;
  CHECK(twice == once);
}

TEST_CASE("exact deltas are the same for every instruction set") {
  Setup setup({8, 8, 20, 9, 3, 1, 3, 10, false, hidden(2)}, 80);
  setup.count();
  const ExactHead view(*setup.head, setup.layer.geometry().output);
  ExactSignal signal(setup.layer);
  std::vector<std::int64_t> expected;
  for (const std::string& name : simd::supported_kernels()) {
    INFO(name);
    std::vector<std::int64_t> deltas(signal.size());
    signal.add(
        simd::kernels(name), view,
        {setup.inputs.data(), setup.outputs.data(), setup.edges.data(), setup.counts.data(), setup.labels.data(), setup.images},
        deltas);
    if (expected.empty()) expected = deltas;
    CHECK(deltas == expected);
  }
}

// The essay's sanity check: class sums of single channels add up to the class sums of the whole word.
TEST_CASE("class sums of the channels add up to those of the full word") {
  for (const HeadSpec& spec : {class_conv(3), linear(2)}) {
    Setup setup({7, 6, 9, 9, 3, 1, 2, 10, false, spec}, 90);
    setup.count();
    const MapShape& map = setup.layer.geometry().output;
    const ExactHead view(*setup.head, map);
    const std::vector<std::int16_t> nothing(view.features(), 0);
    ExactHead::Image image;
    ExactHead::Image empty;
    view.prepare(setup.kernels, setup.counts.data(), setup.labels[0], image);
    view.prepare(setup.kernels, nothing.data(), setup.labels[0], empty);
    std::vector<std::uint32_t> sums = empty.sums;
    std::vector<std::uint32_t> change(view.width());
    for (std::size_t o = 0; o < setup.layer.channels(); ++o) {
      for (std::size_t p = 0; p < map.height * map.width; ++p) {
        if (!get_bit(setup.outputs.data() + p * map.words(), o)) continue;
        view.zone_change(empty, o, view.zone_of_pixel()[p], 1, 1, change.data());
        for (std::size_t l = 0; l < sums.size(); ++l) sums[l] += change[l];
      }
    }
    CHECK(sums == image.sums);
    double loss = 0;
    view.losses(sums.data(), 1, setup.labels[0], &loss);
    CHECK(loss == setup.losses()[0]);
  }
}

TEST_CASE("losses of rows of sums are those of cross_entropy, to the bit") {
  Setup setup({6, 6, 9, 9, 3, 1, 40, 10, false, linear(3)}, 91);
  setup.count();
  const ExactHead view(*setup.head, setup.layer.geometry().output);
  const std::vector<double> expected = setup.losses();
  for (std::size_t i = 0; i < setup.images; ++i) {
    ExactHead::Image image;
    view.prepare(setup.kernels, setup.counts.data() + i * view.features(), setup.labels[i], image);
    CHECK(image.loss == expected[i]);
    // Far from the middle, where exp() underflows.
    for (std::uint32_t& sum : image.sums) sum *= 1000;
    double loss = 0;
    view.losses(image.sums.data(), 1, setup.labels[i], &loss);
    const Head::Integers integers = setup.head->integers();
    std::vector<float> logits;
    for (std::size_t l = 0; l < view.classes(); ++l) {
      logits.push_back(static_cast<float>(static_cast<std::int32_t>(image.sums[l])) * integers.linear_step + integers.bias[l]);
    }
    CHECK(loss == cross_entropy(logits, setup.labels[i]));
  }
}

TEST_CASE("exact deltas of the wrong size or a head of another map are errors") {
  Setup setup({5, 5, 3, 4, 3, 1, 1, 10, false, linear(2)}, 95);
  setup.count();
  ExactSignal signal(setup.layer);
  const ExactBatch batch = {setup.inputs.data(), setup.outputs.data(), setup.edges.data(),
                            setup.counts.data(), setup.labels.data(),  1};
  std::vector<std::int64_t> deltas(signal.size() - 1);
  const ExactHead view(*setup.head, setup.layer.geometry().output);
  CHECK_THROWS_AS(signal.add(setup.kernels, view, batch, deltas), Error);
  deltas.resize(signal.size());
  const Head other(linear(2), {8, 8, 4, 0}, 10, 1, 1);
  CHECK_THROWS_AS(signal.add(setup.kernels, ExactHead(other, {8, 8, 4, 0}), batch, deltas), Error);
}
