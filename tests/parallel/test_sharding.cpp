// Shards of parameters and gradients: what is whole when, what is gathered while layers compute, and how many bytes that takes.
#include "train/parallel/sharding.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/gpt/language_task.h"
#include "nn/layers/basic.h"
#include "plan/float_plan.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "train/parallel/stages.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

using test::world;

// --- Layers that are watched ---

// Called at the begin of each pass through a layer, when its parameters are whole.
using Watch = std::function<void(std::size_t layer, bool backward)>;

class Watched final : public nn::Layer {
 public:
  Watched(std::size_t number, std::size_t width, const Watch& watch)
      : number_(number), linear_(fmt::format("{}", number), width, width, options()), watch_(watch) {}
  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& x) override {
    watch_(number_, false);
    return linear_.forward(pass, x);
  }
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override {
    watch_(number_, true);
    return linear_.backward(pass, dy);
  }
  void add_parameters(std::vector<nn::Parameter*>& all) override { linear_.add_parameters(all); }
  nn::Shape output(const nn::Shape& x) const override { return linear_.output(x); }
  double cost(const nn::Shape& x) const override { return linear_.cost(x); }
  std::uint64_t stash_bytes(const nn::Shape& x, DType values) const override { return linear_.stash_bytes(x, values); }

 private:
  static nn::LinearOptions options() {
    nn::LinearOptions options;
    options.bias = false;
    options.deviation = 0.06;
    return options;
  }

  std::size_t number_;
  nn::Linear linear_;
  const Watch& watch_;
};

// Equal layers, of eight chunks each, which data-parallel processes have shards of.
struct WatchedRun {
  static constexpr std::size_t layers = 4, width = 256, rows = 2;
  static constexpr std::uint64_t block_bytes = width * width * sizeof(float);

  WatchedRun(ShardLevel level, std::size_t micro_batches, double average = 0)
      : grid(test::data_grid(&world())),
        task(net(), {rows, width}, [this](std::uint64_t step, std::uint64_t micro_batch) { return batch(step, micro_batch); }),
        trainer(engine, task, options(micro_batches, average), layout(level)) {}

  std::shared_ptr<nn::Sequence> net() {
    auto net = std::make_shared<nn::Sequence>();
    for (std::size_t i = 0; i < layers; ++i) net->add(std::make_unique<Watched>(i, width, watch));
    return net;
  }
  Classification::Batch batch(std::uint64_t step, std::uint64_t micro_batch) {
    Random random(100 * step + micro_batch, Stream::test);
    std::vector<float> x(rows * width);
    for (float& value : x) value = static_cast<float>(random.normal());
    const std::vector<std::int32_t> labels{x[0] > 0 ? 1 : 0, x[width] > 0 ? 1 : 0};
    return {engine.from(std::span<const float>(x), {rows, width}, nn::Use::data),
            engine.from(std::span<const std::int32_t>(labels), {rows}, nn::Use::data)};
  }
  // micro_batches: of each process.
  static TrainOptions options(std::size_t micro_batches, double average) {
    TrainOptions options;
    options.micro_batches = micro_batches * static_cast<std::size_t>(world().size());
    options.rate.peak = 0.01;
    options.optimizer.average = average;
    return options;
  }
  Layout layout(ShardLevel level) {
    Layout layout;
    layout.grid = grid.get();
    layout.shard = level;
    return layout;
  }
  mpi::Traffic gathered() { return grid->data().traffic(mpi::Collective::all_gather); }
  // Bytes of a block that this process has.
  static std::uint64_t own_bytes() {
    const auto rank = static_cast<std::uint64_t>(world().rank());
    const auto ranks = static_cast<std::uint64_t>(world().size());
    constexpr std::uint64_t chunks = width * width / nn::squares_chunk;
    return (chunks * (rank + 1) / ranks - chunks * rank / ranks) * nn::squares_chunk * sizeof(float);
  }

  Watch watch = [](std::size_t, bool) {};
  nn::Engine engine;
  std::unique_ptr<mpi::Grid> grid;
  Classification task;
  Trainer trainer;
};

