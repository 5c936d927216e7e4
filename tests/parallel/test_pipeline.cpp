// A net over the stages of a pipeline: the bits of one process, messages and stashes as counted beforehand, and a log with the
// bubble of the paper.
#include "train/parallel/pipeline.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/random.h"
#include "models/cnn/cnn.h"
#include "mpi/grid.h"
#include "nn/layers/basic.h"
#include "tests/models/gpt_nets.h"
#include "tests/parallel/stage_needs.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "train/parallel/layer_costs.h"

namespace bitloom::train {
namespace {

using Floats = std::map<std::string, std::vector<float>>;  // by name
using test::world;

std::size_t stages() { return static_cast<std::size_t>(world().size()); }

std::vector<std::uint64_t> count_up(std::size_t count) {
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

nn::Pass make_pass(nn::Engine& engine) {
  nn::Pass pass{engine};
  pass.seed = 9;
  pass.step = 4;
  return pass;
}

// --- Nets ---

// Nine layers, dropout, and a table that the first layer and the loss read.
struct GptNet {
  static models::GptConfig config(bool recompute) {
    models::GptConfig config = test::small_gpt();
    config.layers = 6;
    config.dropout = 0.2;
    config.recompute = recompute;
    return config;
  }
  explicit GptNet(bool recompute = false) : net(config(recompute)), task(net, sequences, test::chains(net.config(), 1)) {}
  PipelineOptions options() const {
    PipelineOptions options;
    options.input = {sequences, net.config().context};
    options.input_type = DType::i32;
    return options;
  }

  static constexpr std::size_t sequences = 2;
  nn::Engine engine;
  models::Gpt net;
  models::LanguageTask task;
};

nn::Tensor random_tensor(nn::Engine& engine, const nn::Shape& shape, std::uint64_t seed) {
  Random random(seed, Stream::test);
  std::vector<float> values(shape.size());
  for (float& value : values) value = static_cast<float>(random.normal());
  return engine.from(std::span<const float>(values), shape, nn::Use::data);
}

std::shared_ptr<nn::Sequence> sequence_of(std::vector<nn::LayerPointer> layers) {
  auto net = std::make_shared<nn::Sequence>();
  for (nn::LayerPointer& layer : layers) net->add(std::move(layer));
  return net;
}

// A net with examples drawn for it, of which a label follows from the first number.
struct DrawnNet {
  DrawnNet(std::shared_ptr<nn::Sequence> net, const nn::Shape& shape, std::int32_t classes)
      : input(shape), task(std::move(net), shape, [this, classes](std::uint64_t step, std::uint64_t micro_batch) {
          Classification::Batch batch{random_tensor(engine, input, 100 * step + micro_batch), {}};
          const std::vector<float> x = engine.to_host<float>(batch.x);
          std::vector<std::int32_t> labels(input[0]);
          for (std::size_t i = 0; i < labels.size(); ++i) {
            labels[i] = x[i * (x.size() / labels.size())] > 0 ? 1 : classes - 1;
          }
          batch.labels = engine.from(std::span<const std::int32_t>(labels), {labels.size()}, nn::Use::data);
          return batch;
        }) {}
  PipelineOptions options() const {
    PipelineOptions options;
    options.input = input;
    return options;
  }

  nn::Engine engine;
  nn::Shape input;
  Classification task;
};

// `train cnn`'s small net: 14 layers, among them batch norm and a residual block with a skip connection.
struct CnnNet : DrawnNet {
  static std::shared_ptr<nn::Sequence> net() {
    models::CnnConfig config = models::find_cnn("tiny");
    config.image = {16, 16, 3};
    config.classes = 10;
    return models::Cnn(config).layers;
  }
  CnnNet() : DrawnNet(net(), {4, 16, 16, 3}, 10) {}
};

// Layers that keep their input alone, all of one size.
struct EqualNet : DrawnNet {
  static constexpr std::size_t width = 8, rows = 4;
  static std::shared_ptr<nn::Sequence> net(std::size_t layers) {
    std::vector<nn::LayerPointer> all;
    nn::LinearOptions options;
    options.bias = false;
    options.deviation = 0.4;
    for (std::size_t i = 0; i < layers; ++i)
      all.push_back(std::make_unique<nn::Linear>(fmt::format("{}", i), width, width, options));
    return sequence_of(std::move(all));
  }
  explicit EqualNet(std::size_t layers) : DrawnNet(net(layers), {rows, width}, 3) {}
  static constexpr std::uint64_t unit = rows * width * sizeof(float);
};

// --- What one process comes to ---

struct Outcome {
  Floats gradients, buffers;
  Loss loss, evaluation;
};

void add_floats(nn::Engine& engine, const std::string& name, const nn::Tensor& tensor, Floats& all) {
  all[name] = engine.to_host<float>(tensor);
}

Floats buffers_of(nn::Engine& engine, const std::vector<std::pair<std::string, nn::Tensor*>>& buffers) {
  Floats all;
  for (const auto& [name, tensor] : buffers) add_floats(engine, name, *tensor, all);
  return all;
}

template <typename Net>
Outcome one_process(std::span<const std::uint64_t> numbers, double scale, DType values = DType::f32) {
  Net net;
  nn::Sequence& layers = net.task.net();
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(layers);
  nn::initialise(net.engine, parameters, values, 3);
  std::vector<std::pair<std::string, nn::Tensor*>> buffers;
  layers.add_buffers(net.engine, values, buffers);
  nn::clear_gradients(net.engine, parameters);
  nn::Stash stash;
  nn::Pass pass = make_pass(net.engine);
  pass.stash = &stash;
  LossSum loss(net.engine), evaluation(net.engine);
  for (const std::uint64_t number : numbers) {
    pass.micro_batch = number;
    loss.add(run_micro_batch(net.task, pass, scale));
  }
  nn::settle_gradients(net.engine, parameters);
  layers.end_step(pass, true, 1);
  pass.stash = nullptr;
  pass.training = false;
  for (const std::uint64_t number : numbers) {
    pass.micro_batch = number;
    evaluation.add(run_micro_batch(net.task, pass, 0));
  }
  Outcome outcome;
  for (const nn::Parameter* each : parameters) add_floats(net.engine, each->name, each->gradient, outcome.gradients);
  outcome.buffers = buffers_of(net.engine, buffers);
  outcome.loss = loss.total();
  outcome.evaluation = evaluation.total();
  return outcome;
}

// --- And a pipeline ---

template <typename Net>
PipelineOptions options_of(Net& net, const char* schedule, bool recompute, std::size_t parts) {
  PipelineOptions options = net.options();
  options.partition = partition(estimated_costs(net.task.net(), options.input), parts);
  options.schedule = schedule;
  options.recompute = recompute;
  return options;
}

std::size_t chunks_of(const char* schedule) { return find_schedule(schedule).takes_chunks ? 2 : 1; }

mpi::Traffic operator-(mpi::Traffic a, const mpi::Traffic& b) {
  a.calls -= b.calls;
  a.bytes_sent -= b.bytes_sent;
  return a;
}

std::int64_t over_ranks(mpi::Comm& comm, std::uint64_t value) {
  std::vector<std::int64_t> sum{static_cast<std::int64_t>(value)};
  comm.sum(std::span(sum));
  return sum[0];
}

// Every result of a step of a pipeline against one process's.
template <typename Net>
void check_step(mpi::Comm& comm, const Outcome& expected, const char* schedule, bool recompute,
                std::span<const std::uint64_t> numbers, double scale, DType values = DType::f32) {
  const std::size_t micro_batches = numbers.size();
  const auto stages = static_cast<std::size_t>(comm.size());
  CAPTURE(stages, schedule, recompute, micro_batches);
  Net net;
  PipelineOptions options = options_of(net, schedule, recompute, stages * chunks_of(schedule));
  options.values = values;
  Pipeline pipeline(net.engine, net.task, comm, options);
  const std::vector<nn::Parameter*> parameters = pipeline.parameters();
  nn::initialise(net.engine, parameters, values, 3);
  std::vector<std::pair<std::string, nn::Tensor*>> buffers;
  pipeline.add_buffers(buffers);
  nn::clear_gradients(net.engine, parameters);
  const std::vector<nn::Parameter*> head = net.task.head_parameters();
  const test::StageNeeds needs = test::predict_stage(net.task.net(), head, options, stages, pipeline.stage(), micro_batches);

  std::map<std::string, int> announced;
  nn::Pass pass = make_pass(net.engine);
  std::size_t passes = 0;
  pipeline.on_pass([&] { ++passes; });
  pass.on_gradient = [&](const nn::Parameter& parameter) { ++announced[parameter.name]; };
  const mpi::Traffic before = comm.traffic(mpi::Collective::message);
  const Loss loss = *pipeline.run(pass, numbers, scale);
  const mpi::Traffic sent = comm.traffic(mpi::Collective::message) - before;
  nn::settle_gradients(net.engine, parameters);

  // Messages: as many and as long as told, and none but between layers.
  CHECK(sent.calls == needs.messages);
  CHECK(sent.bytes_sent == needs.message_bytes);
  CHECK(passes == 2 * micro_batches * pipeline.chunks());
  CHECK(pipeline.peak_stash_bytes() == needs.peak_stash_bytes);

  const mpi::Traffic before_sum = comm.traffic(mpi::Collective::message);
  pipeline.sum_shared_gradients();
  const mpi::Traffic shared = comm.traffic(mpi::Collective::message) - before_sum;
  CHECK(shared.calls == needs.shared_messages);
  CHECK(shared.bytes_sent == needs.shared_bytes);

  // Gradients, moving averages and losses: the same bits.
  for (const nn::Parameter* each : parameters) {
    CAPTURE(each->name);
    const std::vector<float> gradient = net.engine.template to_host<float>(each->gradient);
    const std::vector<float>& of_one = expected.gradients.at(each->name);
    if (stages > 1 && std::ranges::count(head, each) > 0) {
      CHECK(test::compare(gradient, of_one, 1e-6) == "");
    } else {
      CHECK(gradient == of_one);
      if (!each->is_frozen) CHECK(announced[each->name] == 1);
    }
  }
  net.task.net().end_step(pass, true, 1);
  for (const auto& [name, found] : buffers_of(net.engine, buffers)) {
    CAPTURE(name);
    CHECK(found == expected.buffers.at(name));
  }
  if (pipeline.is_last()) {
    CHECK(loss.sum == expected.loss.sum);
    CHECK(loss.count == expected.loss.count);
  } else {
    CHECK(loss.count == 0);
  }
  nn::Pass evaluating = make_pass(net.engine);
  evaluating.training = false;
  const Loss evaluation = pipeline.evaluate(evaluating, numbers);
  if (pipeline.is_last()) {
    CHECK(evaluation.sum == expected.evaluation.sum);
    CHECK(evaluation.count == expected.evaluation.count);
  }

  // Every parameter is on some stage, and counted on one.
  std::uint64_t counted = 0;
  for (const nn::Parameter* each : parameters) counted += pipeline.is_counted_here(*each) ? 1 : 0;
  CHECK(over_ranks(comm, counted) == static_cast<std::int64_t>(expected.gradients.size()));
}

template <typename Net>
void check_all() {
  // Fewer micro-batches than stages, a number that the stages do not divide, and a multiple.
  for (const std::size_t micro_batches : {std::size_t{1}, std::size_t{5}, 2 * stages()}) {
    const double scale = 1.0 / static_cast<double>(micro_batches);
    const std::vector<std::uint64_t> numbers = count_up(micro_batches);
    const Outcome expected = one_process<Net>(numbers, scale);
    for (const NamedSchedule& schedule : named_schedules()) {
      const bool fits = micro_batches % stages() == 0 && 2 * stages() <= Net().task.net().size();
      if (schedule.takes_chunks && !fits) continue;
      for (const bool recompute : {false, true}) check_step<Net>(world(), expected, schedule.name, recompute, numbers, scale);
    }
  }
}

}  // namespace

TEST_CASE("a GPT in a pipeline has one process's gradients, bit by bit, but for the tied table", "[pipeline]") {
  check_all<GptNet>();
}

TEST_CASE("a convolutional net in a pipeline has one process's gradients and moving averages, bit by bit", "[pipeline]") {
  check_all<CnnNet>();
}

TEST_CASE("a pipeline of bf16 values sends them, and has one process's gradients", "[pipeline]") {
  const std::vector<std::uint64_t> numbers = count_up(5);
  const Outcome expected = one_process<GptNet>(numbers, 0.2, DType::bf16);
  for (const bool recompute : {false, true}) {
    check_step<GptNet>(world(), expected, "1f1b", recompute, numbers, 0.2, DType::bf16);
  }
}

// Nothing comes back in an evaluation, and a stage once had all that a slower one had not taken yet in its memory.
TEST_CASE("an evaluation holds back stages that are ahead", "[pipeline]") {
  constexpr std::size_t rows = 8192, micro_batches = 16;
  constexpr std::uint64_t message = rows * EqualNet::width * sizeof(float);
  DrawnNet net(EqualNet::net(stages()), {rows, EqualNet::width}, 3);
  Pipeline pipeline(net.engine, net.task, world(), options_of(net, "1f1b", false, stages()));
  nn::initialise(net.engine, pipeline.parameters(), DType::f32, 3);
  nn::Pass pass = make_pass(net.engine);
  pass.training = false;
  world().barrier();
  net.engine.pool().reset_peaks();
  // Time enough for the others to pass all.
  if (stages() > 1 && pipeline.is_last()) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const Loss loss = pipeline.evaluate(pass, count_up(micro_batches));
  CHECK(loss.count == (pipeline.is_last() ? rows * micro_batches : 0));
  CHECK(net.engine.pool().count(nn::Use::activations).peak <= micro_batches / 2 * message);
}

TEST_CASE("pipelines side by side each have the gradients of their micro-batches", "[pipeline]") {
  for (int stages_of_one = 1; stages_of_one <= world().size(); ++stages_of_one) {
    if (world().size() % stages_of_one != 0) continue;
    const mpi::GridShape shape = mpi::grid_shape(world().size(), stages_of_one, 1);
    mpi::Grid grid(world(), shape);
    std::vector<std::uint64_t> numbers;  // of a step's micro-batches, this pipeline's
    for (int i = 0; i < 4; ++i) numbers.push_back(static_cast<std::uint64_t>(grid.data_index() + i * shape.data));
    const Outcome expected = one_process<CnnNet>(numbers, 0.1);
    for (const bool recompute : {false, true}) check_step<CnnNet>(grid.pipeline(), expected, "1f1b", recompute, numbers, 0.1);
  }
}

TEST_CASE("both stages that have a tied table get the same sum", "[pipeline]") {
  GptNet net;
  Pipeline pipeline(net.engine, net.task, world(), options_of(net, "1f1b", false, stages()));
  const std::vector<nn::Parameter*> parameters = pipeline.parameters();
  nn::initialise(net.engine, parameters, DType::f32, 3);
  nn::clear_gradients(net.engine, parameters);
  pipeline.run(make_pass(net.engine), count_up(3), 0.1);
  nn::settle_gradients(net.engine, parameters);
  pipeline.sum_shared_gradients();
  const bool has_table = pipeline.stage() == 0 || pipeline.is_last();
  nn::Parameter& table = net.net.table();
  CHECK((std::ranges::count(parameters, &table) > 0) == has_table);
  CHECK(pipeline.is_counted_here(table) == (pipeline.stage() == 0));
  std::vector<float> gradient(table.shape.size());
  if (has_table) gradient = net.engine.to_host<float>(table.gradient);
  std::vector<float> of_first = gradient;
  world().broadcast(std::span(of_first));
  if (has_table) CHECK(gradient == of_first);
  CHECK(std::ranges::count(of_first, 0.0F) < static_cast<std::ptrdiff_t>(of_first.size()) / 2);
}

TEST_CASE("what crosses between stages is 2 (K - 1) boundary activations per micro-batch", "[pipeline]") {
  const std::size_t micro_batches = 2 * stages();
  for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
    CAPTURE(schedule);
    GptNet net;
    const std::size_t parts = stages() * chunks_of(schedule);
    if (parts > net.task.net().size()) continue;
    Pipeline pipeline(net.engine, net.task, world(), options_of(net, schedule, false, parts));
    nn::initialise(net.engine, pipeline.parameters(), DType::f32, 3);
    nn::clear_gradients(net.engine, pipeline.parameters());
    const mpi::Traffic before = world().traffic();
    pipeline.run(make_pass(net.engine), count_up(micro_batches), 1);
    const mpi::Traffic sent = world().traffic() - before;
    const std::uint64_t activation = GptNet::sequences * net.net.config().context * net.net.config().width * sizeof(float);
    const std::uint64_t cuts = stages() == 1 ? 0 : parts - 1;  // one stage hands its parts' activations to itself
    CHECK(over_ranks(world(), sent.calls) == static_cast<std::int64_t>(2 * cuts * micro_batches));
    CHECK(over_ranks(world(), sent.bytes_sent) == static_cast<std::int64_t>(2 * cuts * micro_batches * activation));
  }
}

TEST_CASE("a stage's stash has the paper's size", "[pipeline]") {
  // Layers of which each keeps one tensor of a micro-batch: N / M in the paper's letters, of which N is M.
  const std::size_t layers = 3 * stages(), per_stage = 3;
  for (const std::size_t micro_batches : {std::size_t{1}, std::size_t{2}, 3 * stages()}) {
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      for (const bool recompute : {false, true}) {
        CAPTURE(micro_batches, schedule, recompute);
        EqualNet net(layers);
        Pipeline pipeline(net.engine, net.task, world(), options_of(net, schedule.c_str(), recompute, stages()));
        nn::initialise(net.engine, pipeline.parameters(), DType::f32, 3);
        nn::clear_gradients(net.engine, pipeline.parameters());
        net.engine.pool().reset_peaks();
        pipeline.run(make_pass(net.engine), count_up(micro_batches), 1);
        const std::size_t in_flight =
            schedule == "gpipe" ? micro_batches : std::min(micro_batches, stages() - pipeline.stage());
        // The last stage keeps the net's output for the loss, where other micro-batches come before that.
        const std::size_t outputs = pipeline.is_last() && in_flight > 1 ? in_flight : 0;
        const std::size_t tensors = recompute ? in_flight + per_stage : in_flight * per_stage + outputs;
        CHECK(pipeline.peak_stash_bytes() == tensors * EqualNet::unit);
        // The first layer keeps the stage's input, which is there already.
        CHECK(net.engine.pool().count(nn::Use::stash).peak == (tensors - (recompute ? 1 : 0)) * EqualNet::unit);
        CHECK(net.engine.pool().count(nn::Use::stash).now == 0);
      }
    }
  }
}

