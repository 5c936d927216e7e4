// Memory of float trainings on grids of ranks, against the trainer's own predictions, papers and formulas worked out by hand.
#include "plan/float_plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/dalle/dalle.h"
#include "models/gpt/gpt.h"
#include "models/gpt/language_task.h"
#include "tests/models/gpt_nets.h"
#include "tests/parallel/stage_needs.h"
#include "tests/plan/float_plans.h"
#include "tests/support/catch.h"
#include "tests/support/trainer_state.h"
#include "train/memory.h"
#include "train/parallel/layer_costs.h"
#include "train/parallel/stages.h"
#include "train/parallel/tensor.h"

using namespace bitloom;
using namespace bitloom::plan;
using bitloom::test::equal_layers;
using bitloom::test::options_of;
using bitloom::test::small_config;
using bitloom::test::small_planned_dalle;
using mpi::GridShape;
using train::ShardLevel;

TEST_CASE("memory is predicted within 2%, with everything kept, few bits and blocks computed again", "[gpt][float_plan]") {
  constexpr auto f32 = nn::MasterWeights::f32;
  constexpr auto none = nn::MasterWeights::none;
  for (const auto& [values, masters] :
       {std::pair(DType::f32, f32), std::pair(DType::bf16, f32), std::pair(DType::bf16, none)}) {
    for (const unsigned bits : {0U, 3U}) {
      for (const bool recompute : {false, true}) {
        INFO(dtype_name(values) << ", masters " << (masters == f32) << ", bits " << bits << ", recompute " << recompute);
        models::GptConfig config = test::small_gpt();
        config.dropout = 0.1;
        config.activation_bits = bits;
        config.recompute = recompute;
        config.logit_clip = recompute ? 5 : 0;
        nn::Engine engine;
        models::Gpt net(config);
        models::LanguageTask task(net, 4, test::chains(config, 2));
        train::TrainOptions options;
        options.values = values;
        options.micro_batches = 2;
        options.master_weights = masters;
        options.optimizer.average = masters == f32 ? 0.9 : 0;
        options.optimizer.narrow_moments = bits != 0;
        train::Trainer trainer(engine, task, options);
        trainer.step();
        FloatOptions planned = options_of(8, 4);
        planned.activation_bits = bits;
        planned.recompute = recompute ? Recompute::block : Recompute::none;
        planned.train = options;
        const FloatMemory needs = plan_grid(describe_gpt(config), {}, planned, FloatCluster()).memory();
        const auto near = [&](nn::Use use, std::uint64_t predicted) {
          INFO(nn::name_of(use));
          CHECK(static_cast<double>(engine.pool().count(use).peak) == Approx(static_cast<double>(predicted)).epsilon(0.02));
        };
        near(nn::Use::parameters, needs.parameters);
        near(nn::Use::gradients, needs.gradients);
        near(nn::Use::optimizer, needs.optimizer);
        near(nn::Use::stash, needs.stash);
        std::uint64_t saved = 0;
        for (const auto& [name, tensor] : test::saved(trainer).tensors) saved += tensor.bytes.size();
        CHECK(static_cast<double>(saved) == Approx(static_cast<double>(needs.checkpoint)).epsilon(0.02));
        CHECK(engine.pool().total().peak < 1.1 * static_cast<double>(needs.total()));
        CHECK(engine.pool().total().peak > 0.6 * static_cast<double>(needs.total()));
      }
    }
  }
}

TEST_CASE("memory for the matrix that Muon works with is planned, where there are fewer activations", "[gpt][float_plan]") {
  models::GptConfig config = small_config();
  config.layers = 1;
  config.width = 64;
  config.context = 2;
  nn::Engine engine;
  models::Gpt net(config);
  models::LanguageTask task(net, 1, test::chains(config, 1));
  train::TrainOptions options;
  options.optimizer.rule = "muon";
  train::Trainer trainer(engine, task, options);
  trainer.step();
  FloatOptions planned = options_of(1, 1);
  planned.train = options;
  const FloatMemory needs = plan_grid(describe_gpt(config), {}, planned, FloatCluster()).memory();
  // The update of a matrix of 64 x 256 and its orthogonal form, and two squares.
  CHECK(needs.activations + needs.stash == 4 * (2 * 64 * 256 + 2 * 64 * 64));
  CHECK(static_cast<double>(engine.pool().total().peak) == Approx(static_cast<double>(needs.total())).epsilon(0.02));
}

