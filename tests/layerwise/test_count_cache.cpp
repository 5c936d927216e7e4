#include "layerwise/count_cache.h"

#include "tests/layerwise/cases.h"
#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

constexpr std::size_t size = 6;
constexpr std::size_t images = 3;

// One layer over random maps, stepped by hand.
struct Steps {
  Steps(std::size_t width, bool ternary)
      : random(width, Stream::test, ternary ? 1 : 0),
        layer(make_layer(layer_spec(width, 3, 1, ternary), size, size, 100)),
        trainer(layer, LayerOptions{}, 1, 1),
        cache(layer, images),
        low(layer.padded_channels()),
        high(layer.padded_channels()) {
    draw_weights(layer, random);
    for (std::size_t i = 0; i < images; ++i) {
      inputs.emplace_back(layer.geometry().input.size());
      draw_map(inputs.back().data(), layer.geometry().input, 3, random);
    }
    move_thresholds();
  }

  // Some of them beyond every count.
  void move_thresholds() {
    const auto most = static_cast<std::uint32_t>(layer.patch_bits() + 2);
    for (std::size_t o = 0; o < layer.padded_channels(); ++o) {
      const bool valid = o < layer.channels();
      layer.thresholds()[o] = valid ? static_cast<std::int32_t>(random.below(most)) - 1 : -1;
      low[o] = valid ? static_cast<std::int32_t>(random.below(most)) - 2 : 1;
      high[o] = valid ? low[o] + static_cast<std::int32_t>(random.below(40)) : 0;
    }
    if (layer.channels() > 2) {
      high[0] = 1 << 20;
      low[1] = 1 << 20;
      high[1] = 1 << 21;
      low[2] = -(1 << 20);
    }
  }

  void flip(std::size_t o) {
    std::vector<std::uint64_t> sign(layer.rows().data() + o * layer.patch_words(),
                                    layer.rows().data() + (o + 1) * layer.patch_words());
    const std::uint64_t* nonzero = layer.spec().ternary ? layer.nonzero_rows().data() + o * layer.patch_words() : nullptr;
    sign[3] ^= nonzero != nullptr ? nonzero[3] : layer.valid_bits()[3];
    layer.set_row(o, sign.data(), nonzero);
  }

  // Compares what the cache makes of the step with the whole convolution.
  void check(const simd::Kernels& kernels) {
    const MapShape& map = layer.geometry().output;
    LayerSums expected_sums = trainer.make_sums();
    LayerSums sums = trainer.make_sums();
    CountCache::Scratch scratch;
    for (std::size_t i = 0; i < images; ++i) {
      std::vector<std::uint64_t> bits(map.size()), window(map.size()), expected_bits(map.size()), expected_window(map.size());
      const simd::ConvThresholds thresholds = {layer.thresholds().data(), low.data(), high.data()};
      kernels.conv(layer.conv_shape(), inputs[i].data(), layer.conv_weights(), thresholds,
                   {expected_bits.data(), map.pitch(), expected_window.data(), expected_sums.count().data(),
                    expected_sums.count_squared().data()});
      cache.forward(kernels, i, inputs[i].data(), thresholds, bits.data(), window.data(), sums, scratch);
      CHECK(bits == expected_bits);
      CHECK(window == expected_window);
    }
    cache.complete(sums);
    for (std::size_t o = 0; o < layer.channels(); ++o) {
      REQUIRE(sums.count()[o] == expected_sums.count()[o]);
      REQUIRE(sums.count_squared()[o] == expected_sums.count_squared()[o]);
    }
  }

  Random random;
  BinaryLayer layer;
  LayerTrainer trainer;
  CountCache cache;
  std::vector<std::int32_t> low, high;
  std::vector<Buffer<std::uint64_t>> inputs;
};

StageCase repeated(StageCase c, std::size_t repeat, double limit) {
  c.options.repeat = repeat;
  c.options.counts_limit = limit;
  c.options.warmup_steps = 1;
  return c;
}

}  // namespace

