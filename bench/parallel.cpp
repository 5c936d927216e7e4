// bitloom_bench_parallel SETTINGS: trains a GPT on made-up text by all processes of mpirun, in a grid, and prints what they
// counted beside what a plan of the same says: bytes of every group, memory, stashes, bubble, seconds of a step. SETTINGS: a
// JSON object, see Setup; with "gflops" every layer takes as long as on ranks of that speed, which plans are about, so that
// processes do not compete for the cores of this machine. One line of JSON, by rank 0.
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/float_worker.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/random.h"
#include "models/gpt/language_task.h"
#include "plan/counted.h"
#include "plan/float_plan.h"
#include "train/trainer.h"

namespace bitloom::bench {
namespace {

using Json = nlohmann::json;

struct Setup {
  explicit Setup(const Json& json) {
    config.layers = json.value("layers", config.layers);
    config.heads = json.value("heads", config.heads);
    config.width = json.value("width", config.width);
    config.context = json.value("context", config.context);
    config.vocabulary = json.value("vocabulary", std::size_t{1000});
    config.vocabulary_multiple = 1;
    config.dropout = json.value("dropout", 0.0);
    config.activation_bits = json.value("bits", 0U);
    grid = {json.value("data", 1), json.value("pipeline", 1), json.value("tensor", 1)};
    schedule = json.value("schedule", schedule);
    shard = json.value("shard", "none");
    shard_ranks = json.value("shard_ranks", 0);
    compress_rank = json.value("compress_rank", std::size_t{0});
    recompute = json.value("recompute", "none");
    config.recompute = recompute == "block";
    values = json.value("dtype", "f32");
    batch = json.value("batch", std::size_t{8});
    micro_batch = json.value("micro_batch", std::size_t{1});
    steps = json.value("steps", std::size_t{3});
    bucket_bytes = json.value("bucket_bytes", train::GradientBuckets::usual_bytes);
    cluster.flops = 1e9 * json.value("gflops", 0.0);
    is_paced = cluster.flops > 0;
    if (!is_paced) cluster.flops = 1e11;
    cluster.link = plan::parse_link("link", json.value("link", "1Gbit/50us"));
    cluster.ranks_per_host = json.value("ranks_per_host", std::size_t{1});
  }

  plan::FloatOptions plan_options() const {
    plan::FloatOptions options;
    options.batch = batch;
    options.micro_batch = micro_batch;
    options.schedule = schedule;
    options.chunks = chunks();
    options.shard = train::shard_level_named(shard);
    options.shard_ranks = static_cast<std::size_t>(shard_ranks);
    options.compress_rank = compress_rank;
    options.recompute = plan::find_recompute(recompute);
    options.activation_bits = config.activation_bits;
    options.train = train_options();
    return options;
  }
  train::TrainOptions train_options() const {
    train::TrainOptions options;
    options.values = parse_values(values);
    options.micro_batches = batch / micro_batch;
    options.rate.peak = 3e-4;
    options.optimizer.clip = 1;
    return options;
  }
  train::Layout layout(mpi::Grid& of) const {
    train::Layout layout;
    layout.grid = &of;
    layout.schedule = schedule;
    layout.chunks = chunks();
    layout.shard = train::shard_level_named(shard);
    layout.compress_rank = compress_rank;
    layout.recompute_stages = recompute == "stage";
    layout.bucket_bytes = bucket_bytes;
    layout.events = {steps + 1, 0};
    return layout;
  }
  std::size_t chunks() const { return grid.pipeline == 1 ? 1 : train::chunks_or_usual(schedule, 0); }

  models::GptConfig config;
  mpi::GridShape grid;
  std::string schedule = "1f1b", shard, recompute, values;
  int shard_ranks;
  std::size_t compress_rank;
  std::size_t batch, micro_batch, steps, bucket_bytes;
  bool is_paced;
  plan::FloatCluster cluster;
};

// --- Ranks of a given speed ---

// Takes as long as a computation of `seconds`, what a tensor group's sums take apart.
class Paced {
 public:
  Paced(mpi::Comm& group, double seconds) : group_(group), seconds_(seconds), waited_(group.traffic().seconds) {}
  Paced(const Paced&) = delete;
  Paced& operator=(const Paced&) = delete;
  ~Paced() {
    const double left = seconds_ - (seconds_since(start_) - (group_.traffic().seconds - waited_));
    if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
  }

