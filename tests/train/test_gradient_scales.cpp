// Scales of the gradients of residual blocks: how they move, that a block that overflows leaves the others alone, and that
// blocks learn whose gradients no single scale would keep in the range of f16.
#include "train/parallel/gradient_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "tests/train/spirals.h"
#include "train/parallel/power_sgd.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

// Passes on what it gets, with an infinite number among the gradients of given steps: what an overflow in a branch leaves.
class Burst final : public nn::Layer {
 public:
  explicit Burst(std::vector<std::uint64_t> steps) : steps_(std::move(steps)) {}
  nn::Tensor forward(nn::Pass& /*pass*/, const nn::Tensor& x) override { return x; }
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override {
    if (std::ranges::count(steps_, pass.step) == 0) return dy;
    std::vector<f16> values = pass.engine.to_host<f16>(dy);
    values[5] = to_f16(std::numeric_limits<float>::infinity());
    return pass.engine.from<f16>(values, dy.shape(), nn::Use::activations);
  }
  nn::Shape output(const nn::Shape& x) const override { return x; }
  double cost(const nn::Shape& /*x*/) const override { return 0; }
  std::uint64_t stash_bytes(const nn::Shape& /*x*/, DType /*values*/) const override { return 0; }

 private:
  std::vector<std::uint64_t> steps_;
};

constexpr std::size_t width = 24;

std::unique_ptr<nn::Sequence> branch(const std::string& name) {
  nn::LinearOptions linear;
  linear.deviation = 0.3;
  auto branch = std::make_unique<nn::Sequence>();
  branch->emplace<nn::Linear>(name, width, width, linear);
  branch->emplace<nn::Activate>(nn::find_activation("tanh"));
  return branch;
}

// Net of three blocks, of which the second's gradients burst.
std::unique_ptr<nn::Sequence> bursting_net(const std::vector<std::uint64_t>& steps) {
  nn::LinearOptions linear;
  linear.deviation = 0.4;
  auto net = std::make_unique<nn::Sequence>();
  net->emplace<nn::Linear>("first", 2, width, linear);
  for (std::size_t i = 0; i < 3; ++i) {
    auto inside = branch("block" + std::to_string(i));
    if (i == 1) inside->emplace<Burst>(steps);
    net->emplace<nn::Residual>(std::move(inside), i);
  }
  net->emplace<nn::Linear>("last", width, 3, linear);
  return net;
}

TrainOptions options_of_blocks(std::size_t micro_batches = 1) {
  TrainOptions options;
  options.values = DType::f16;
  options.loss_scale = LossScaleOptions{1024, 2000, 16777216};
  options.block_scales.emplace();
  options.micro_batches = micro_batches;
  options.rate.peak = 0.01;
  options.optimizer.clip = 10;
  return options;
}

struct ScaledRun {
  // compress_rank: of gradients, 0: as they are.
  ScaledRun(const TrainOptions& options, std::unique_ptr<nn::Sequence> net, std::size_t examples = 16,
            std::size_t compress_rank = 0)
      : engine({}, "ref"),
        task(std::move(net), {examples, 2}, test::spirals<float>(engine, {examples, options.micro_batches}, options.values)),
        trainer(engine, task, options, layout(compress_rank)) {}

  static Layout layout(std::size_t compress_rank) {
    Layout layout;
    layout.compress_rank = compress_rank;
    return layout;
  }

  // State that belongs to each block, and to none: values, moments and numbers of steps.
  std::map<std::string, std::vector<std::byte>> state() {
    std::map<std::string, std::vector<std::byte>> by_block;
    const TensorFile file = test::saved(trainer);
    for (const auto& [name, tensor] : file.tensors) {
      const std::size_t at = name.find("block");
      const std::string owner = at != std::string::npos && name != "trainer.block_scales" ? name.substr(at, 6) : name;
      std::vector<std::byte>& bytes = by_block[owner];
      bytes.insert(bytes.end(), tensor.bytes.span().begin(), tensor.bytes.span().end());
    }
    return by_block;
  }

  nn::Engine engine;
  Classification task;
  Trainer trainer;
};

const auto always = [](std::size_t) { return true; };

}  // namespace

