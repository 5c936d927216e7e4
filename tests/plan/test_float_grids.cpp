// Grids of a number of ranks: which are possible, which are best, and what is said of those that are not.
#include "plan/float_grids.h"

#include <vector>

#include "tests/plan/float_plans.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::plan;
using bitloom::test::equal_layers;
using bitloom::test::fast_links;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::options_of;
using mpi::GridShape;

TEST_CASE("a partition that is given takes the place of the one by operations", "[float_plan]") {
  const FloatModel model = equal_layers(5, 1);
  FloatOptions options = options_of(4, 1);
  options.partition = train::parse_partition("1,4", 5, 2);
  const FloatPlan plan = plan_grid(model, {1, 2, 1}, options, fast_links());
  CHECK(plan.stages[1].layers == std::vector<train::LayerRange>{{1, 5}});
  CHECK(plan.stages[1].compute == Approx(4 * plan.stages[0].compute));
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         plan_grid(model, {1, 3, 1}, options, fast_links());
                       }),
            "`partition`: 2 parts of 5 layers; expected 3 of 5"));
}

TEST_CASE("grids are enumerated, those first that fit and are fast", "[float_plan]") {
  const models::GptConfig config = models::config_of(models::find_gpt("gpt2-124m"));
  const FloatModel model = describe_gpt(config);
  FloatCluster cluster;
  cluster.memory = std::uint64_t{2} << 30U;
  FloatOptions options = options_of(64, 0);
  const std::vector<FloatPlan> plans = plan_grids(model, 16, {}, options, cluster);
  // Tensor ranks divide the 12 heads: 1, 2, 4. Stages: 1, 2, 4, 8, with one tensor rank 16, which 15 layers do not have.
  CHECK(plans.size() == 4 + 4 + 3);
  CHECK(plans.front().fits);
  for (std::size_t i = 1; i < plans.size(); ++i) {
    CHECK(plans[i - 1].fits >= plans[i].fits);
    if (plans[i].fits) CHECK(plans[i - 1].seconds <= plans[i].seconds);
    CHECK(64 % (static_cast<std::size_t>(plans[i].grid.data) * plans[i].micro_batch) == 0);
  }
  // Each is what its grid and micro-batch alone give.
  for (const FloatPlan& plan : plans) {
    options.micro_batch = plan.micro_batch;
    CHECK(plan_grid(model, plan.grid, options, cluster).seconds == plan.seconds);
  }
  options.micro_batch = 0;
  for (const FloatPlan& plan : plan_grids(model, 16, {{}, 2}, options, cluster)) CHECK(plan.grid.tensor == 2);
  const std::vector<FloatPlan> one = plan_grids(model, 16, {4, 2}, options, cluster);
  REQUIRE(one.size() == 1);
  CHECK(one.front().grid == GridShape{2, 4, 2});
}

TEST_CASE("a micro-batch is chosen that fits and keeps ranks busy", "[float_plan]") {
  models::GptConfig config = models::config_of(models::find_gpt("small"));
  config.vocabulary = 257;
  const FloatModel model = describe_gpt(config);
  const auto need = [&](std::size_t sequences) {
    return plan_grid(model, {}, options_of(sequences, sequences), fast_links()).memory().total();
  };
  const auto chosen = [&](std::size_t batch, std::uint64_t memory, const GridShape& grid = {}, std::size_t enough = 4096,
                          std::size_t given = 0) {
    FloatCluster cluster = fast_links();
    cluster.memory = memory;
    return choose_micro_batch(model, grid, options_of(batch, given), cluster, enough, "less of it takes less");
  };
  constexpr std::uint64_t any = std::uint64_t{1} << 40U;
  CHECK(chosen(24, need(1)) == 1);
  CHECK(has(message_of(ErrorKind::usage, [&] { chosen(24, need(1) - 1); }), "`micro_batch`: one sequence takes"));
  CHECK(has(message_of(ErrorKind::usage, [&] { chosen(24, need(1) - 1); }), "less of it takes less"));
  CHECK(chosen(24, need(7)) == 6);
  // 16 sequences have 4096 tokens; 24 are the next divisor.
  CHECK(chosen(48, any) == 16);
  CHECK(chosen(48, any, {}, 8192) == 48);
  CHECK(chosen(24, any) == 24);
  // Two data ranks have 24 of 48 sequences each, of which two stages get eight micro-batches.
  CHECK(chosen(48, any, {2, 2, 1}) == 3);
  CHECK(chosen(48, any, {2, 1, 1}) == 24);
  // A given size is taken, and refused where several ranks have no room for it.
  CHECK(chosen(48, any, {}, 4096, 4) == 4);
  CHECK(chosen(48, 1, {}, 4096, 4) == 4);
  CHECK(has(message_of(ErrorKind::usage, [&] { chosen(48, 1, {2, 2, 1}, 4096, 4); }), "no grid of 4 ranks would fit"));
  CHECK(has(message_of(ErrorKind::usage, [&] { chosen(48, any, {}, 4096, 5); }), "`micro_batch`: 5; expected a divisor of 48"));
}