 private:
  mpi::Comm& group_;
  double seconds_, waited_;
  Clock::time_point start_ = Clock::now();
};

class PacedLayer final : public nn::Layer {
 public:
  // Seconds of a pass.
  PacedLayer(nn::Layer& layer, mpi::Comm& group, const train::PassCosts& seconds)
      : layer_(layer), group_(group), seconds_(seconds) {}

  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& x) override {
    const Paced paced(group_, seconds_.forward);
    return layer_.forward(pass, x);
  }
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override {
    const Paced paced(group_, seconds_.backward);
    return layer_.backward(pass, dy);
  }
  void add_parameters(std::vector<nn::Parameter*>& all) override { layer_.add_parameters(all); }
  nn::Shape output(const nn::Shape& x) const override { return layer_.output(x); }
  double cost(const nn::Shape& x) const override { return layer_.cost(x); }
  std::uint64_t stash_bytes(const nn::Shape& x, DType values) const override { return layer_.stash_bytes(x, values); }
  std::uint64_t peak_stash_bytes(const nn::Shape& x, DType values) const override { return layer_.peak_stash_bytes(x, values); }
  bool keeps_input() const override { return layer_.keeps_input(); }

 private:
  nn::Layer& layer_;
  mpi::Comm& group_;
  train::PassCosts seconds_;
};

class PacedTask final : public train::Task {
 public:
  PacedTask(models::LanguageTask& task, const Setup& setup, const plan::FloatModel& model, mpi::Comm& group)
      : task_(task), group_(group) {
    const auto tensor = static_cast<std::size_t>(setup.grid.tensor);
    const double unit = setup.is_paced ? static_cast<double>(setup.micro_batch) / setup.cluster.flops : 0;
    for (std::size_t i = 0; i < task.net().size(); ++i) {
      const double forward = unit * model.layers[i].operations_of(tensor);
      const bool again = setup.recompute == "block" && model.layers[i].is_block;
      net_.emplace<PacedLayer>(task.net()[i], group, train::PassCosts{forward, (again ? 3 : 2) * forward});
    }
    loss_seconds_ = 3 * unit * model.head_operations_of(tensor);
  }

  nn::Sequence& net() override { return net_; }
  nn::Shape input_shape() const override { return task_.input_shape(); }
  std::optional<DType> input_type() const override { return task_.input_type(); }
  double loss_cost() const override { return task_.loss_cost(); }
  std::uint64_t targets(std::uint64_t step, std::size_t micro_batches) override { return task_.targets(step, micro_batches); }
  nn::Tensor input(nn::Pass& pass) override { return task_.input(pass); }
  train::PartLoss loss(nn::Pass& pass, nn::Tensor y, double scale, nn::Tensor* dy) override {
    const Paced paced(group_, loss_seconds_);
    return task_.loss(pass, std::move(y), scale, dy);
  }
  std::vector<nn::Parameter*> head_parameters() override { return task_.head_parameters(); }

 private:
  models::LanguageTask& task_;
  mpi::Comm& group_;
  nn::Sequence net_;
  double loss_seconds_ = 0;
};

// --- A training ---

void fill_tokens(std::uint64_t step, std::uint64_t micro_batch, std::size_t vocabulary, std::span<std::int32_t> inputs,
                 std::span<std::int32_t> targets) {
  Random random(1, Stream::synthetic_data, step, micro_batch);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(vocabulary)));
    targets[i] = (7 * inputs[i] + 1) % static_cast<std::int32_t>(vocabulary);
  }
}