// Passes of a step in their order: every micro-batch forward and backward.
std::vector<LayerPass> expected_passes(std::size_t micro_batches) {
  std::vector<LayerPass> passes;
  for (std::size_t m = 0; m < micro_batches; ++m) {
    for (std::size_t i = 0; i < WatchedRun::layers; ++i) passes.push_back({i, false});
    for (std::size_t i = WatchedRun::layers; i > 0; --i) passes.push_back({i - 1, true});
  }
  return passes;
}

}  // namespace

TEST_CASE("the parameters of the next block are gathered while a block computes, two are whole at most", "[sharding]") {
  constexpr std::size_t micro_batches = 3;
  WatchedRun run(ShardLevel::parameters, micro_batches);
  const std::vector<LayerPass> expected = expected_passes(micro_batches);
  nn::Pool& pool = run.engine.pool();
  const std::uint64_t own = WatchedRun::layers * WatchedRun::own_bytes();
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    std::vector<LayerPass> passes;
    std::uint64_t gathers = 1;  // the first block's, which nothing hides
    const mpi::Traffic before = run.gathered();
    run.watch = [&](std::size_t layer, bool backward) {
      const std::size_t i = passes.size();
      passes.push_back({layer, backward});
      CAPTURE(i, layer, backward);
      // A block that is passed twice in a row stays whole.
      const bool has_other_next = i + 1 < expected.size() && expected[i + 1].layer != layer;
      gathers += has_other_next ? 1 : 0;
      CHECK(run.gathered().calls - before.calls == gathers);
      CHECK(pool.count(nn::Use::parameters).now == own + (has_other_next ? 2 : 1) * WatchedRun::block_bytes);
      // Gradients: the block's own, and those that are summed of the block before.
      const bool sums = i > WatchedRun::layers;
      CHECK(pool.count(nn::Use::gradients).now == own + ((backward ? 1 : 0) + (sums ? 1 : 0)) * WatchedRun::block_bytes);
    };
    pool.reset_peaks();
    run.trainer.step();
    CHECK(passes == expected);
    CHECK(pool.count(nn::Use::parameters).peak == own + 2 * WatchedRun::block_bytes);
    CHECK(pool.count(nn::Use::gradients).peak == own + 2 * WatchedRun::block_bytes);
    CHECK(pool.count(nn::Use::parameters).now == own);
    CHECK(pool.count(nn::Use::gradients).now == own);
    // Six others follow a block in each micro-batch, and one between two of them is the same.
    CHECK(gathers == 1 + 6 * micro_batches);
    const std::uint64_t sent = world().size() == 1 ? 0 : gathers * WatchedRun::own_bytes();
    CHECK(run.gathered().calls - before.calls == gathers);
    CHECK(run.gathered().bytes_sent - before.bytes_sent == sent);
  }
}

TEST_CASE("gradients are summed while the backward pass goes on, in the order of micro-batches", "[sharding]") {
  constexpr std::size_t micro_batches = 3;
  std::vector<std::byte> expected;
  for (const bool progress_thread : {true, false}) {
    const test::Configured configured(world(), {.progress_thread = progress_thread});
    for (const ShardLevel level : {ShardLevel::gradients, ShardLevel::parameters}) {
      CAPTURE(progress_thread, static_cast<int>(level));
      WatchedRun run(level, micro_batches);
      const auto sums = [&] { return run.grid->data().traffic(mpi::Collective::reduce_scatter).calls; };
      std::uint64_t started = 0;
      run.watch = [&](std::size_t layer, bool backward) {
        CHECK(sums() == started);  // of all blocks before in this backward pass
        if (backward) ++started;
        static_cast<void>(layer);
      };
      for (int step = 0; step < 2; ++step) run.trainer.step();
      CHECK(sums() == 2 * micro_batches * WatchedRun::layers);
      const std::vector<std::byte> state = test::saved(run.trainer).serialize();
      if (expected.empty()) expected = state;
      CHECK_FALSE(world().flag_any(state != expected));
    }
  }
  // With states of the optimiser alone as shards, gradients are summed in the last micro-batch.
  WatchedRun run(ShardLevel::optimizer, micro_batches);
  const auto sums = [&] { return run.grid->data().traffic(mpi::Collective::reduce_scatter).calls; };
  std::vector<std::uint64_t> seen;
  run.watch = [&](std::size_t, bool) { seen.push_back(sums()); };
  run.trainer.step();
  std::vector<std::uint64_t> last(2 * micro_batches * WatchedRun::layers, 0);
  for (std::size_t i = 0; i < WatchedRun::layers; ++i) last[last.size() - WatchedRun::layers + i] = i;
  CHECK(seen == last);
  CHECK(sums() == WatchedRun::layers);
}