TEST_CASE("gradient scales begin, grow, fall and end as in Ramesh et al.", "[train][gradient_scales]") {
  constexpr std::size_t replicas = 6;
  GradientScales scales({0, 4, 7}, replicas);
  CHECK(scales.all() == std::vector<double>(3, replicas * 8192.0));
  for (int i = 0; i < 1000; ++i) scales.update(always);
  for (const double scale : scales.all()) CHECK(scale == Approx(2 * replicas * 8192.0).epsilon(1e-10));

  // One falls, the others grow on.
  const std::vector<double> before = scales.all();
  scales.update([](std::size_t block) { return block != 4; });
  CHECK(scales.of(4) == Approx(before[1] / std::sqrt(2.0)).epsilon(1e-14));
  CHECK(scales.of(0) == Approx(before[0] * std::pow(2, 0.001)).epsilon(1e-14));
  // Not again within 125 updates, whatever happens, and it does not grow where it may not fall.
  const double fallen = scales.of(4);
  for (int i = 0; i < 124; ++i) {
    scales.update([](std::size_t block) { return block != 4; });
    CHECK(scales.of(4) == fallen);
  }
  scales.update([](std::size_t block) { return block != 4; });
  CHECK(scales.of(4) == Approx(fallen / std::sqrt(2.0)).epsilon(1e-14));

  for (int i = 0; i < 20000; ++i) scales.update([](std::size_t block) { return block == 7; });
  CHECK(scales.of(7) == replicas * std::ldexp(1, 24));
  CHECK(scales.of(0) == replicas * std::ldexp(1, 7));
  CHECK(scales.is_least(0));
  CHECK_FALSE(scales.is_least(7));

  GradientScales other({0, 4, 7}, replicas);
  other.set_state(scales.state());
  CHECK(other.state() == scales.state());
  CHECK(has(message_of(ErrorKind::internal, [&] { scales.of(5); }), "there is no block 5"));
}

// A run may go on with other micro-batches, as memory allows: its scales jumped to the limits of these.
TEST_CASE("gradient scales of fewer replicas go on with more", "[train][gradient_scales]") {
  GradientScales one({0}, 1), eight({0}, 8), back({0}, 1);
  for (int i = 0; i < 7 * 125; ++i) one.update([](std::size_t) { return false; });
  const double fallen = one.of(0);
  REQUIRE(fallen < 8 * 128);
  eight.set_state(one.state());
  eight.update(always);
  CHECK(eight.of(0) == Approx(fallen * std::pow(2, 0.001)).epsilon(1e-14));
  CHECK_FALSE(eight.is_least(0));
  GradientScales large({0}, 8);
  for (int i = 0; i < 20000; ++i) large.update(always);
  back.set_state(large.state());
  back.update([](std::size_t) { return true; });
  CHECK(back.of(0) == large.of(0));
}

TEST_CASE("an overflow in a block moves its scale alone and leaves its parameters, moments and error buffers as they are",
          "[train][gradient_scales]") {
  const std::size_t compress_rank = GENERATE(0, 4);
  ScaledRun run(options_of_blocks(), bursting_net({3, 4, 140}), 16, compress_rank);
  double scale[3] = {8192, 8192, 8192};
  for (std::uint64_t step = 0; step < 145; ++step) {
    INFO("step " << step);
    const bool bursts = step == 3 || step == 4 || step == 140;
    const bool looks = step < 8 || step > 137;
    const auto before = looks ? run.state() : std::map<std::string, std::vector<std::byte>>();
    const StepReport report = run.trainer.step();
    CHECK_FALSE(report.skipped);
    CHECK(std::isfinite(report.gradient_norm));
    CHECK(report.skipped_blocks == (bursts ? 1 : 0));
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(report.block_scales[i] == Approx(scale[i]).epsilon(1e-12));
      if (i != 1 || !bursts) {
        scale[i] *= std::pow(2, 0.001);
      } else if (step != 4) {  // too soon after the last time
        scale[i] /= std::sqrt(2.0);
      }
    }
    if (!looks) continue;
    const auto after = run.state();
    CHECK((after.at("block1") == before.at("block1")) == bursts);
    for (const char* other : {"block0", "block2", "first.weight", "last.weight"}) CHECK(after.at(other) != before.at(other));
  }
}