// It ended as an internal error, at the first message of a step.
TEST_CASE("micro-batches that are too large for a message between stages are neither planned nor chosen", "[float_plan]") {
  // 256 MiB an example: eight of them are 2 GiB, which MPI's ints do not count.
  FloatModel model = equal_layers(4, std::uint64_t{1} << 26U);
  const GridShape stages{1, 2, 1};
  const std::string reason =
      "`micro_batch`: 8; expected at most 7, since stages hand on 256.0 MiB of an example, and at most 2.0 GiB at once";
  CHECK(reason_against(model, stages, options_of(64, 8)) == reason);
  CHECK(has(message_of(ErrorKind::usage, [&] { plan_grid(model, stages, options_of(64, 8), fast_links()); }), reason));
  CHECK(reason_against(model, stages, options_of(56, 7)).empty());
  CHECK(reason_against(model, {}, options_of(64, 64)).empty());
  FloatOptions narrow = options_of(64, 8);
  narrow.train.values = DType::bf16;
  CHECK(reason_against(model, stages, narrow).empty());
  const auto chosen = [&](const GridShape& grid) {
    return choose_micro_batch(model, grid, options_of(64, 0), fast_links(), 1000, "less of it takes less");
  };
  CHECK(chosen(stages) == 4);  // eight would leave four for each stage
  CHECK(chosen({}) == 64);
  for (const FloatPlan& plan : plan_grids(model, 4, {}, options_of(64, 0), fast_links())) {
    CHECK((plan.grid.pipeline == 1 || plan.micro_batch <= 4));
  }
  // Where the net is cut counts.
  for (std::size_t i : {1, 2, 3}) model.layers[i].output = 1;
  FloatOptions cut = options_of(64, 8);
  cut.partition = train::parse_partition("2,2", 4, 2);
  CHECK(reason_against(model, stages, cut).empty());
  cut.partition = train::parse_partition("1,3", 4, 2);
  CHECK(reason_against(model, stages, cut) == reason);
  const FloatModel huge = equal_layers(4, std::uint64_t{1} << 30U);
  CHECK(has(message_of(ErrorKind::usage,
                       [&] { choose_micro_batch(huge, stages, options_of(8, 0), fast_links(), 1, "less of it takes less"); }),
            "`pipeline`: 2; expected 1, since stages hand on 4.0 GiB of an example"));
}

TEST_CASE("a grid is possible where nothing is against it and it fits", "[float_plan]") {
  const FloatModel model = equal_layers(4, 5);
  FloatCluster cluster = fast_links();
  cluster.memory = plan_grid(model, {}, options_of(8, 4), fast_links()).memory().total();
  CHECK(is_possible(model, {}, options_of(8, 4), cluster));
  CHECK_FALSE(is_possible(model, {}, options_of(8, 3), cluster));
  CHECK_FALSE(is_possible(model, {1, 5, 1}, options_of(8, 1), cluster));
  --cluster.memory;
  CHECK_FALSE(is_possible(model, {}, options_of(8, 4), cluster));
  CHECK(is_possible(model, {}, options_of(8, 2), cluster));
}