TEST_CASE("blocks that are computed again inside of a stage change nothing", "[pipeline]") {
  const auto gradients = [](bool block, bool stage) {
    GptNet net(block);
    Pipeline pipeline(net.engine, net.task, world(), options_of(net, "1f1b", stage, stages()));
    nn::initialise(net.engine, pipeline.parameters(), DType::f32, 3);
    nn::clear_gradients(net.engine, pipeline.parameters());
    pipeline.run(make_pass(net.engine), count_up(4), 1);
    nn::settle_gradients(net.engine, pipeline.parameters());
    Floats all;
    for (const nn::Parameter* each : pipeline.parameters()) add_floats(net.engine, each->name, each->gradient, all);
    return all;
  };
  const Floats expected = gradients(false, false);
  CHECK(!expected.empty());
  CHECK(gradients(true, false) == expected);
  CHECK(gradients(true, true) == expected);
}

namespace {

// A pass that a layer saw.
struct Seen {
  std::uint64_t micro_batch = 0;
  bool is_forward = false, is_last = false, again = false, has_stash = false;

  friend bool operator==(const Seen&, const Seen&) = default;
};

// Takes its time, and no core: ranks that share cores are not in each other's way.
class Nap final : public nn::Layer {
 public:
  explicit Nap(std::vector<Seen>* seen = nullptr) : seen_(seen) {}
  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& x) override { return rest(pass, x, true); }
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override { return rest(pass, dy, false); }
  nn::Shape output(const nn::Shape& x) const override { return x; }
  double cost(const nn::Shape&) const override { return 1; }
  std::uint64_t stash_bytes(const nn::Shape&, DType) const override { return 0; }

