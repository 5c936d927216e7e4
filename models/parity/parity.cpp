#include "models/parity/parity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/clock.h"
#include "core/error.h"
#include "core/random.h"
#include "models/cnn/cnn.h"
#include "models/gpt/language_task.h"
#include "nn/floats.h"
#include "train/parallel/tensor.h"

namespace bitloom::models {
namespace {

constexpr std::size_t steps = 3;
constexpr std::size_t examples = 2;  // of a micro-batch
constexpr std::size_t heads = 24;    // a multiple of 1, 2, 3, 4, 6 and 8 tensor ranks
constexpr double rounding = 1e-5;    // of sums in another order, in f32

// As many layers as eight stages take; the vocabulary is no multiple of anything.
GptConfig small_gpt(const ParityCase& the_case) {
  GptConfig config;
  config.layers = 6;
  config.heads = heads;
  config.width = 2 * heads;
  config.context = 12;
  config.vocabulary = 61;
  config.vocabulary_multiple = 1;
  config.dropout = 0.1;
  config.activation_bits = the_case.bits;
  config.recompute = the_case.recompute == "block";
  return config;
}

// Batch norm, a skip connection and pooling.
CnnConfig small_cnn(const ParityCase& the_case) {
  CnnConfig config = parse_cnn(R"({"name": "parity", "activation": "gelu",
      "layers": [{"kind": "conv", "channels": 4, "kernel": 3}, {"kind": "norm"}, {"kind": "activation"},
                 {"kind": "basic_block", "channels": 6, "stride": 2}, {"kind": "conv_group", "channels": 6},
                 {"kind": "global_mean_pool"}, {"kind": "linear"}]})",
                               "the net of the parity test");
  config.image = {8, 8, 3};
  config.classes = 5;
  config.activation_bits = the_case.bits;
  return config;
}

// Micro-batches of a step: a multiple of the data ranks, and several for each where the pipeline has stages.
std::size_t micro_batches(int ranks) { return 2 * static_cast<std::size_t>(ranks); }

void fill_tokens(std::uint64_t step, std::uint64_t micro_batch, std::size_t vocabulary, std::span<std::int32_t> inputs,
                 std::span<std::int32_t> targets) {
  Random random(5, Stream::test, step, micro_batch);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(vocabulary)));
    targets[i] = (7 * inputs[i] + 1) % static_cast<std::int32_t>(vocabulary);
  }
}

train::Classification::Batch make_images(nn::Engine& engine, const Cnn& net, std::uint64_t step, std::uint64_t micro_batch) {
  Random random(6, Stream::test, step, micro_batch);
  const nn::Shape shape = net.input(examples);
  std::vector<float> pixels(shape.size());
  for (float& pixel : pixels) pixel = static_cast<float>(random.uniform() - 0.5);
  std::vector<std::int32_t> labels(examples);
  for (std::int32_t& label : labels) {
    label = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(net.config.classes)));
  }
  return {engine.from(std::span<const float>(pixels), shape, nn::Use::data),
          engine.from(std::span<const std::int32_t>(labels), {examples}, nn::Use::data)};
}

// Parts of the net that a stage has.
std::size_t chunks_of(const mpi::GridShape& grid, const std::string& schedule) {
  return grid.pipeline == 1 ? 1 : train::chunks_or_usual(schedule, 0);
}

// The part of a case that the result of one process depends on.
std::string key_of(const ParityCase& the_case) { return fmt::format("{} {}", the_case.net, the_case.bits); }

// Steps are linear in gradients, so that small differences stay small.
train::TrainOptions train_options(int ranks) {
  train::TrainOptions options;
  options.micro_batches = micro_batches(ranks);
  options.optimizer.rule = "sgd";
  options.optimizer.clip = 1;
  options.rate.peak = 0.05;
  options.seed = 3;
  return options;
}

double largest_of(std::span<const float> values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

// NaN counts as infinitely far.
double distance(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double each = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(each <= largest)) largest = std::isnan(each) ? std::numeric_limits<double>::infinity() : each;
  }
  return largest / std::max(largest_of(b), 1e-30);
}

}  // namespace

std::string to_text(const ParityCase& the_case) {
  const auto& [net, grid, schedule, shard, recompute, bits] = the_case;
  return fmt::format("{:<4}{:>3} x{:>2} x{:>2}  {:<12}{:<12}{:<7}{:>2}", net, grid.data, grid.pipeline, grid.tensor,
                     grid.pipeline == 1 ? "-" : schedule, train::shard_level_names()[static_cast<std::size_t>(shard)],
                     recompute, bits);
}

