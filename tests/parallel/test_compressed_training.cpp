// GPTs that are trained by gradients of low rank: what they learn, send and keep.
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "models/gpt/language_task.h"
#include "plan/float_plan.h"
#include "tests/models/gpt_nets.h"
#include "tests/parallel/power_sgd_exchange.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

using test::world;

constexpr std::size_t micro_batches = 12;  // a multiple of 1, 2, 3 and 4

// comm: all of it data-parallel; none for a process alone.
struct CompressedRun {
  CompressedRun(std::size_t rank, mpi::Comm* comm, const PowerSgdOptions& compression = {}, DType values = DType::f32)
      : CompressedRun(rank, comm, compression, options(values)) {}
  CompressedRun(std::size_t rank, mpi::Comm* comm, const PowerSgdOptions& compression, const TrainOptions& train)
      : grid(test::data_grid(comm)),
        engine({}, train.values == DType::f16 ? "ref" : ""),  // the backend that has f16 on every machine
        net(test::small_gpt()),
        task(net, 1, test::chains(test::small_gpt(), micro_batches)),
        trainer(engine, task, train, layout(grid.get(), rank, compression)) {}

  static TrainOptions options(DType values) {
    TrainOptions options;
    options.values = values;
    options.rate.peak = 0.01;
    options.micro_batches = micro_batches;
    options.optimizer.clip = 1;
    return options;
  }
  static Layout layout(mpi::Grid* grid, std::size_t rank, const PowerSgdOptions& compression) {
    Layout layout;
    layout.grid = grid;
    layout.compress_rank = rank;
    layout.compression = compression;
    return layout;
  }
  double loss_after(std::size_t steps) { return test::loss_after(trainer, steps); }
  std::vector<double> parameters() { return test::all_of(engine, trainer.parameters(), &nn::Parameter::value); }

  std::unique_ptr<mpi::Grid> grid;
  nn::Engine engine;
  models::Gpt net;
  models::LanguageTask task;
  Trainer trainer;
};

}  // namespace

TEST_CASE("a GPT learns from gradients of low rank, and sends less", "[power_sgd]") {
  CompressedRun dense(0, &world());
  const std::uint64_t dense_before = dense.grid->data().traffic().bytes_sent;
  const double first = dense.loss_after(1);
  const double dense_loss = dense.loss_after(99);
  const std::uint64_t dense_bytes = dense.grid->data().traffic().bytes_sent - dense_before;
  for (const PowerSgdOptions& compression : {PowerSgdOptions{}, test::warm(), test::all_narrow()}) {
    for (const DType values : {DType::f32, DType::bf16}) {
      CompressedRun run(2, &world(), compression, values);
      const std::uint64_t run_before = run.grid->data().traffic().bytes_sent;
      const double loss = run.loss_after(100);
      UNSCOPED_INFO("loss " << first << " -> " << loss << ", dense " << dense_loss);
      CHECK(loss < dense_loss + 0.25 * (first - dense_loss));
      const std::uint64_t bytes = run.grid->data().traffic().bytes_sent - run_before;
      if (world().size() > 1) CHECK(bytes < 2 * dense_bytes / 3);
      test::saved(run.trainer);  // throws where processes have other parameters
    }
  }
}

TEST_CASE("Muon takes gradients of low rank", "[power_sgd]") {
  TrainOptions options = CompressedRun::options(DType::f32);
  options.optimizer.rule = "muon";
  CompressedRun run(2, &world(), {}, options);
  const double first = run.loss_after(1);
  CHECK(run.loss_after(40) < 0.8 * first);
  CHECK(test::same_everywhere(run.parameters()));
}