Json train_in_grid(mpi::Comm& world, const Setup& setup) {
  const plan::FloatModel model = plan::describe_gpt(setup.config);
  const plan::FloatPlan planned = plan::plan_grid(model, setup.grid, setup.plan_options(), setup.cluster);
  mpi::Grid grid(world, setup.grid, setup.shard_ranks);
  nn::Engine engine;
  train::TensorGroup group(grid.tensor());
  models::Gpt net(setup.config, 0, &group);
  models::LanguageTask language(
      net, setup.micro_batch,
      [&](std::uint64_t step, std::uint64_t micro_batch, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
        fill_tokens(step, micro_batch, setup.config.vocabulary, inputs, targets);
      });
  PacedTask task(language, setup, model, grid.tensor());
  train::Trainer trainer(engine, task, setup.train_options(), setup.layout(grid));
  trainer.share();
  trainer.step();
  const plan::GridBytes before = plan::counted(grid);
  const auto tensor_sums = [&] { return grid.tensor().traffic(mpi::Collective::float_sum).calls; };
  const std::uint64_t sums_before = tensor_sums();
  std::vector<double> seconds, bubbles;
  std::vector<double> losses, norms;
  std::uint64_t stash = 0;
  for (std::size_t step = 0; step < setup.steps; ++step) {
    world.barrier();
    const Clock::time_point start = Clock::now();
    const train::StepReport report = trainer.step();
    world.barrier();
    seconds.push_back(seconds_since(start));
    losses.push_back(report.loss);
    norms.push_back(report.gradient_norm);
    stash = std::max(stash, report.stash_bytes);
    bubbles.push_back(train::bubble_of(trainer.events().gather(world).events));
  }
  const plan::GridBytes counts = plan::counted(grid) - before;
  const plan::StagePlan& stage = planned.stages[static_cast<std::size_t>(grid.stage())];
  const Json own = {{"data", plan::to_json(counts.data)},
                    {"pipeline", plan::to_json(counts.pipeline)},
                    {"tensor", plan::to_json(counts.tensor)},
                    {"tensor_sums", tensor_sums() - sums_before},
                    {"stage", grid.stage()},
                    {"memory", engine.pool().total().peak},
                    {"planned_memory", stage.memory.total()},
                    {"stash", stash},
                    {"planned_stash", stage.memory.stash}};
  const std::string text = own.dump();
  Json ranks = Json::array();
  for (const std::vector<std::byte>& each : world.gather_bytes(std::as_bytes(std::span(text)))) {
    ranks.push_back(
        Json::parse(reinterpret_cast<const char*>(each.data()), reinterpret_cast<const char*>(each.data() + each.size())));
  }
  Json stages = Json::array();
  for (const plan::StagePlan& each : planned.stages) {
    stages.push_back({{"data", plan::to_json(each.data)},
                      {"pipeline", plan::to_json(each.pipeline)},
                      {"tensor", plan::to_json(each.tensor)}});
  }
  std::vector<double> forward_seconds;
  const double unit = static_cast<double>(setup.micro_batch) / setup.cluster.flops;
  for (const plan::FloatLayer& layer : model.layers) forward_seconds.push_back(unit * layer.operations_of(1));
  return {{"losses", losses},
          {"gradient_norms", norms},
          {"seconds", seconds},
          {"planned_seconds", planned.seconds},
          {"bubble", *std::ranges::min_element(bubbles)},
          {"planned_bubble", planned.bubble},
          {"parameters", setup.config.parameters()},
          {"forward_seconds", forward_seconds},
          {"head_seconds", unit * model.head_operations_of(1)},
          {"ranks", ranks},
          {"planned", stages}};
}

int run(int argc, char** argv) {
  if (argc != 2) fail(ErrorKind::usage, "expected SETTINGS, a JSON object");
  const Setup setup(Json::parse(argv[1]));
  mpi::Environment environment;
  const Json result = train_in_grid(environment.world(), setup);
  if (environment.world().is_root()) fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace
}  // namespace bitloom::bench

int main(int argc, char** argv) {
  try {
    return bitloom::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bitloom_bench_parallel: {}\n", error.what());
    bitloom::mpi::abort_all(1);
  }
}