namespace {

models::GptConfig gpt_config(bool recompute) {
  models::GptConfig config = test::small_gpt();
  config.layers = 6;
  config.dropout = 0.1;
  config.recompute = recompute;
  return config;
}

struct GptRun {
  // micro_batches: of each data rank; of one sequence.
  GptRun(const mpi::GridShape& shape, ShardLevel shard, plan::Recompute recompute, const std::string& schedule,
         std::size_t micro_batches)
      : grid(world(), shape),
        net(gpt_config(recompute == plan::Recompute::block)),
        task(net, 1, test::chains(net.config(), 1)),
        trainer(engine, task, options(shape, micro_batches, recompute), layout(shard, recompute, schedule)) {
    plan.train.optimizer = options(shape, micro_batches, recompute).optimizer;
    plan.batch = micro_batches * static_cast<std::size_t>(shape.data);
    plan.schedule = schedule;
    plan.chunks = chunks(schedule);
    plan.partition = parts(schedule);
    plan.shard = shard;
    plan.recompute = recompute;
  }
  static TrainOptions options(const mpi::GridShape& shape, std::size_t micro_batches, plan::Recompute recompute) {
    TrainOptions options;
    options.optimizer.narrow_moments = recompute != plan::Recompute::none;
    options.micro_batches = micro_batches * static_cast<std::size_t>(shape.data);
    options.rate.peak = 0.01;
    return options;
  }
  static std::size_t chunks(const std::string& schedule) { return find_schedule(schedule).takes_chunks ? 2 : 1; }
  Partition parts(const std::string& schedule) {
    return partition(std::vector<double>(9, 1), chunks(schedule) * static_cast<std::size_t>(grid.shape().pipeline));
  }
  Layout layout(ShardLevel shard, plan::Recompute recompute, const std::string& schedule) {
    Layout layout;
    layout.grid = &grid;
    layout.shard = shard;
    layout.schedule = schedule;
    layout.chunks = chunks(schedule);
    layout.partition = parts(schedule);
    layout.recompute_stages = recompute == plan::Recompute::stage;
    return layout;
  }
  plan::StagePlan planned() {
    return plan::plan_grid(plan::describe_gpt(net.config()), grid.shape(), plan, plan::FloatCluster())
        .stages[static_cast<std::size_t>(grid.pipeline().rank())];
  }

  nn::Engine engine;
  mpi::Grid grid;
  models::Gpt net;
  models::LanguageTask task;
  Trainer trainer;
  plan::FloatOptions plan;
};

}  // namespace

TEST_CASE("shards of a GPT take the memory of the plan, in every pipeline", "[sharding]") {
  std::size_t compared = 0;
  for (const mpi::GridShape& shape : mpi::shapes_of(world().size())) {
    if (shape.data == 1 || shape.tensor > 1) continue;
    for (const ShardLevel shard : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters}) {
      for (const plan::Recompute recompute : {plan::Recompute::none, plan::Recompute::block, plan::Recompute::stage}) {
        for (const char* schedule : {"1f1b", "gpipe", "interleaved"}) {
          if (shape.pipeline == 1 && std::string(schedule) != "1f1b") continue;
          CAPTURE(mpi::described(shape), static_cast<int>(shard), static_cast<int>(recompute), schedule);
          GptRun run(shape, shard, recompute, schedule, 4);
          const plan::StagePlan planned = run.planned();
          nn::Pool& pool = run.engine.pool();
          pool.reset_peaks();
          run.trainer.step();
          // The most that is whole at once beyond what is kept; values and gradients have theirs at different times.
          const auto beyond = [&](nn::Use use) { return pool.count(use).peak - pool.count(use).now; };
          const std::uint64_t values = beyond(nn::Use::parameters);
          const std::uint64_t gradients = beyond(nn::Use::gradients);
          CHECK((values > 0) == (shard == ShardLevel::parameters));
          CHECK((gradients > 0) == (shard != ShardLevel::optimizer));
          CHECK(planned.memory.gathered >= std::max(values, gradients));
          CHECK(planned.memory.gathered <= values + gradients);
          std::vector<std::int64_t> moments{static_cast<std::int64_t>(pool.count(nn::Use::optimizer).now)};
          run.grid.data().max(std::span(moments));
          CHECK(planned.memory.optimizer == static_cast<std::uint64_t>(moments[0]));
          ++compared;
        }
      }
    }
  }
  CHECK((compared > 0) == (world().size() > 1));
}