TEST_CASE("a training with gradients of low rank goes on in any number of processes", "[power_sgd]") {
  for (const PowerSgdOptions& compression : {PowerSgdOptions{}, test::warm()}) {
    CompressedRun run(2, &world(), compression);
    run.loss_after(10);
    TensorFile file = test::saved(run.trainer);
    CHECK(file.contains("power_sgd.error.blocks.0.attention.qkv.weight") == world().is_root());
    CHECK(!file.contains("power_sgd.error.tokens.weight"));
    CompressedRun again(2, &world(), compression);
    test::load(again.trainer, file);
    // Each process alone.
    const TensorFile copy = test::everywhere(world(), file);
    CompressedRun alone(2, nullptr, compression);
    test::load(alone.trainer, copy);
    CompressedRun forgetful(2, nullptr, compression);
    TensorFile without = copy;
    for (auto& [name, tensor] : without.tensors) {
      if (name.starts_with("power_sgd.error.")) tensor.bytes.fill_zero();
    }
    test::load(forgetful.trainer, without);

    // Sums of error buffers and gradients are rounded elsewhere, no more.
    const double loss = run.loss_after(5);
    CHECK(std::abs(again.loss_after(5) - loss) < 1e-4);
    CHECK(std::abs(alone.loss_after(5) - loss) < 1e-4);
    CHECK(test::compare(again.parameters(), run.parameters(), 1e-3) == "");
    CHECK(test::compare(alone.parameters(), run.parameters(), 1e-3) == "");
    forgetful.loss_after(5);
    CHECK(test::compare(forgetful.parameters(), run.parameters(), 1e-3) != "");
  }
}

// Error buffers had the scale of the step before, and what was kept for later counted twice as much where it had doubled.
TEST_CASE("a loss scale that changes is not seen in gradients of low rank", "[power_sgd][gradient_scales]") {
  for (const PowerSgdOptions& compression : {PowerSgdOptions{}, test::warm(), test::all_narrow()}) {
    CompressedRun plain(2, &world(), compression);
    TrainOptions options = CompressedRun::options(DType::f32);
    options.loss_scale = LossScaleOptions{.first = 64, .double_every = 2, .largest = 4096};
    CompressedRun scaled(2, &world(), compression, options);
    plain.loss_after(8);
    scaled.loss_after(8);
    CHECK(scaled.trainer.step().loss_scale == 1024);
    plain.trainer.step();
    CHECK(scaled.parameters() == plain.parameters());
  }
}

// As Ramesh et al. train theirs: f16, a scale for each block, factors.
TEST_CASE("a GPT of f16 learns from gradients of low rank under scales of blocks", "[power_sgd][gradient_scales]") {
  TrainOptions options = CompressedRun::options(DType::f16);
  options.block_scales.emplace();
  CompressedRun dense(0, &world(), {}, options);
  const double first = dense.loss_after(1);
  const double dense_loss = dense.loss_after(99);
  for (const PowerSgdOptions& compression : {PowerSgdOptions{}, test::all_narrow()}) {
    CompressedRun run(2, &world(), compression, options);
    const double loss = run.loss_after(100);
    UNSCOPED_INFO("loss " << first << " -> " << loss << ", dense " << dense_loss);
    CHECK(loss < dense_loss + 0.25 * (first - dense_loss));
    TensorFile file = test::saved(run.trainer);
    CompressedRun again(2, &world(), compression, options);
    test::load(again.trainer, file);
    CHECK(std::abs(again.loss_after(5) - run.loss_after(5)) < 0.02);
  }
}

TEST_CASE("a process alone that compresses goes on bit by bit", "[power_sgd]") {
  CompressedRun run(2, nullptr);
  run.loss_after(4);
  const TensorFile file = test::saved(run.trainer);
  CompressedRun again(2, nullptr);
  test::load(again.trainer, file);
  run.loss_after(4);
  again.loss_after(4);
  CHECK(again.parameters() == run.parameters());
}

TEST_CASE("checkpoints beside training have the error buffers, too", "[power_sgd]") {
  CompressedRun run(2, &world());
  run.loss_after(3);
  const TensorFile expected = test::saved(run.trainer);
  TensorFile file;
  run.trainer.begin_save([&](const std::map<std::string, StreamedTensor>& tensors) { file = test::file_of(tensors); });
  run.loss_after(2);
  run.trainer.end_save([] {});
  CHECK(file.serialize() == expected.serialize());
}

