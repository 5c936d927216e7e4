// Bytes that ranks of a float training send, worked out by hand.
#include "plan/float_plan.h"

#include <vector>

#include "tests/plan/float_plans.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::plan;
using bitloom::test::options_of;
using bitloom::test::small_config;
using mpi::GridShape;
using train::ShardLevel;

TEST_CASE("bytes that ranks send are those worked out by hand", "[float_plan]") {
  // 2 x 2 x 2 ranks, batches of 8: two micro-batches of 2 sequences. Stages: embedding, dropout, a block; a block, a norm.
  const FloatModel model = describe_gpt(small_config());
  FloatOptions options = options_of(8, 2);
  const GridShape grid{2, 2, 2};
  const FloatPlan plan = plan_grid(model, grid, options, FloatCluster());
  REQUIRE(plan.micro_batches == 2);
  REQUIRE(plan.stages.size() == 2);
  CHECK(plan.stages[0].layers == std::vector<train::LayerRange>{{0, 3}});
  CHECK(plan.stages[1].layers == std::vector<train::LayerRange>{{3, 5}});
  constexpr std::uint64_t hidden = 2 * 6 * 8 * 4;  // bytes of b s h numbers
  constexpr std::uint64_t scalars = 2 * 6 * 4;     // of b s
  constexpr std::uint64_t table = 10 * 8 * 4;      // of a rank's half of the 20 rows
  // Bytes of losses and their number; of sums of squares, one for each parameter, as all are small.
  constexpr std::uint64_t losses = 16;
  constexpr std::uint64_t squares = 8 * (2 + 2 * 12 + 2);
  constexpr std::uint64_t divided = 8 * (1 + 2 * 6);  // of those that ranks have parts of

  // Tensor: one sum for the embedding, 2 + 2 for a block; the largest logit, that of the target and the sum of exponentials of
  // every token, and the gradient of hidden states.
  CHECK(plan.stages[0].tensor.sums == 2 * (1 + 4) * hidden + divided);
  CHECK(plan.stages[0].tensor.maxima == 0);
  CHECK(plan.stages[0].layer_sums == 2 * 5);
  CHECK(plan.stages[1].tensor.sums == 2 * (4 * hidden + 2 * scalars + hidden) + divided);
  CHECK(plan.stages[1].tensor.maxima == 2 * scalars);
  CHECK(plan.stages[1].layer_sums == 2 * 4);
  // Pipeline: an activation forward, its gradient backward, for each micro-batch; the two gradients of the table.
  CHECK(plan.stages[0].pipeline.messages == 2 * hidden + table);
  CHECK(plan.stages[1].pipeline.messages == 2 * hidden + table);
  CHECK(plan.stages[0].pipeline.sums == squares);
  CHECK(plan.stages[0].pipeline.broadcasts == 0);
  CHECK(plan.stages[1].pipeline.broadcasts == losses);
  // Data: half of the table, positions; half of a block's matrices, its shared vectors and half of the others.
  constexpr std::uint64_t block = 12 * 64 / 2 + 6 * 8 + 7 * 8 / 2;
  constexpr std::uint64_t first = 10 * 8 + 6 * 8 + block;
  constexpr std::uint64_t second = block + 2 * 8 + 10 * 8;
  CHECK(plan.stages[0].data.sums == 4 * first + losses);
  CHECK(plan.stages[1].data.sums == 4 * second + losses);
  CHECK(plan.stages[0].data.total() == 4 * first + losses);

  SECTION("blocks that are computed again sum what they give once more") {
    options.recompute = Recompute::block;
    const FloatPlan again = plan_grid(model, grid, options, FloatCluster());
    CHECK(again.stages[0].tensor.sums == 2 * (1 + 6) * hidden + divided);
    CHECK(again.stages[1].tensor.sums == 2 * (6 * hidden + 2 * scalars + hidden) + divided);
    CHECK(again.stages[1].layer_sums == 2 * 6);
    CHECK(again.stages[0].pipeline.messages == plan.stages[0].pipeline.messages);
  }
  SECTION("stages that are computed again do so too, but the last, which was not before") {
    options.recompute = Recompute::stage;
    const FloatPlan again = plan_grid(model, grid, options, FloatCluster());
    CHECK(again.stages[0].tensor.sums == 2 * (1 + 1 + 6) * hidden + divided);
    CHECK(again.stages[1].tensor.sums == plan.stages[1].tensor.sums);
  }
  SECTION("shards are reduced and gathered") {
    const auto of_first = [&](ShardLevel shard) {
      options.shard = shard;
      return plan_grid(model, grid, options, FloatCluster()).stages[0];
    };
    // Parameters this small are not cut. The second rank has table and positions, which are alone in their blocks, and the
    // second half of the block: its second norm and its feed-forward part.
    constexpr std::uint64_t bytes = 4 * first;
    constexpr std::uint64_t matrices = 10 * 8 + 6 * 8 + 2 * 8 * 32 / 2;
    constexpr std::uint64_t vectors = 2 * 8 + 32 / 2 + 8;
    constexpr std::uint64_t shard = 4 * (matrices + vectors);
    const StagePlan optimizer = of_first(ShardLevel::optimizer);
    CHECK(optimizer.data.sums == losses + squares);
    CHECK(optimizer.data.reduce_scatters == bytes);
    CHECK(optimizer.data.all_gathers == shard);
    CHECK(optimizer.memory.optimizer == 2 * shard);
    CHECK(optimizer.memory.gradients == bytes);
    CHECK(optimizer.memory.gathered == 0);
    CHECK(optimizer.memory.checkpoint == 3 * bytes / 2);
    CHECK(of_first(ShardLevel::none).memory.checkpoint == 3 * bytes / 2);  // of what both data ranks have each copies half
    const StagePlan gradients = of_first(ShardLevel::gradients);
    CHECK(gradients.data.reduce_scatters == 2 * bytes);  // after each micro-batch
    CHECK(gradients.data.all_gathers == shard);
    CHECK(gradients.memory.gradients == shard);
    CHECK(gradients.memory.parameters == bytes);
    CHECK(gradients.memory.gathered == bytes);  // the stage has two layers with parameters
    const StagePlan parameters = of_first(ShardLevel::parameters);
    CHECK(parameters.data.reduce_scatters == 2 * bytes);
    // For every forward and backward pass, but not for the block's first backward pass, which follows its forward pass.
    constexpr std::uint64_t tables = 10 * 8 + 6 * 8;
    CHECK(parameters.data.all_gathers == 3 * shard + 4 * tables);
    CHECK(parameters.memory.parameters == shard);
    CHECK(parameters.memory.gathered == 2 * bytes);
    // Values that ops read in 16 bits are gathered in 16 bits; vectors are not.
    options.train.values = DType::bf16;
    const StagePlan halves = of_first(ShardLevel::parameters);
    CHECK(halves.data.all_gathers == 3 * (matrices * 2 + vectors * 4) + 2 * tables);
    CHECK(halves.memory.parameters == matrices * 6 + vectors * 4);
    // Their masters go with the optimiser, and what it comes to is gathered in 16 bits, too.
    const StagePlan masters = of_first(ShardLevel::optimizer);
    constexpr std::uint64_t all_vectors = 6 * 8 + 7 * 8 / 2;
    CHECK(masters.memory.parameters == (first - all_vectors) * 2 + all_vectors * 4 + matrices * 4);
    CHECK(masters.data.all_gathers == matrices * 2 + vectors * 4);
  }
}