TEST_CASE("kept counts give what the whole convolution gives", "[count_cache]") {
  for (const std::string& isa : simd::supported_kernels()) {
    const simd::Kernels& kernels = simd::kernels(isa);
    for (const bool ternary : {false, true}) {
      for (const std::size_t width : {1U, 15U, 16U, 63U, 64U, 65U, 130U}) {
        INFO(isa << ", width " << width << (ternary ? ", ternary" : ""));
        Steps steps(width, ternary);
        REQUIRE(CountCache::can_hold(steps.layer));
        REQUIRE(steps.cache.begin_step(false, true, 1.0) == CountMode::all);
        steps.check(kernels);
        for (const std::size_t flips : {0U, 1U, 3U, 40U}) {
          steps.move_thresholds();
          for (std::size_t f = 0; f < flips; ++f) steps.flip(steps.random.below(static_cast<std::uint32_t>(width)));
          REQUIRE(steps.cache.begin_step(true, true, 1.0) == CountMode::part);
          steps.check(kernels);
        }
      }
    }
  }
}

TEST_CASE("counts are kept only while they pay", "[count_cache]") {
  Steps steps(64, false);
  CountCache& cache = steps.cache;
  CHECK(cache.begin_step(false, true, 0.25) == CountMode::none);  // nothing is known of the weights yet
  CHECK(cache.changed_share() == 1.0);
  CHECK(cache.begin_step(true, true, 0.25) == CountMode::all);
  CHECK(cache.changed_share() == 0.0);
  steps.check(simd::kernels());
  for (std::size_t o = 0; o < 16; ++o) steps.flip(o);
  CHECK(cache.begin_step(true, true, 0.25) == CountMode::part);
  CHECK(cache.changed_share() == 0.25);
  steps.check(simd::kernels());
  for (std::size_t o = 0; o < 17; ++o) steps.flip(o);
  CHECK(cache.begin_step(true, true, 0.25) == CountMode::none);
  CHECK(cache.begin_step(true, false, 0.25) == CountMode::none);  // for the last time on this minibatch
  CHECK(cache.begin_step(false, true, 0.25) == CountMode::all);   // other inputs
  CHECK(cache.begin_step(false, true, -1) == CountMode::none);
}

TEST_CASE("repeated minibatches train to the same bits however they are computed", "[count_cache][stage]") {
  mpi::Comm comm;
  std::vector<StageCase> cases = stage_cases();
  for (const char* rule : {"greedy", "topk"}) {
    cases.push_back(stage_cases()[0]);
    cases.back().name = rule;
    cases.back().options.layer.rule.name = rule;
    cases.back().options.layer.rule.flip_share = 0.0005;
  }
  for (const StageCase& c : cases) {
    INFO(c.name);
    SmallStage whole(repeated(c, 3, -1), simd::kernels(), comm);
    const TensorFile expected = whole.run(14);
    SmallStage kept(repeated(c, 3, 1), simd::kernels(), comm);
    std::size_t parts = 0;
    for (int step = 0; step < 14; ++step) parts += kept.stage().step().modes[0] == CountMode::part ? 1 : 0;
    CHECK(parts >= 8);
    CHECK(difference(expected, kept.run(0)) == "");
    SmallStage once(repeated(c, 1, 1), simd::kernels(), comm);
    CHECK(difference(expected, once.run(14)) != "");

    // Saved in the middle of a minibatch's repetitions.
    SmallStage first(repeated(c, 3, 1), simd::kernels(), comm);
    const TensorFile saved = first.run(7);
    SmallStage second(repeated(c, 3, 1), simd::kernels(), comm);
    second.stage().load(saved);
    CHECK(difference(expected, second.run(7)) == "");
  }
}

TEST_CASE("an epoch of repeated minibatches sees every image as often", "[count_cache][stage]") {
  mpi::Comm comm;
  SmallStage small(repeated(stage_cases()[0], 4, 0.25), simd::kernels(), comm);
  CHECK(small.stage().steps_per_epoch() == 4 * 3);
  CHECK(small.stage().total_steps() == 10 * 4 * 3);
}