 private:
  nn::Tensor rest(const nn::Pass& pass, const nn::Tensor& x, bool is_forward) {
    if (seen_ != nullptr) {
      seen_->push_back({pass.micro_batch, is_forward, pass.is_last, pass.again, pass.stash != nullptr});
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return x;
  }

  std::vector<Seen>* seen_;
};

// A step of layers of equal cost.
Events nap(const char* schedule, std::size_t micro_batches, double& bubble) {
  std::vector<nn::LayerPointer> layers;
  for (std::size_t i = 0; i < stages(); ++i) layers.push_back(std::make_unique<Nap>());
  DrawnNet net(sequence_of(std::move(layers)), {2, 3}, 3);
  EventLog log;
  Pipeline pipeline(net.engine, net.task, world(), options_of(net, schedule, false, stages()), &log);
  log.begin_step(0, world());
  pipeline.run(make_pass(net.engine), count_up(micro_batches), 1);
  Events events = log.gather(world()).events;
  std::vector<double> found{bubble_of(events)};
  world().broadcast(std::span(found));
  bubble = found[0];
  return events;
}

}  // namespace

TEST_CASE("the log of a step has its passes and messages, and the paper's bubble", "[pipeline]") {
  const std::size_t micro_batches = 6;
  const double expected = static_cast<double>(stages() - 1) / static_cast<double>(micro_batches + stages() - 1);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    CAPTURE(schedule);
    double bubble = 0;
    const Events events = nap(schedule, micro_batches, bubble);
    CHECK((stages() == 1 || bubble > 0));
    if (!world().is_root()) continue;
    REQUIRE(events.size() == stages());
    // How long passes took depends on what else the machine does; with equal costs their order takes what the paper says.
    Schedule logged(stages());
    for (std::size_t s = 0; s < stages(); ++s) {
      const auto count = [&](EventKind kind) {
        return static_cast<std::size_t>(std::ranges::count(events[s], kind, &Event::kind));
      };
      CHECK(count(EventKind::forward) == micro_batches);
      CHECK(count(EventKind::backward) == micro_batches);
      const std::size_t neighbours = stages() == 1 ? 0 : s == 0 || s + 1 == stages() ? 1 : 2;
      CHECK(count(EventKind::send) == neighbours * micro_batches + (stages() > 1 ? 1 : 0));  // and the wait at the end
      for (const Event& event : events[s]) {
        if (event.kind == EventKind::forward) logged[s].push_back({Work::forward, event.micro_batch, event.chunk});
        if (event.kind == EventKind::backward) logged[s].push_back({Work::backward, event.micro_batch, event.chunk});
      }
    }
    const std::vector<PassCosts> costs(stages());
    CHECK(simulate(logged, {stages(), micro_batches, 1}, costs).bubble == Approx(expected).margin(1e-12));
  }
}