// Such as that of a LayerNorm whose input is small: the gradients of its parameters are finite.
TEST_CASE("an overflow in the last operation of a branch's backward pass skips its block", "[train][gradient_scales]") {
  for (const bool overflows : {false, true}) {
    nn::LinearOptions small, large;
    small.deviation = overflows ? 1e-4 : 0.4;
    large.deviation = overflows ? 4 : 0.4;
    auto net = std::make_unique<nn::Sequence>();
    net->emplace<nn::Linear>("first", 2, width, small);
    for (std::size_t i = 0; i < 2; ++i) {
      auto inside = std::make_unique<nn::Sequence>();
      if (i == 0) inside->emplace<nn::LayerNorm>("norm", width);
      nn::LinearOptions linear;
      linear.deviation = 0.3;
      inside->emplace<nn::Linear>("block" + std::to_string(i), width, width, linear);
      net->emplace<nn::Residual>(std::move(inside), i);
    }
    net->emplace<nn::Linear>("last", width, 3, large);
    ScaledRun run(options_of_blocks(), std::move(net));
    const auto before = run.state();
    const StepReport report = run.trainer.step();
    CHECK_FALSE(report.skipped);
    CHECK(report.skipped_blocks == (overflows ? 1 : 0));
    const auto after = run.state();
    CHECK((after.at("block0") == before.at("block0")) == overflows);
    CHECK(after.at("block1") != before.at("block1"));
  }
}

// It was taken off the error buffers, though it went nowhere.
TEST_CASE("a block that is skipped keeps what its factors carried", "[train][gradient_scales]") {
  struct Fourth {
    std::vector<double> error, carried;
  };
  const auto fourth_step = [](bool bursts) {
    nn::LinearOptions linear;
    linear.deviation = 0.3;
    auto net = std::make_unique<nn::Sequence>();
    net->emplace<nn::Linear>("first", 2, width, linear);
    auto inside = branch("block0");
    if (bursts) inside->emplace<Burst>(std::vector<std::uint64_t>{3});
    inside->emplace<nn::Linear>("upper", width, width, linear);
    net->emplace<nn::Residual>(std::move(inside), 0);
    net->emplace<nn::Linear>("last", width, 3, linear);
    ScaledRun run(options_of_blocks(), std::move(net), 16, 2);
    for (int i = 0; i < 3; ++i) run.trainer.step();
    const StepReport report = run.trainer.step();
    CHECK(report.skipped_blocks == (bursts ? 1 : 0));
    Fourth found;
    const TensorFile file = test::saved(run.trainer);
    const auto error = file.get(power_sgd_error_name("upper.weight")).as<float>();
    found.error.assign(error.begin(), error.end());
    for (const nn::Parameter* parameter : run.trainer.parameters()) {
      if (parameter->name != "upper.weight") continue;
      for (const float g : run.engine.to_host<float>(parameter->gradient)) found.carried.push_back(g / report.block_scales[0]);
    }
    return found;
  };
  const Fourth skipped = fourth_step(true), taken = fourth_step(false);
  REQUIRE(skipped.error.size() == width * width);
  std::vector<double> expected = taken.error;
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += taken.carried.at(i);
  CHECK(compare(skipped.error, expected, 1e-5) == "");
  CHECK(compare(skipped.error, taken.error, 1e-2) != "");
}

TEST_CASE("with scales of blocks gradients are those of f32, but for rounding", "[train][gradient_scales]") {
  const auto gradients = [](DType values) {
    TrainOptions options = options_of_blocks(2);
    options.values = values;
    if (values != DType::f16) {
      options.loss_scale.reset();
      options.block_scales.reset();
    }
    nn::Engine engine({}, "ref");
    const test::SpiralOptions spirals{16, 2};
    Classification task(bursting_net({}), {16, 2}, test::spirals<float>(engine, spirals, values));
    Trainer trainer(engine, task, options);
    const double norm = trainer.step().gradient_norm;
    return std::pair(norm, test::all_of(engine, trainer.parameters(), &nn::Parameter::value));
  };
  const auto [expected_norm, expected] = gradients(DType::f32);
  const auto [norm, values] = gradients(DType::f16);
  CHECK(norm == Approx(expected_norm).epsilon(2e-3));
  // The first step of AdamW moves by the sign of the gradient.
  CHECK(compare(values, expected, 1e-2) == "");
}