// Trainings that --memory had room for by the plan ended at the end of a step, or at the first checkpoint.
TEST_CASE("memory for factors of gradients, and for their checkpoint, is planned, where there are fewer activations",
          "[gpt][float_plan][power_sgd]") {
  constexpr std::uint64_t layers = 3, width = 64, rank = 4;
  // A large table goes as it is, beside the factors; a small one leaves the copies of the error buffers the most.
  for (const std::size_t vocabulary : {4003, 19}) {
    for (const auto& [is_warm, errors] : {std::pair(false, train::FloatFormat::f32), std::pair(true, train::FloatFormat::f32),
                                          std::pair(true, train::FloatFormat::f1_6_9)}) {
      CAPTURE(vocabulary, is_warm, errors == train::FloatFormat::f32);
      models::GptConfig config = small_config();
      config.layers = layers;
      config.width = width;
      config.context = 2;
      config.vocabulary = vocabulary;
      nn::Engine engine;
      models::Gpt net(config);
      models::LanguageTask task(net, 1, test::chains(config, 1));
      train::TrainOptions options;
      train::Layout layout;
      layout.compress_rank = rank;
      layout.compression.warm_start = is_warm;
      layout.compression.error_buffers = errors;
      train::Trainer trainer(engine, task, options, layout);
      trainer.step();
      test::saved(trainer);
      FloatOptions planned = options_of(1, 1);
      planned.train = options;
      planned.compress_rank = rank;
      planned.compress_warm = is_warm;
      planned.compress_errors = errors;
      const FloatMemory needs = plan_grid(describe_gpt(config), {}, planned, FloatCluster()).memory();
      // Sides of a block's four matrices, 1 x 3, 1 x 1, 1 x 4 and 4 x 1 widths: Q has the columns or, of a fixed start, the
      // longer side.
      const std::uint64_t q_rows = (is_warm ? 3 + 1 + 4 + 1 : 3 + 1 + 4 + 4) * width;
      const std::uint64_t p_rows = 16 * width - q_rows;
      const std::uint64_t exact = config.parameters() - layers * 12 * width * width;
      const std::uint64_t messages = layers * (2 * p_rows + q_rows) * rank + exact + layers * 4;
      const std::uint64_t copies = layers * (12 * width * width + (is_warm ? q_rows * rank : 0));
      CHECK(needs.activations + needs.stash == 4 * (vocabulary == 19 ? copies : messages));
      CHECK(static_cast<double>(engine.pool().total().peak) == Approx(static_cast<double>(needs.total())).epsilon(0.02));
    }
  }
}

TEST_CASE("memory on one rank is that of train::predict_memory", "[float_plan]") {
  constexpr auto masters = nn::MasterWeights::f32;
  constexpr auto none = nn::MasterWeights::none;
  for (const auto& [values, weights] : {std::pair(DType::f32, masters), std::pair(DType::bf16, masters),
                                        std::pair(DType::bf16, none), std::pair(DType::f64, masters)}) {
    for (const unsigned bits : {0U, 3U}) {
      for (const bool recompute : {false, true}) {
        for (const std::string rule : {"adamw", "16-bit", "muon", "rmsprop", "sgd"}) {
          if (rule == "16-bit" && values == DType::f64) continue;
          if (rule == "muon" && weights == none) continue;
          INFO(dtype_name(values) << " masters " << (weights == masters) << " bits " << bits << " " << recompute << rule);
          models::GptConfig config = small_config();
          config.activation_bits = bits;
          config.recompute = recompute;
          FloatOptions options = options_of(6, 3);
          options.activation_bits = bits;
          options.recompute = recompute ? Recompute::block : Recompute::none;
          options.train.values = values;
          options.train.master_weights = weights;
          options.train.optimizer.narrow_moments = rule == "16-bit";
          options.train.optimizer.rule = rule == "16-bit" ? "adamw" : rule;
          options.train.optimizer.average = rule == "sgd" ? 0.9 : 0;
          models::Gpt net(config);
          const train::MemoryNeeds expected = train::predict_memory(net, {3, config.context}, options.train);
          for (const std::string schedule : {"1f1b", "gpipe"}) {
            options.schedule = schedule;  // which one process has none of
            const FloatPlan plan = plan_grid(describe_gpt(config), {}, options, FloatCluster());
            CHECK(plan.micro_batches == 2);
            CHECK(plan.memory().parameters == expected.parameters);
            CHECK(plan.memory().gradients == expected.gradients);
            CHECK(plan.memory().optimizer == expected.optimizer);
            CHECK(plan.memory().checkpoint == expected.checkpoint);
            CHECK(plan.memory().stash == expected.stash);
          }
        }
      }
    }
  }
}

TEST_CASE("memory of a text-to-image transformer on one rank is that of train::predict_memory", "[float_plan][dalle]") {
  for (const DType values : {DType::f32, DType::bf16}) {
    for (const unsigned bits : {0U, 3U}) {
      for (const bool recompute : {false, true}) {
        INFO(dtype_name(values) << " bits " << bits << " " << recompute);
        models::DalleConfig config = small_planned_dalle();
        config.activation_bits = bits;
        config.activation_quantiser = recompute ? nn::Quantiser::few_bit : nn::Quantiser::act_nn;
        config.recompute = recompute;
        FloatOptions options = options_of(6, 3);
        options.activation_bits = bits;
        options.activation_quantiser = config.activation_quantiser;
        options.recompute = recompute ? Recompute::block : Recompute::none;
        options.train.values = values;
        options.train.optimizer.average = 0.99;
        options.train.optimizer.narrow_moments = recompute;
        models::Dalle net(config);
        const train::MemoryNeeds expected = train::predict_memory(net.layers(), {3, config.tokens()}, options.train);
        const FloatMemory memory = plan_grid(describe_dalle(config), {}, options, FloatCluster()).memory();
        CHECK(memory.parameters == expected.parameters);
        CHECK(memory.gradients == expected.gradients);
        CHECK(memory.optimizer == expected.optimizer);
        CHECK(memory.checkpoint == expected.checkpoint);
        CHECK(memory.stash == expected.stash);
      }
    }
  }
}