TEST_CASE("layers know which pass is a stage's last of the step, and which is one again", "[pipeline]") {
  for (const bool recompute : {false, true}) {
    CAPTURE(recompute);
    std::vector<Seen> seen;
    std::vector<nn::LayerPointer> layers;
    for (std::size_t i = 0; i < stages(); ++i) layers.push_back(std::make_unique<Nap>(&seen));
    DrawnNet net(sequence_of(std::move(layers)), {2, 3}, 3);
    Pipeline pipeline(net.engine, net.task, world(), options_of(net, "gpipe", recompute, stages()));
    const std::vector<std::uint64_t> numbers{7, 11};  // other processes have those between
    pipeline.run(make_pass(net.engine), numbers, 1);
    std::vector<Seen> expected;
    for (const std::uint64_t m : numbers) {
      // A pass that is computed again, or put off, has no stash before that.
      if (!(recompute && pipeline.is_last())) expected.push_back({m, true, m == 11, false, !recompute});
    }
    for (const std::uint64_t m : numbers) {
      const bool again = recompute && !pipeline.is_last();
      if (recompute) expected.push_back({m, true, m == 11, again, true});
      expected.push_back({m, false, m == 11, again, true});
    }
    CHECK(seen == expected);
  }
}

TEST_CASE("a pipeline refuses stages of other nets", "[pipeline]") {
  if (stages() == 1) return;
  nn::Engine engine;
  const PipelineShape shape{stages(), 1};
  const std::vector<nn::Shape> inputs(stages() + 1, nn::Shape{2, world().rank() == 1 ? 4U : 3U});
  const std::string message =
      test::message_of(ErrorKind::data, [&] { StageMessages(engine, world(), shape, inputs, DType::f32, nullptr); });
  CHECK(test::has(message, "pipeline: stage 1 has f32 (2, 4)"));
  CHECK(test::has(message, "between layers where stage 0 has f32 (2, 3)"));
  const DType values = world().rank() == 1 ? DType::bf16 : DType::f32;
  const std::vector<nn::Shape> same(stages() + 1, nn::Shape{2, 3});
  CHECK(test::has(test::message_of(ErrorKind::data, [&] { StageMessages(engine, world(), shape, same, values, nullptr); }),
                  "pipeline: stage 1 has bf16 (2, 3)"));
}