std::vector<ParityCase> parity_cases(int ranks) {
  std::vector<ParityCase> cases;
  for (const std::string net : {"gpt", "cnn"}) {
    const ParityCase plain{net, {}};
    const std::size_t layers = net == "gpt" ? Gpt(small_gpt(plain)).layers().size() : Cnn(small_cnn(plain)).layers->size();
    for (const mpi::GridShape& grid : mpi::shapes_of(ranks)) {
      if (net == "cnn" && grid.tensor != 1) continue;
      if (heads % static_cast<std::size_t>(grid.tensor) != 0) continue;
      for (const std::string& schedule : train::schedule_names()) {
        if (grid.pipeline == 1 && schedule != "1f1b") continue;
        if (static_cast<std::size_t>(grid.pipeline) * chunks_of(grid, schedule) > layers) continue;
        for (std::size_t level = 0; level < train::shard_level_names().size(); ++level) {
          if (grid.data == 1 && level != 0) continue;
          for (const std::string recompute : {"none", "block", "stage"}) {
            if (net == "cnn" && recompute == "block") continue;
            for (const unsigned bits : {0U, 3U}) {
              cases.push_back({net, grid, schedule, static_cast<train::ShardLevel>(level), recompute, bits});
            }
          }
        }
      }
    }
  }
  return cases;
}

Parity::Parity(mpi::Comm& world, nn::Device device, std::string backend)
    : world_(world), device_(device), backend_(std::move(backend)), single_(self_, mpi::GridShape{}) {}

Parity::~Parity() = default;

Parity::Outcome Parity::train(const ParityCase& the_case, mpi::Grid& grid) {
  nn::Engine engine(device_, backend_);
  train::TensorGroup group(grid.tensor());
  std::unique_ptr<Gpt> gpt;
  std::unique_ptr<Cnn> cnn;
  std::unique_ptr<train::Task> task;
  if (the_case.net == "gpt") {
    gpt = std::make_unique<Gpt>(small_gpt(the_case), 0, &group);
    task = std::make_unique<LanguageTask>(
        *gpt, examples,
        [&gpt](std::uint64_t step, std::uint64_t micro_batch, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
          fill_tokens(step, micro_batch, gpt->config().vocabulary, inputs, targets);
        });
  } else {
    cnn = std::make_unique<Cnn>(small_cnn(the_case));
    task = std::make_unique<train::Classification>(
        cnn->layers, cnn->input(examples),
        [&](std::uint64_t step, std::uint64_t micro_batch) { return make_images(engine, *cnn, step, micro_batch); }, 0.1);
  }
  train::Layout layout;
  layout.grid = &grid;
  layout.schedule = the_case.schedule;
  layout.chunks = chunks_of(grid.shape(), the_case.schedule);
  layout.shard = the_case.shard;
  layout.recompute_stages = the_case.recompute == "stage";
  train::Trainer trainer(engine, *task, train_options(world_.size()), layout);
  Outcome outcome;
  for (std::size_t step = 0; step < steps; ++step) {
    const train::StepReport report = trainer.step();
    outcome.losses.push_back(report.loss);
    outcome.seconds += report.seconds;
  }
  trainer.save_model([&](const std::map<std::string, StreamedTensor>& tensors) {
    for (const auto& [name, tensor] : tensors) {
      std::vector<float>& values = outcome.parameters[name];
      tensor.bytes([&](std::span<const std::byte> part) {
        const std::size_t at = values.size();
        values.resize(at + part.size() / sizeof(float));
        std::memcpy(values.data() + at, part.data(), part.size());
      });
    }
  });
  return outcome;
}

const Parity::Outcome& Parity::alone(const ParityCase& the_case) {
  const auto [place, is_new] = alone_.try_emplace(key_of(the_case));
  if (is_new) {
    ParityCase single{the_case.net, {}, "1f1b", train::ShardLevel::none, "none", the_case.bits};
    place->second = train(single, single_);
  }
  return place->second;
}

ParityResult Parity::run(const ParityCase& the_case) {
  std::unique_ptr<mpi::Grid>& grid = grids_[mpi::described(the_case.grid)];
  if (grid == nullptr) grid = std::make_unique<mpi::Grid>(world_, the_case.grid);
  const Outcome& expected = alone(the_case);
  const Outcome found = train(the_case, *grid);
  ParityResult result;
  // Stages and recomputation do not change the order of any sum, but that of a GPT's table, whose two gradients are added up
  // apart where its logits are on another stage.
  const bool same_order = the_case.grid.tensor == 1 && the_case.grid.data == 1;
  const bool has_split_table = the_case.net == "gpt" && the_case.grid.pipeline > 1;
  result.limit = same_order && !has_split_table ? 0 : rounding;
  result.seconds = found.seconds;
  if (world_.is_root()) {
    for (const auto& [name, values] : expected.parameters) {
      const auto place = found.parameters.find(name);
      const bool is_there = place != found.parameters.end() && place->second.size() == values.size();
      const double each = is_there ? distance(place->second, values) : std::numeric_limits<double>::infinity();
      result.difference = std::max(result.difference, each);
    }
    for (std::size_t step = 0; step < steps; ++step) {
      const double each = std::abs(found.losses[step] / expected.losses[step] - 1);
      if (!(each <= result.difference)) result.difference = std::isnan(each) ? std::numeric_limits<double>::infinity() : each;
    }
  }
  world_.broadcast(std::span(&result.difference, 1));
  return result;
}

}  // namespace bitloom::models