TEST_CASE("a gradient that is not finite is named where gradients are compressed", "[power_sgd]") {
  CompressedRun run(2, &world());
  run.loss_after(1);
  nn::Parameter* found = nullptr;
  for (nn::Parameter* parameter : run.trainer.parameters()) {
    if (parameter->name == "blocks.1.attention.qkv.weight") found = parameter;
  }
  REQUIRE(found != nullptr);
  std::vector<float> values = run.engine.to_host<float>(found->value);
  values[3] = std::numeric_limits<float>::infinity();
  run.engine.write(found->value, std::as_bytes(std::span(values)));
  const std::string message = test::message_of(ErrorKind::data, [&] { run.trainer.step(); });
  CHECK(test::has(message, "step 1: the gradient of '"));
  CHECK(test::has(message, "is not finite"));
}

TEST_CASE("error buffers are in the memory that is planned", "[power_sgd]") {
  const auto measured = [](std::size_t rank, bool is_warm) {
    CompressedRun run(rank, nullptr, is_warm ? test::warm() : PowerSgdOptions{});
    return run.engine.pool().count(nn::Use::optimizer).now;
  };
  const auto planned = [](std::size_t rank, bool is_warm) {
    plan::FloatOptions options;
    options.batch = micro_batches;
    options.compress_rank = rank;
    options.compress_warm = is_warm;
    options.train = CompressedRun::options(DType::f32);
    return plan::plan_grid(plan::describe_gpt(test::small_gpt()), {}, options, plan::FloatCluster()).memory();
  };
  // Some matrices go as they are with rank 14, by which factors would be larger.
  for (const bool is_warm : {false, true}) {
    for (const std::size_t rank : {1, 2, 14}) {
      CAPTURE(rank, is_warm);
      CHECK(measured(rank, is_warm) - measured(0, is_warm) == planned(rank, is_warm).optimizer - planned(0, is_warm).optimizer);
    }
    // A process's share of the sums of the error buffers of two blocks with 12 x 24 x 24 elements and, of a warm start, of the
    // last Q with two numbers for each column.
    const std::size_t elements = 2 * 12 * 24 * 24 + (is_warm ? 2 * 2 * 9 * 24 : 0);
    CHECK(planned(2, is_warm).checkpoint - planned(0, is_warm).checkpoint == elements * sizeof(float));
  }
  CHECK(planned(2, true).optimizer < planned(2, false).optimizer);
}

TEST_CASE("compression is refused with what it cannot be combined with", "[power_sgd]") {
  nn::Engine engine;
  models::Gpt net(test::small_gpt());
  models::LanguageTask task(net, 1, test::chains(test::small_gpt(), micro_batches));
  const auto refusal = [&](mpi::Grid& grid, DType values, ShardLevel shard) {
    return test::message_of(ErrorKind::usage, [&] {
      Layout layout = CompressedRun::layout(&grid, 4, {});
      layout.shard = shard;
      const Trainer trainer(engine, task, CompressedRun::options(values), layout);
    });
  };
  mpi::Grid data(world(), {world().size(), 1, 1});
  CHECK(refusal(data, DType::f32, ShardLevel::gradients) ==
        "`compress_rank`: 4 with `shard` gradients; expected `shard` none, or `shard_ranks` of which there are "
        "several groups");
  CHECK(refusal(data, DType::f64, ShardLevel::none) ==
        "`compress_rank`: 4 with `dtype` f64; expected `dtype` f32, bf16 or f16");
  if (world().size() == 1) return;
  mpi::Grid stages(world(), {1, world().size(), 1});
  CHECK(test::has(refusal(stages, DType::f32, ShardLevel::none), "expected `pipeline` 1"));
  mpi::Grid parts(world(), {1, 1, world().size()});
  CHECK(test::has(refusal(parts, DType::f32, ShardLevel::none), "expected `tensor` 1"));
}

}  // namespace bitloom::train