// A partition that is measured may cut a net where its plan does not.
TEST_CASE("a pipeline refuses micro-batches that are too large for a message, before there is memory for them", "[pipeline]") {
  if (stages() == 1) return;
  nn::Engine engine;
  const PipelineShape shape{stages(), 1};
  std::vector<nn::Shape> inputs(stages() + 1, nn::Shape{1024, 3});
  const auto refused = [&] {
    return test::message_of(ErrorKind::usage, [&] { StageMessages(engine, world(), shape, inputs, DType::f32, nullptr); });
  };
  inputs[1] = {1024, 1024, 512};
  CHECK(refused() ==
        "`micro_batch`: 1024; expected at most 1023, since stages hand on 2.0 MiB of an example, and at most 2.0 GiB at once");
  inputs[1] = {1024, 1024, 511};
  CHECK(refused() == "no error");
  // Nobody sends the net's own input and output.
  inputs = std::vector<nn::Shape>(stages() + 1, nn::Shape{1024, 3});
  inputs.front() = inputs.back() = {1024, 1024, 1024};
  CHECK(refused() == "no error");
}

TEST_CASE("messages between stages are sent from the tensors themselves, one ahead of what is taken", "[pipeline]") {
  if (stages() == 1) return;
  nn::Engine engine;
  const std::size_t micro_batches = 4;
  const PipelineShape shape{stages(), micro_batches};
  const nn::Shape activation{300, 400};
  const std::uint64_t bytes = activation.size() * sizeof(float);
  StageMessages messages(engine, world(), shape, std::vector<nn::Shape>(stages() + 1, activation), DType::f32, nullptr);
  messages.begin(forward_schedule(shape), count_up(micro_batches));
  const auto in_use = [&] { return engine.pool().count(nn::Use::activations).now; };
  const bool sends = static_cast<std::size_t>(world().rank()) + 1 < stages();
  CHECK(in_use() == (world().is_root() ? 0 : bytes));
  for (std::size_t m = 0; m < micro_batches; ++m) {
    const Action action{Work::forward, m, 0};
    nn::Tensor tensor = world().is_root() ? random_tensor(engine, activation, m) : messages.take(action);
    CHECK(engine.to_host<float>(tensor) == engine.to_host<float>(random_tensor(engine, activation, m)));
    if (sends) messages.hand_on(action, tensor);
    messages.poll();
  }
  messages.finish();
  CHECK(in_use() == 0);
  // This one and the next.
  if (!world().is_root() && !sends) CHECK(engine.pool().count(nn::Use::activations).peak == 2 * bytes);
}

