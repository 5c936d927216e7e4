// Plans of float trainings on grids of ranks: sizes of papers, memory, bytes and time, by formulas worked out by hand.
#include "plan/float_plan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/progress.h"
#include "models/gpt/gpt.h"
#include "models/gpt/memory.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "train/memory.h"
#include "train/parallel/layer_costs.h"
#include "train/parallel/stages.h"
#include "train/parallel/tensor.h"
#include "train/update_rule.h"

using namespace bitloom;
using namespace bitloom::plan;
using bitloom::test::has;
using bitloom::test::message_of;
using mpi::GridShape;

namespace {

using train::ShardLevel;

constexpr double gibibyte = 1024.0 * 1024 * 1024;

models::GptConfig small_config() {
  models::GptConfig config;
  config.layers = 2;
  config.heads = 4;
  config.width = 8;
  config.context = 6;
  config.vocabulary = 19;
  config.vocabulary_multiple = 4;
  return config;
}

// Equal layers of `elements` that each keeps and gives, and that need `operations` in their forward pass.
FloatModel equal_layers(std::size_t count, std::uint64_t elements, double operations = 1) {
  FloatModel model;
  model.name = "equal layers";
  model.example = "example";
  model.input = sizeof(float) * elements;
  for (std::size_t i = 0; i < count; ++i) {
    FloatLayer layer;
    layer.name = fmt::format("layer{}", i);
    layer.whole_operations = operations;
    layer.values.whole = elements;
    layer.output = elements;
    model.layers.push_back(layer);
  }
  return model;
}

FloatOptions options_of(std::size_t batch, std::size_t micro_batch, const std::string& schedule = "1f1b") {
  FloatOptions options;
  options.batch = batch;
  options.micro_batch = micro_batch;
  options.schedule = schedule;
  return options;
}

std::uint64_t elements_of(const Elements& elements) { return elements.of(1); }

// A cluster whose links take no time.
FloatCluster fast_links() {
  FloatCluster cluster;
  cluster.link = cluster.inside = {1e30, 0};
  return cluster;
}

}  // namespace

TEST_CASE("models of the papers' tables have the parameters that are printed there", "[float_plan]") {
  for (const PaperModel& paper : paper_models()) {
    const auto parameters = static_cast<double>(paper.describe().parameters());
    INFO(paper.name << ": " << parameters);
    const std::string name = paper.name;
    // GPTs and Transformer-L to the last digit that is printed; cells and translation models as their derivation comes out.
    const double tolerance = name.starts_with("GPT")           ? 0.0005e9 / paper.parameters
                             : name.starts_with("Transformer") ? 0.01
                             : name.starts_with("Amoeba")      ? 0.026
                                                               : 0.06;
    CHECK(std::abs(parameters / paper.parameters - 1) < tolerance);
  }
  // Layers of Transformer-L: 12 matrices of the width's square and vectors; two tables and the biases of logits besides.
  CHECK(describe_transformer(13).parameters() ==
        13 * (12ULL * 2048 * 2048 + 13 * 2048) + 2ULL * 32000 * 2048 + 32000 + 2 * 2048);
  // Shoeybi et al. 2019, section 5.1: 50,257 tokens padded to 51,200.
  CHECK(describe_gpt(models::config_of(models::find_gpt("8.3b"))).head->vocabulary == 51200);
}