TEST_CASE("a run with scales of blocks goes on bit by bit", "[train][gradient_scales]") {
  ScaledRun whole(options_of_blocks(2), bursting_net({3, 7, 12})), first(options_of_blocks(2), bursting_net({3, 7, 12}));
  for (int i = 0; i < 20; ++i) whole.trainer.step();
  for (int i = 0; i < 10; ++i) first.trainer.step();
  const TensorFile file = test::saved(first.trainer);
  ScaledRun second(options_of_blocks(2), bursting_net({3, 7, 12}));
  second.trainer.step();  // whatever it has is replaced
  test::load(second.trainer, TensorFile::parse(file.serialize(), "memory"));
  for (int i = 0; i < 10; ++i) second.trainer.step();
  CHECK(second.state() == whole.state());
}

// Two blocks whose insides differ: the early one's activations are small before its last factor, so that its gradients there
// are 2^20 times those around it; the late one's are large, and its gradients there less than 2^-15 of those around it. Where
// the early block's do not overflow, f16 has hardly anything left of the late one's. That early activations have few bits costs
// a little of what training in f32 comes to.
TEST_CASE("a net whose late block underflows under one scale learns under scales of blocks", "[train][gradient_scales]") {
  const auto loss = [&](DType values, bool scales_blocks) {
    const auto with_factor = [](const std::string& name, double exponent) {
      auto inside = branch(name);
      inside->emplace<nn::Scale>(std::exp2(exponent));
      inside->emplace<nn::Scale>(std::exp2(-exponent));
      return inside;
    };
    nn::LinearOptions linear;
    linear.deviation = 0.4;
    auto net = std::make_unique<nn::Sequence>();
    net->emplace<nn::Linear>("first", 2, width, linear);
    net->emplace<nn::Residual>(with_factor("early", -20), 0);
    net->emplace<nn::Residual>(with_factor("late", 15.9), 1);
    net->emplace<nn::Linear>("last", width, 3, linear);
    TrainOptions options = options_of_blocks();
    options.values = values;
    options.loss_scale = LossScaleOptions();
    // A scale may fall at every step: what takes thousands of steps in the paper takes tens here.
    options.block_scales = GradientScaleOptions{.least = 1, .window = 1};
    if (!scales_blocks) options.block_scales.reset();
    if (values != DType::f16) options.loss_scale.reset();
    ScaledRun run(options, std::move(net), 256);
    double sum = 0;
    for (int i = 0; i < 150; ++i) sum += run.trainer.step().loss * (i < 140 ? 0 : 0.1);
    return sum;
  };
  const double of_f32 = loss(DType::f32, false);
  const double of_blocks = loss(DType::f16, true);
  const double of_net = loss(DType::f16, false);
  CAPTURE(of_f32, of_blocks, of_net);
  CHECK(of_f32 < 0.005);
  CHECK(of_blocks < 1.6 * of_f32);
  CHECK(of_net > 3 * of_blocks);
}

TEST_CASE("scales of blocks are refused where they have no use or no way", "[train][gradient_scales]") {
  TrainOptions options = options_of_blocks();
  options.values = DType::bf16;
  CHECK(has(message_of(ErrorKind::usage, [&] { check(options); }),
            "`loss_scale`: blocks with `dtype` bf16; expected `dtype` f16"));
  // A gradient that no smaller scale would make finite.
  options.values = DType::f16;
  std::vector<std::uint64_t> all(4000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  ScaledRun run(options, bursting_net(all));
  const std::string message = message_of(ErrorKind::data, [&] {
    for (std::size_t i = 0; i < all.size(); ++i) run.trainer.step();
  });
  CHECK(has(message, "the gradient of 'block1.weight' is not finite"));
  CHECK(run.trainer.steps() == 11 * 125 + 1);  // 12 divisions by the square root of two, 125 steps from one to the next
}