// Tables of logits are whole on each rank: no sums of theirs go round, and their numbers do not shrink.
TEST_CASE("tensor ranks divide the layers of a text-to-image transformer, not its tables", "[float_plan][dalle]") {
  const models::DalleConfig config = small_planned_dalle();
  const FloatModel model = describe_dalle(config);
  const std::uint64_t w = config.width;
  const std::uint64_t tables = (config.inputs() + config.text + 2 * config.grid + config.text_vocabulary + config.codes) * w;
  for (const int ranks : {1, 2, 4}) {
    INFO(ranks);
    const auto n = static_cast<std::uint64_t>(ranks);
    const FloatPlan plan = plan_grid(model, {1, 1, ranks}, options_of(2, 1), FloatCluster());
    const std::uint64_t blocks = config.layers * (12 * w * w / n + (3 + 4) * w / n + (1 + 1 + 4) * w);
    CHECK(plan.memory().parameters == 4 * (tables + blocks + 2 * w));
    CHECK(plan.stages[0].tensor.maxima == 0);
    CHECK(plan.stages[0].layer_sums == (ranks == 1 ? 0 : 2 * 4 * config.layers));
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
  constexpr double gibibyte = 1024.0 * 1024 * 1024;
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

TEST_CASE("stages keep and send what is worked out from the net", "[float_plan]") {
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
              const test::StageNeeds needs = test::predict_stage(net.layers(), head, pipeline, k, stage, plan.micro_batches);
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
              CHECK(planned.memory.stash <= needs.peak_stash_bytes);
              CHECK(planned.memory.stash + twice >= needs.peak_stash_bytes);
              const bool by_chunk = again && options.chunks > 1;  // which of them keep their inputs twice differs
              if (!by_chunk) CHECK(planned.memory.stash + twice == needs.peak_stash_bytes);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a vocabulary that tensor ranks do not divide leaves the largest share to plan with", "[float_plan]") {
  models::GptConfig config = small_config();
  config.vocabulary_multiple = 1;  // 19 rows
  const FloatPlan plan = plan_grid(describe_gpt(config), {1, 1, 4}, options_of(2, 1), FloatCluster());
  constexpr std::uint64_t elements = 5 * 8 + 6 * 8 + 2 * (12 * 64 / 4 + 6 * 8 + 7 * 8 / 4) + 2 * 8;
  CHECK(plan.memory().parameters == 4 * elements);
}

TEST_CASE("two layers at most are whole where parameters are shards, and a table that layers share", "[float_plan]") {
  FloatModel equal = equal_layers(4, 1);
  for (FloatLayer& layer : equal.layers) layer.parameters = {{{100}, true}};
  FloatOptions options = options_of(8, 2);
  const auto stage = [&](const FloatModel& model, ShardLevel shard, Recompute recompute = Recompute::none) {
    options.shard = shard;
    options.recompute = recompute;
    return plan_grid(model, {2, 1, 1}, options, FloatCluster()).stages[0];
  };
  CHECK(stage(equal, ShardLevel::optimizer).memory.gathered == 0);
  CHECK(stage(equal, ShardLevel::gradients).memory.gathered == 2 * 400);
  CHECK(stage(equal, ShardLevel::parameters).memory.gathered == 4 * 400);
  // Two micro-batches forward and backward, in which the last layer and, between the two, the first come twice in a row. One
  // rank has all of a layer, which is too small to be cut.
  CHECK(stage(equal, ShardLevel::parameters).data.all_gathers == (2 * 8 - 3) * 400);
  // The last stage's layers are passed forward once, before they are passed backward.
  CHECK(stage(equal, ShardLevel::parameters, Recompute::stage).data.all_gathers == (2 * 8 - 3) * 400);

  // The loss adds to the table's gradient first, the embedding last; most is whole when the first block is passed backward.
  const FloatModel gpt = describe_gpt(small_config());
  constexpr std::uint64_t table = 20 * 8, positions = 6 * 8, block = 12 * 64 + 13 * 8;
  CHECK(stage(gpt, ShardLevel::gradients).memory.gathered == 4 * (table + 2 * block));
  CHECK(stage(gpt, ShardLevel::parameters).memory.gathered == 4 * (table + 2 * block + block + table + positions));
  // The table three times, positions, blocks and the norm twice in each micro-batch, but the first layer's once in a row; the
  // second rank has the tables, a block's second norm and feed-forward part, and the shift of the last norm.
  constexpr std::uint64_t half_block = 2 * 8 + 2 * 8 * 32 + 32 + 8;
  CHECK(stage(gpt, ShardLevel::parameters).data.all_gathers ==
        4 * (2 * (3 * table + 2 * positions + 4 * half_block + 2 * 8) - table - positions));
}