TEST_CASE("a GPT is described as its layers count themselves", "[float_plan]") {
  for (const bool recompute : {false, true}) {
    models::GptConfig config = small_config();
    config.recompute = recompute;
    models::Gpt net(config);
    const FloatModel model = describe_gpt(config);
    REQUIRE(net.layers().size() == model.layers.size());
    CHECK(model.parameters() == config.parameters());
    CHECK(model.operations() == Approx(net.cost({1, config.context})).epsilon(1e-12));
    nn::Shape shape = {1, config.context};
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const FloatLayer& layer = model.layers[i];
      INFO(layer.name);
      nn::Layer& real = net.layers()[i];
      std::uint64_t matrices = 0;
      std::uint64_t vectors = 0;
      for (const nn::Parameter* parameter : nn::parameters_of(real)) {
        (parameter->reads_values ? matrices : vectors) += parameter->shape.size();
      }
      CHECK(elements_of(layer.matrices) == matrices);
      CHECK(elements_of(layer.vectors) == vectors);
      CHECK(layer.whole_operations + layer.split_operations == Approx(real.cost(shape)).epsilon(1e-12));
      CHECK(layer.output == real.output(shape).size());
      CHECK(layer.keeps_input == real.keeps_input());
      const auto kept = [&](std::uint64_t value_bytes) {
        return (elements_of(layer.values) + elements_of(layer.activations)) * value_bytes + elements_of(layer.statistics) * 4 +
               layer.integers * 4;
      };
      if (recompute && layer.is_block) {
        CHECK(real.peak_stash_bytes(shape, DType::bf16) == kept(2));
      } else {
        CHECK(real.stash_bytes(shape, DType::f32) == kept(4));
        CHECK(real.stash_bytes(shape, DType::bf16) == kept(2));
      }
      shape = real.output(shape);
    }
  }
}

TEST_CASE("memory on one rank is that of models::predict_memory", "[float_plan]") {
  constexpr auto masters = nn::MasterWeights::f32;
  constexpr auto none = nn::MasterWeights::none;
  for (const auto& [values, weights] : {std::pair(DType::f32, masters), std::pair(DType::bf16, masters),
                                        std::pair(DType::bf16, none), std::pair(DType::f64, masters)}) {
    for (const unsigned bits : {0U, 3U}) {
      for (const bool recompute : {false, true}) {
        for (const std::string rule : {"adamw", "rmsprop", "sgd"}) {
          INFO(dtype_name(values) << " masters " << (weights == masters) << " bits " << bits << " " << recompute << rule);
          models::GptConfig config = small_config();
          config.activation_bits = bits;
          config.recompute = recompute;
          FloatOptions options = options_of(6, 3);
          options.activation_bits = bits;
          options.recompute = recompute ? Recompute::block : Recompute::none;
          options.train.values = values;
          options.train.master_weights = weights;
          options.train.optimizer.rule = rule;
          options.train.optimizer.average = rule == "sgd" ? 0.9 : 0;
          const models::GptMemory expected = models::predict_memory(config, 3, options.train);
          for (const std::string schedule : {"1f1b", "gpipe"}) {
            options.schedule = schedule;  // which one process has none of
            const FloatPlan plan = plan_grid(describe_gpt(config), {}, options, FloatCluster());
            CHECK(plan.micro_batches == 2);
            CHECK(plan.memory().parameters == expected.parameters);
            CHECK(plan.memory().gradients == expected.gradients);
            CHECK(plan.memory().optimizer == expected.optimizer);
            CHECK(plan.memory().stash == expected.stash);
            CHECK(plan.memory().activations == expected.activations);
            CHECK(plan.memory().total() == expected.total());
            CHECK(plan.memory().checkpoint == expected.checkpoint);
          }
        }
      }
    }
  }
}