TEST_CASE("grids that are impossible are refused with possible ones near by", "[float_plan]") {
  const FloatModel model = describe_gpt(models::config_of(models::find_gpt("gpt2-124m")));
  const auto refusal = [&](int ranks, const GridWish& wish, const FloatOptions& options) {
    return message_of(ErrorKind::usage, [&] { plan_grids(model, ranks, wish, options, FloatCluster()); });
  };
  const std::string heads = refusal(16, {1, 8}, options_of(64, 0));
  CHECK(has(heads, "`tensor`: 8; expected a divisor of the 12 heads"));
  CHECK(has(heads, "possible near by (data x pipeline x tensor): 4 x 1 x 4"));
  CHECK(has(refusal(16, {3, 1}, options_of(64, 0)), "expected a divisor of 16 ranks"));
  CHECK(has(refusal(16, {1, 3}, options_of(64, 0)), "divide 16 ranks"));
  CHECK(has(refusal(64, {32, 1}, options_of(64, 0)), "`pipeline`: 32; expected at most the 15 layers"));
  CHECK(has(refusal(16, {1, 1}, options_of(24, 0)), "`batch`: 24; expected a multiple of the 16 data-parallel ranks"));
  CHECK(has(refusal(16, {1, 1}, options_of(64, 3)), "`micro_batch`: 3; expected a divisor of 4"));
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         plan_grid(model, {1, 1, 5}, options_of(8, 1), FloatCluster());
                       }),
            "`tensor`: 5; expected a divisor of the 12 heads"));
  CHECK(has(message_of(ErrorKind::usage, [&] { plan_grid(model, {}, options_of(8, 0), FloatCluster()); }), "`micro_batch`: 0"));
  const FloatModel cells = describe_amoebanet_d(18, 208);
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         plan_grid(cells, {1, 1, 2}, options_of(8, 1), FloatCluster());
                       }),
            "`tensor`: 2; expected 1: AmoebaNet-D (18,208) has no attention"));
  CHECK(has(message_of(ErrorKind::usage, [] { train::shard_level_named("optimiser"); }),
            "`shard`: 'optimiser'; did you mean 'optimizer'?"));
  CHECK(has(message_of(ErrorKind::usage, [] { find_recompute("stages"); }), "`recompute`: 'stages'; did you mean 'stage'?"));
}

TEST_CASE("a grid that does not fit names the one that would", "[float_plan]") {
  const FloatModel model = describe_gpt(models::config_of(models::find_gpt("8.3b")));
  FloatOptions options = options_of(64, 1);
  options.train.values = DType::bf16;
  FloatCluster cluster;
  cluster.memory = std::uint64_t{32} << 30U;
  const FloatPlan plan = plan_grid(model, {64, 1, 1}, options, cluster);
  CHECK_FALSE(plan.fits);
  const std::string message = describe_misfit(model, plan, options, cluster);
  INFO(message);
  CHECK(has(message, "stage 0 takes "));
  CHECK(has(message, "more than the 32.0 GiB there are; "));
  CHECK(has(message, "would fit, with "));
  // Grids of other numbers of stages were left out where parts were given by hand.
  FloatOptions by_hand = options;
  by_hand.partition = {{0, model.layers.size()}};
  CHECK(describe_misfit(model, plan, by_hand, cluster) == message);
  cluster.memory = std::uint64_t{1} << 20U;
  CHECK(has(describe_misfit(model, plan, options, cluster), "no grid of 64 ranks would fit: "));
}

TEST_CASE("the most examples at once are those that fit", "[float_plan]") {
  const auto bytes = [](std::size_t examples) { return 100 + 7 * std::uint64_t{examples}; };
  CHECK(most_examples(bytes, 106) == 0);
  CHECK(most_examples(bytes, 107) == 1);
  CHECK(most_examples(bytes, 120) == 2);
  for (std::size_t examples = 1; examples < 70; ++examples) {
    CHECK(most_examples(bytes, bytes(examples)) == examples);
    CHECK(most_examples(bytes, bytes(examples + 1) - 1) == examples);
  }
}