TEST_CASE("passes through the layers of a stage are those of its schedule", "[sharding]") {
  // Two stages with one layer each, and the loss, layer 2, on the second.
  const PipelineShape shape{2, 2, 1};
  const Partition parts{{0, 1}, {1, 2}};
  const Schedule schedule = make_schedule("gpipe", shape);
  const auto passes = [&](std::size_t stage, bool recompute) {
    return layer_passes(shape, stage, parts, recompute, schedule[stage], true);
  };
  const std::vector<LayerPass> first{{0, false}, {0, false}, {0, true}, {0, true}};
  const std::vector<LayerPass> first_again{{0, false}, {0, false}, {0, false}, {0, true}, {0, false}, {0, true}};
  const std::vector<LayerPass> last{{1, false}, {1, false}, {2, true}, {1, true}, {2, true}, {1, true}};
  const std::vector<LayerPass> last_late{{1, false}, {2, true}, {1, true}, {1, false}, {2, true}, {1, true}};
  CHECK(passes(0, false) == first);
  CHECK(passes(0, true) == first_again);
  CHECK(passes(1, false) == last);
  CHECK(passes(1, true) == last_late);
  const Schedule forward = forward_schedule(shape);
  CHECK(layer_passes(shape, 1, parts, true, forward[1], false) ==
        std::vector<LayerPass>{{1, false}, {2, false}, {1, false}, {2, false}});
}

// In its handler the rank waited for others to publish their shards, which knew nothing of the error: what was told in the end
// was that they did not come.
TEST_CASE("an error while averages stand in the places of shards waits for no other rank, unless all have it", "[sharding]") {
  for (const ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients}) {
    CAPTURE(static_cast<int>(level));
    WatchedRun run(level, 1, 0.5);
    for (int i = 0; i < 2; ++i) run.trainer.step();
    const auto values = [&] { return test::all_of(run.engine, run.trainer.parameters(), &nn::Parameter::value); };
    const std::vector<double> before = values();
    const auto message_of = [&](ErrorKind kind, const std::function<void()>& f) {
      return test::message_of(kind, [&] { run.trainer.averaged(f); });
    };
    std::vector<double> averages;
    const std::string shared = message_of(ErrorKind::data, [&] {
      averages = values();
      world().check("all have it", ErrorKind::data);
    });
    CHECK(test::has(shared, "all have it"));
    CHECK(averages != before);
    CHECK(values() == before);
    const std::uint64_t hash = run.trainer.parameters_hash();
    std::uint64_t gathers = 0;
    const std::string own = message_of(ErrorKind::io, [&] {
      gathers = run.gathered().calls;
      fail(ErrorKind::io, "the disk is full");
    });
    CHECK(own == "the disk is full");
    if (world().size() > 1) CHECK(run.gathered().calls == gathers);
    CHECK(run.trainer.parameters_hash() == hash);  // of the shards
  }
}

TEST_CASE("a pass that no schedule told of is an error", "[sharding]") {
  nn::Engine engine;
  nn::Linear layer("layer", 4, 4);
  const std::unique_ptr<mpi::Grid> grid = test::data_grid(&world());
  Sharding sharding(engine, grid->data(), {nn::parameters_of(layer), {}}, {}, {.level = ShardLevel::parameters});
  const std::vector<std::size_t> none;
  sharding.begin_passes(none);
  sharding.enter(1, BlockPass::forward);  // nothing to gather
  CHECK(test::message_of(ErrorKind::internal, [&] { sharding.enter(0, BlockPass::forward); }) ==
        "sharding: a pass enters block 0; expected none");
}

}  // namespace bitloom::train