TEST_CASE("a tensor rank's memory and the cuts are those of the net that it has", "[float_plan]") {
  models::GptConfig config = small_config();
  config.layers = 5;
  for (const bool recompute : {false, true}) {
    config.recompute = recompute;
    for (const std::size_t ranks : {1U, 2U, 4U}) {
      for (const DType values : {DType::f32, DType::bf16}) {
        INFO(ranks << " " << dtype_name(values) << " " << recompute);
        train::TensorGroup group(ranks - 1, ranks);
        models::Gpt net(config, 0, &group);
        const nn::Shape ids = {3, config.context};
        FloatOptions options = options_of(6, 3);
        options.recompute = recompute ? Recompute::block : Recompute::none;
        options.train.values = values;
        const GridShape grid{1, 1, static_cast<int>(ranks)};
        const FloatModel model = describe_gpt(config);
        const FloatMemory planned = plan_grid(model, grid, options, FloatCluster()).memory();
        const train::MemoryNeeds needs = train::predict_memory(net, ids, options.train);
        CHECK(planned.parameters == needs.parameters);
        CHECK(planned.gradients == needs.gradients);
        CHECK(planned.optimizer == needs.optimizer);
        CHECK(planned.stash == needs.stash);
        const double head = 2 * static_cast<double>(ids.size() * config.width * net.head().columns());
        const std::vector<double> costs = train::estimated_costs(net.layers(), ids, head);
        for (const int stages : {2, 3, 4, 7}) {
          const FloatPlan plan = plan_grid(model, {1, stages, grid.tensor}, options, FloatCluster());
          train::Partition parts;
          for (const StagePlan& stage : plan.stages) parts.push_back(stage.layers.front());
          CHECK(parts == train::partition(costs, static_cast<std::size_t>(stages)));
        }
      }
    }
  }
}

TEST_CASE("RMSProp takes 12 bytes per parameter, as in table 1 of Huang et al.", "[float_plan]") {
  FloatOptions options = options_of(32, 1, "gpipe");
  options.train.optimizer.rule = "rmsprop";
  const auto state_of = [&](std::size_t layers, int stages) {
    const FloatModel model = describe_transformer(layers);
    std::uint64_t bytes = 0;
    const FloatPlan plan = plan_grid(model, {1, stages, 1}, options, FloatCluster());
    for (const StagePlan& stage : plan.stages) {
      bytes += stage.memory.parameters + stage.memory.gradients + stage.memory.optimizer;
    }
    CHECK(bytes == 12 * model.parameters());
    return static_cast<double>(bytes) / gibibyte;
  };
  CHECK(state_of(13, 1) == Approx(8.8).epsilon(0.01));
  CHECK(state_of(103, 8) == Approx(59.5).epsilon(0.01));
  CHECK(state_of(415, 32) == Approx(235.1).epsilon(0.01));
  CHECK(state_of(1663, 128) == Approx(937.9).epsilon(0.01));
}

TEST_CASE("with recomputation a stage keeps N + (L/K)(N/M) activations", "[float_plan]") {
  constexpr std::size_t layers = 12;
  constexpr std::uint64_t elements = 5;
  const FloatModel model = equal_layers(layers, elements);
  for (const int stages : {1, 2, 3, 4}) {
    const auto k = static_cast<std::size_t>(stages);
    for (const std::size_t micro_batches : {1U, 4U, 8U}) {
      constexpr std::size_t batch = 16;  // N
      FloatOptions options = options_of(batch, batch / micro_batches, "gpipe");
      const auto stash = [&](Recompute recompute, std::size_t stage) {
        options.recompute = recompute;
        return plan_grid(model, {1, stages, 1}, options, FloatCluster()).stages[stage].memory.stash / (4 * elements);
      };
      INFO(stages << " stages, " << micro_batches << " micro-batches");
      for (std::size_t stage = 0; stage < k; ++stage) {
        // One process has a micro-batch at a time in its stash.
        const std::size_t inputs = stages == 1 ? batch / micro_batches : batch;
        CHECK(stash(Recompute::stage, stage) == inputs + layers / k * (batch / micro_batches));
        // The last stage's outputs wait for their backward passes.
        const bool waits = stages > 1 && stage + 1 == k && micro_batches > 1;
        CHECK(stash(Recompute::none, stage) == (layers / k + (waits ? 1 : 0)) * inputs);
      }
    }
  }
  // 1f1b has at most as many micro-batches in flight as stages follow, itself included.
  FloatOptions options = options_of(16, 2);
  const FloatPlan plan = plan_grid(model, {1, 4, 1}, options, FloatCluster());
  for (std::size_t stage = 0; stage < 4; ++stage) CHECK(plan.stages[stage].memory.stash == (4 - stage) * 3 * 2 * 4 * elements);
}