TEST_CASE("parts that are not the net's are refused", "[pipeline]") {
  EqualNet net(stages() + 2);
  const auto refused = [&](const Partition& partition, const char* schedule = "1f1b") {
    PipelineOptions options = net.options();
    options.partition = partition;
    options.schedule = schedule;
    return test::message_of(ErrorKind::usage, [&] { Pipeline(net.engine, net.task, world(), options); });
  };
  Partition all = partition(estimated_costs(net.task.net(), net.input), stages());
  CHECK(refused(all) == "no error");
  CHECK(test::has(refused(all, "interleaved"),
                  "`pipeline_schedule`: interleaved, with 1 parts of the net for each stage; expected at least 2"));
  Partition shorter = all;
  --shorter.back().last;
  CHECK(test::has(refused(shorter), fmt::format("`partition`: {} layers; expected the net's, {}", stages() + 1, stages() + 2)));
  CHECK(test::has(refused({}), "`partition`: 0 layers; expected the net's"));
  Partition gap = all;
  gap.front().first = 1;
  CHECK(test::has(refused(gap), "expected parts of at least one layer that follow one another"));
  Partition more = partition(estimated_costs(net.task.net(), net.input), stages() + 1);
  if (stages() > 1)
    CHECK(test::has(refused(more),
                    fmt::format("`partition`: {} parts for {} stages; expected a multiple", stages() + 1, stages())));
}

}  // namespace bitloom::train
