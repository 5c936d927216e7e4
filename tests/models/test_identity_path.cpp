// Nets whose identity path, from the embeddings to the last norm, has 32 bits where residual branches have f16 (Ramesh et al.
// 2021, figure 4).
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "models/dalle/dalle_task.h"
#include "models/dalle/pairs.h"
#include "nn/floats.h"
#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "tests/models/dalle_nets.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "train/memory.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;

namespace {

constexpr std::size_t path_width = 16;

// Residual blocks whose branches give about a tenth; branch_values: V where x has P.
std::unique_ptr<nn::Sequence> small_branches(std::size_t blocks, std::optional<DType> branch_values) {
  auto net = std::make_unique<nn::Sequence>();
  nn::LinearOptions linear;
  linear.deviation = 0.025;
  for (std::size_t i = 0; i < blocks; ++i) {
    auto branch = std::make_unique<nn::Sequence>();
    branch->emplace<nn::LayerNorm>("norm" + std::to_string(i), path_width, branch_values);
    branch->emplace<nn::Linear>("linear" + std::to_string(i), path_width, path_width, linear);
    net->emplace<nn::Residual>(std::move(branch), i);
  }
  return net;
}

struct PathResult {
  std::vector<float> change;  // of y from x
  std::vector<float> dx;
  DType y_type, dx_type;
};

// x: numbers about 500, of which f16 has every half. Gradients have a factor of 16 in branches.
PathResult through_path(DType values, std::optional<DType> branch_values) {
  nn::Engine engine({}, "ref");
  const std::unique_ptr<nn::Sequence> net = small_branches(8, branch_values);
  nn::initialise(engine, nn::parameters_of(*net), values, 7);
  std::vector<float> start(4 * path_width);
  for (std::size_t i = 0; i < start.size(); ++i) start[i] = 480.0F + static_cast<float>(i * 7 % 41);
  const DType around = branch_values ? DType::f32 : values;
  const nn::Tensor x =
      nn::converted(engine, engine.from(std::span<const float>(start), {4, path_width}, nn::Use::data), around);
  const nn::BranchScales scales = {values, [](std::size_t) { return 16.0; }};
  nn::Stash stash;
  nn::Pass pass{engine};
  pass.stash = &stash;
  pass.branch_scales = &scales;
  const nn::Tensor y = net->forward(pass, x);
  CHECK(stash.bytes() == net->stash_bytes(x.shape(), values));
  PathResult found;
  found.y_type = y.dtype();
  found.change = nn::to_floats(engine, y);
  for (std::size_t i = 0; i < start.size(); ++i) found.change[i] -= start[i];
  const nn::Tensor dy =
      nn::converted(engine, engine.from(std::span<const float>(start), {4, path_width}, nn::Use::data), DType::f32);
  const nn::Tensor dx = net->backward(pass, dy);
  found.dx_type = dx.dtype();
  found.dx = nn::to_floats(engine, dx);
  return found;
}

// A small GPT by Trainer.
struct GptStep {
  GptStep(const GptConfig& config, const train::TrainOptions& options)
      : engine({}, "ref"), net(config), task(net, 2, test::chains(config, 1)), trainer(engine, task, options) {}
  nn::Shape shape() const { return task.input_shape(); }

  nn::Engine engine;
  Gpt net;
  LanguageTask task;
  train::Trainer trainer;
};

// A small text-to-image transformer.
struct DalleStep {
  DalleStep(const DalleConfig& config, const train::TrainOptions& options)
      : engine({}, "ref"),
        net(config),
        task(
            net, 2, [&config](std::uint64_t, std::uint64_t) { return batch(config); },
            [&config](std::uint64_t) {
              const DalleBatch all = batch(config);
              return DalleTokens{text_tokens_of(config, all.text), all.codes.size()};
            }),
        trainer(engine, task, options) {}
  static DalleBatch batch(const DalleConfig& config) {
    DalleBatch batch{{1, 6, 2, -1, -1, 0, 5, 4, 3, 2}, {}};
    for (std::size_t i = 0; i < 2 * config.image(); ++i) batch.codes.push_back(static_cast<std::int32_t>(i * i % config.codes));
    return batch;
  }
  nn::Shape shape() const { return task.input_shape(); }

  nn::Engine engine;
  Dalle net;
  DalleTask task;
  train::Trainer trainer;
};

GptConfig net_of_step(GptStep*) { return test::small_gpt(); }

DalleConfig net_of_step(DalleStep*) { return test::small_dalle(); }

train::TrainOptions f16_options() {
  train::TrainOptions options;
  options.values = DType::f16;
  options.loss_scale.emplace();
  options.block_scales.emplace();
  return options;
}

}  // namespace

TEST_CASE("what f16 would round away on the identity path stays in 32 bits", "[identity_path]") {
  const PathResult exact = through_path(DType::f32, {});
  const PathResult wide = through_path(DType::f16, DType::f16);
  const PathResult narrow = through_path(DType::f16, {});
  CHECK(wide.y_type == DType::f32);
  CHECK(wide.dx_type == DType::f32);
  CHECK(narrow.y_type == DType::f16);
  CHECK(compare(wide.change, exact.change, 0.01) == "");
  CHECK(compare(narrow.change, exact.change, 0.3) != "");
  CHECK(compare(wide.dx, exact.dx, 1e-3) == "");
}

TEMPLATE_TEST_CASE("a transformer with 32 bits on its identity path learns as in f32, in the memory that was predicted",
                   "[identity_path]", GptStep, DalleStep) {
  for (const bool recompute : {false, true}) {
    CAPTURE(recompute);
    auto config = net_of_step(static_cast<TestType*>(nullptr));
    config.recompute = recompute;
    config.dropout = 0.1;
    TestType exact(config, {});
    config.branch_values = DType::f16;
    const train::TrainOptions options = f16_options();
    TestType wide(config, options);
    const train::MemoryNeeds needs = train::predict_memory(wide.net.layers(), wide.shape(), options);
    wide.engine.pool().reset_peaks();
    const train::StepReport expected = exact.trainer.step();
    const train::StepReport found = wide.trainer.step();
    CHECK(wide.engine.pool().count(nn::Use::stash).peak == needs.stash);
    CHECK(found.loss == Approx(expected.loss).epsilon(1e-3));
    CHECK(found.gradient_norm == Approx(expected.gradient_norm).epsilon(0.01));
    CHECK(found.skipped_blocks == 0);

    nn::Pass pass{wide.engine};
    pass.training = false;
    nn::Sequence& layers = wide.net.layers();
    nn::Tensor x = wide.task.input(pass);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = layers[i].forward(pass, x);
      CHECK(x.dtype() == (i + 1 < layers.size() ? DType::f32 : DType::f16));
    }
  }
}