TEST_CASE("stages keep and send what train::predict_stage says", "[float_plan]") {
  models::GptConfig config = small_config();
  config.layers = 5;
  for (const bool blocks : {false, true}) {
    config.recompute = blocks;
    models::Gpt net(config);
    const FloatModel model = describe_gpt(config);
    for (const int stages : {2, 3, 4}) {
      for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
        for (const bool again : {false, true}) {
          for (const DType values : {DType::f32, DType::bf16}) {
            if (again && blocks) continue;  // which a plan has one of
            const auto k = static_cast<std::size_t>(stages);
            FloatOptions options = options_of(24, 2, schedule);
            options.chunks = schedule == "interleaved" ? 2 : 1;
            options.recompute = again ? Recompute::stage : blocks ? Recompute::block : Recompute::none;
            options.train.values = values;
            const FloatPlan plan = plan_grid(model, {1, stages, 1}, options, FloatCluster());
            train::PipelineOptions pipeline;
            for (std::size_t part = 0; part < k * options.chunks; ++part) {
              pipeline.partition.push_back(plan.stages[part % k].layers[part / k]);
            }
            pipeline.schedule = schedule;
            pipeline.recompute = again;
            pipeline.input = {2, config.context};
            pipeline.input_type = DType::i32;
            pipeline.values = values;
            const std::vector<nn::Parameter*> head{nn::parameters_of(net.layers()).front()};  // the table of tokens
            for (std::size_t stage = 0; stage < k; ++stage) {
              INFO(stages << " " << schedule << " stage " << stage << ", again " << again << ", blocks " << blocks);
              const train::StageNeeds needs = train::predict_stage(net.layers(), head, pipeline, k, stage, plan.micro_batches);
              const StagePlan& planned = plan.stages[stage];
              CHECK(planned.pipeline.messages == needs.message_bytes + needs.shared_bytes);
              // Stashes that hold one tensor count it twice: the input of a part that is computed again, of its first layer
              // too.
              std::uint64_t twice = 0;
              for (const train::LayerRange& range : planned.layers) {
                if (!again || !model.layers[range.first].keeps_input) continue;
                const std::uint64_t input =
                    range.first == 0 ? model.input : model.layers[range.first - 1].output * dtype_size(values);
                twice = std::max(twice, 2 * input);
              }
              if (options.chunks > 1) {  // parts are not equal, and the plan takes them for the largest
                CHECK(planned.memory.stash + twice >= needs.peak_stash_bytes);
                continue;
              }
              CHECK(planned.memory.stash + twice == needs.peak_stash_bytes);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the bubble of equal stages is (K - 1) / (M + K - 1)", "[float_plan]") {
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (int k = 1; k <= 8; ++k) {
      for (const std::size_t m : {1U, 4U, 32U}) {
        INFO(schedule << " " << k << " " << m);
        const FloatModel model = equal_layers(2 * static_cast<std::size_t>(k), 1);
        const FloatPlan plan = plan_grid(model, {1, k, 1}, options_of(m, 1, schedule), fast_links());
        CHECK(plan.bubble == Approx((k - 1) / static_cast<double>(static_cast<int>(m) + k - 1)).margin(1e-12));
        // Nothing but the schedule costs time.
        CHECK(plan.computing == Approx(1 - plan.bubble));
      }
    }
  }
  // Stages of 1 and 3 forward, 2 and 6 backward, two micro-batches: forward from 0 to 7, backward on the second stage until 19,
  // and until 21 on the first: of twice 21, 24 are spent computing.
  FloatModel model = equal_layers(2, 1);
  model.layers[1].whole_operations = 3;
  FloatCluster cluster = fast_links();
  cluster.flops = 1;
  const FloatPlan plan = plan_grid(model, {1, 2, 1}, options_of(2, 1, "gpipe"), cluster);
  CHECK(plan.seconds == Approx(21));
  CHECK(plan.bubble == Approx(1 - 24.0 / 42));
}

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

  // Tensor: one sum for the embedding, 2 + 2 for a block; the largest logit, that of the target and the sum of exponentials of
  // every token, and the gradient of hidden states.
  CHECK(plan.stages[0].tensor.sums == 2 * (1 + 4) * hidden);
  CHECK(plan.stages[0].tensor.maxima == 0);
  CHECK(plan.stages[0].layer_sums == 2 * 5);
  CHECK(plan.stages[1].tensor.sums == 2 * (4 * hidden + 2 * scalars + hidden));
  CHECK(plan.stages[1].tensor.maxima == 2 * scalars);
  CHECK(plan.stages[1].layer_sums == 2 * 4);
  // Pipeline: an activation forward, its gradient backward, for each micro-batch; the two gradients of the table.
  CHECK(plan.stages[0].pipeline.messages == 2 * hidden + table);
  CHECK(plan.stages[1].pipeline.messages == 2 * hidden + table);
  // Data: half of the table, positions; half of a block's matrices, its shared vectors and half of the others.
  constexpr std::uint64_t block = 12 * 64 / 2 + 6 * 8 + 7 * 8 / 2;
  constexpr std::uint64_t first = 10 * 8 + 6 * 8 + block;
  constexpr std::uint64_t second = block + 2 * 8 + 10 * 8;
  CHECK(plan.stages[0].data.sums == 4 * first);
  CHECK(plan.stages[1].data.sums == 4 * second);
  CHECK(plan.stages[0].data.total() == 4 * first);

  SECTION("blocks that are computed again sum what they give once more") {
    options.recompute = Recompute::block;
    const FloatPlan again = plan_grid(model, grid, options, FloatCluster());
    CHECK(again.stages[0].tensor.sums == 2 * (1 + 6) * hidden);
    CHECK(again.stages[1].tensor.sums == 2 * (6 * hidden + 2 * scalars + hidden));
    CHECK(again.stages[1].layer_sums == 2 * 6);
    CHECK(again.stages[0].pipeline.messages == plan.stages[0].pipeline.messages);
  }
  SECTION("stages that are computed again do so too, but the last, which was not before") {
    options.recompute = Recompute::stage;
    const FloatPlan again = plan_grid(model, grid, options, FloatCluster());
    CHECK(again.stages[0].tensor.sums == 2 * (1 + 1 + 6) * hidden);
    CHECK(again.stages[1].tensor.sums == plan.stages[1].tensor.sums);
  }
  SECTION("shards are reduced and gathered") {
    const auto of_first = [&](ShardLevel shard) {
      options.shard = shard;
      return plan_grid(model, grid, options, FloatCluster()).stages[0];
    };
    constexpr std::uint64_t bytes = 4 * first;
    const StagePlan optimizer = of_first(ShardLevel::optimizer);
    CHECK(optimizer.data.sums == 0);
    CHECK(optimizer.data.reduce_scatters == bytes);
    CHECK(optimizer.data.all_gathers == bytes / 2);
    CHECK(optimizer.memory.optimizer == 2 * bytes / 2);
    CHECK(optimizer.memory.gradients == bytes);
    CHECK(optimizer.memory.gathered == 0);
    CHECK(optimizer.memory.checkpoint == 3 * bytes / 2);
    CHECK(of_first(ShardLevel::none).memory.checkpoint == 3 * bytes / 2);  // of what both data ranks have each copies half
    const StagePlan gradients = of_first(ShardLevel::gradients);
    CHECK(gradients.data.reduce_scatters == 2 * bytes);  // after each micro-batch
    CHECK(gradients.data.all_gathers == bytes / 2);
    CHECK(gradients.memory.gradients == bytes / 2);
    CHECK(gradients.memory.parameters == bytes);
    CHECK(gradients.memory.gathered == bytes);  // the stage has two layers with parameters
    const StagePlan parameters = of_first(ShardLevel::parameters);
    CHECK(parameters.data.reduce_scatters == 2 * bytes);
    CHECK(parameters.data.all_gathers == 2 * 2 * bytes / 2);  // for the forward and the backward pass
    CHECK(parameters.memory.parameters == bytes / 2);
    CHECK(parameters.memory.gathered == 2 * bytes);
    // Values that ops read in 16 bits are gathered in 16 bits; vectors are not.
    options.train.values = DType::bf16;
    const StagePlan halves = of_first(ShardLevel::parameters);
    CHECK(halves.data.all_gathers == 2 * 2 * ((first - 76) * 2 + 76 * 4) / 2);
    CHECK(halves.memory.parameters == ((first - 76) * 6 + 76 * 4) / 2);
  }
}

TEST_CASE("a vocabulary that tensor ranks do not divide leaves the largest share to plan with", "[float_plan]") {
  models::GptConfig config = small_config();
  config.vocabulary_multiple = 1;  // 19 rows
  const FloatPlan plan = plan_grid(describe_gpt(config), {1, 1, 4}, options_of(2, 1), FloatCluster());
  constexpr std::uint64_t elements = 5 * 8 + 6 * 8 + 2 * (12 * 64 / 4 + 6 * 8 + 7 * 8 / 4) + 2 * 8;
  CHECK(plan.memory().parameters == 4 * elements);
}

TEST_CASE("seconds of a step follow from speed, links and what hides what", "[float_plan]") {
  const models::GptConfig config = models::config_of(models::find_gpt("small"));
  const FloatModel model = describe_gpt(config);
  FloatCluster cluster = fast_links();
  const double alone = 3 * model.operations() * 8 / cluster.flops;
  const auto seconds = [&](const GridShape& grid, const FloatOptions& options) {
    return plan_grid(model, grid, options, cluster).seconds;
  };
  CHECK(seconds({}, options_of(8, 2)) == Approx(alone));
  CHECK(seconds({4, 1, 1}, options_of(8, 2)) == Approx(alone / 4));
  FloatOptions again = options_of(8, 2);
  again.recompute = Recompute::block;
  double blocks = 0;
  for (const FloatLayer& layer : model.layers) {
    if (layer.is_block) blocks += layer.whole_operations + layer.split_operations;
  }
  CHECK(seconds({}, again) == Approx(alone + 8 * blocks / cluster.flops));
  // Layer norms, dropout and sums are computed by all tensor ranks.
  CHECK(seconds({1, 1, 2}, options_of(8, 2)) > alone / 2);
  CHECK(seconds({1, 1, 2}, options_of(8, 2)) < 1.05 * alone / 2);

  // Sums over data ranks: half of the bytes go to the other host, and come back, while layers before are still passed backward.
  cluster.link = {1e10, 0};
  const double sum = 2 * on_wire(4 * static_cast<double>(model.parameters()) / 2) * 8 / 1e10;
  const double half = alone / 2;
  const double backward = half / 2 * 2 / 3;  // of the last of two micro-batches
  REQUIRE(sum < backward);
  CHECK(seconds({2, 1, 1}, options_of(8, 2)) == Approx(half + sum / 8).epsilon(1e-9));  // 6 blocks, embedding, norm
  cluster.link = {1e9, 0};
  REQUIRE(10 * sum > backward);
  CHECK(seconds({2, 1, 1}, options_of(8, 2)) == Approx(half - backward * 7 / 8 + 10 * sum).epsilon(1e-3));
  // Parameters that are shards are gathered for every pass, gradients reduced after every backward pass: the link is all there
  // is.
  cluster.link = {1e7, 0};
  FloatOptions shards = options_of(8, 2);
  shards.shard = ShardLevel::parameters;
  const double exchange = 1000 * sum / 2;
  CHECK(seconds({2, 1, 1}, shards) == Approx(2 * 3 * exchange + exchange / 8).epsilon(1e-3));
  // With optimiser states alone as shards, new values follow the gradients that were reduced.
  shards.shard = ShardLevel::optimizer;
  CHECK(seconds({2, 1, 1}, shards) == Approx(half - backward * 7 / 8 + 2 * exchange).epsilon(1e-3));
  // On one host nothing crosses that link.
  cluster.ranks_per_host = 2;
  CHECK(seconds({2, 1, 1}, options_of(8, 2)) == Approx(half));
}

TEST_CASE("weak scaling by tensor ranks falls as in figure 6 of Shoeybi et al.", "[float_plan]") {
  // DGX-2H servers: 16 GPUs at 39 TFLOP/s, 300 GB/s between two of them, 100 GB/s from server to server.
  FloatCluster cluster;
  cluster.flops = 39e12;
  cluster.ranks_per_host = 16;
  cluster.link = {8e11, 1e-5};
  cluster.inside = {2.4e12, 1e-5};
  const auto speed = [&](const char* name, const GridShape& grid, std::size_t batch) {
    FloatOptions options = options_of(batch, 8);
    options.train.values = DType::f16;
    options.recompute = Recompute::block;
    const FloatModel model = describe_gpt(models::config_of(models::find_gpt(name)));
    return model.operations() * static_cast<double>(batch) / plan_grid(model, grid, options, cluster).seconds;
  };
  const double one = speed("1.2b", {1, 1, 1}, 8);
  double before = 1;
  double of_eight = 0;
  for (const auto& [name, tensor] : {std::pair("2.5b", 2), std::pair("4.2b", 4), std::pair("8.3b", 8)}) {
    const double efficiency = speed(name, {1, 1, tensor}, 8) / (tensor * one);
    INFO(name << ": " << efficiency);
    CHECK(efficiency < before);
    CHECK(efficiency > 0.6);
    before = of_eight = efficiency;
  }
  CHECK(of_eight < 0.97);
  // With 64-way data parallelism gradients are summed as well.
  const double with_data = speed("8.3b", {64, 1, 8}, 512) / (512 * one);
  INFO(with_data);
  CHECK(with_data < of_eight);
  CHECK(with_data > 0.5);
}

TEST_CASE("speed-ups by pipelines go the way of table 2 of Huang et al.", "[float_plan]") {
  const FloatCluster cluster = fast_links();
  const FloatModel amoebanet = describe_amoebanet_d(18, 256);
  const FloatModel transformer = describe_transformer(48);
  double before = 1;
  for (const int k : {2, 4, 8}) {
    INFO(k << " stages");
    const auto speed_up = [&](const FloatModel& model) {
      FloatOptions options = options_of(32, 1, "gpipe");
      return plan_grid(model, {}, options, cluster).seconds / plan_grid(model, {1, k, 1}, options, cluster).seconds;
    };
    const double ideal = k * 32.0 / (32 + k - 1);
    CHECK(speed_up(transformer) > 0.9 * ideal);
    CHECK(speed_up(transformer) <= ideal);
    CHECK(speed_up(amoebanet) < speed_up(transformer));  // cells are not equal
    CHECK(speed_up(amoebanet) > before);
    before = speed_up(amoebanet);
  }
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

TEST_CASE("grids that are impossible are refused with possible ones near by", "[float_plan]") {
  const FloatModel model = describe_gpt(models::config_of(models::find_gpt("gpt2-124m")));
  const auto refusal = [&](int ranks, const GridWish& wish, const FloatOptions& options) {
    return message_of(ErrorKind::usage, [&] { plan_grids(model, ranks, wish, options, FloatCluster()); });
  };
  const std::string heads = refusal(16, {1, 8}, options_of(64, 0));
  CHECK(has(heads, "`tensor`: 8; expected a divisor of the 12 heads"));
  CHECK(has(heads, "possible near by (data x pipeline x tensor): 4 x 1 x 4"));
  CHECK(has(refusal(16, {3, 1}, options_of(64, 0)), "divide 16 ranks"));
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
