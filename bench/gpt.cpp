// bitloom_bench_gpt NET f32|bf16|f16 VOCABULARY SEQUENCES TOKENS DROPOUT [DEVICE [BITS]]: trains a GPT as `bitloom train gpt`
// does, on made-up text, by commands on standard input, so that bench/gpt_peers.py can run it in turns with other programs.
// DEVICE: cpu or cuda:N; BITS: kept of every activation's input, without it all. Every answer is one line of JSON.
//
//   save FILE  writes the parameters and, as "batches" (N,B,T+1), the texts of the steps, which come again after N
//   steps N    trains N steps: their losses, seconds of each, by the clock and of processors, and the peaks of memory so far:
//              of tensors, of what the device gave for them, and of this process on this machine
//   peak       products of two large matrices: operations per second, by the clock and of processors
#include <fmt/format.h>
#include <omp.h>

#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "core/error.h"
#include "core/random.h"
#include "models/gpt/language_task.h"
#include "nn/measure.h"
#include "nn/ops.h"
#include "train/trainer.h"

namespace bitloom::bench {
namespace {

using Json = nlohmann::json;

constexpr std::size_t batches = 4;

// A text in which small tokens are frequent, as in real ones, so that there is something to learn.
std::int32_t token_at(std::size_t i, std::size_t vocabulary) {
  const double u = Random(1, Stream::synthetic_data, i).uniform();
  return static_cast<std::int32_t>(u * u * u * static_cast<double>(vocabulary));
}

// The largest resident memory of this process, in bytes; 0 where the system does not say.
std::uint64_t resident_peak() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoull(line.substr(6));
  }
  return 0;
}

// Operations of a pass forward and one backward, products alone; the backward pass has twice as many.
double product_operations(const models::GptConfig& config, std::size_t sequences, std::size_t tokens) {
  const auto of = [](std::size_t n) { return static_cast<double>(n); };
  const double weights =
      12 * of(config.layers) * of(config.width) * of(config.width) + of(config.width) * of(config.vocabulary);
  const double pairs = of(tokens) * of(tokens + 1) / 2;  // pairs of a query and a key that it sees
  return 3 * of(sequences) * (2 * of(tokens) * weights + 4 * of(config.layers) * pairs * of(config.width));
}

struct Setup {
  models::GptConfig config;
  nn::Device device;
  DType values;
  std::size_t sequences, tokens;
};

class Session {
 public:
  explicit Session(const Setup& setup)
      : setup_(setup),
        engine_(setup.device),
        net_(setup.config, setup.tokens),
        task_(net_, setup.sequences,
              [this](std::uint64_t step, std::uint64_t /*micro_batch*/, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets) { read(step, inputs, targets); }),
        trainer_(engine_, task_, options(setup.values)),
        text_(batches * setup.sequences * (setup.tokens + 1)) {
    // Before any step is timed, as PyTorch has its batches.
    for (std::size_t i = 0; i < text_.size(); ++i) text_[i] = token_at(i, setup_.config.vocabulary);
  }

  Json describe() const {
    return {{"parameters", setup_.config.parameters()},
            {"operations", product_operations(setup_.config, setup_.sequences, setup_.tokens)},
            {"threads", omp_get_max_threads()},
            {"cpu", cpu_name()},
            {"device", setup_.device == nn::Device{} ? "cpu" : nn::describe_gpu(setup_.device.index).name}};
  }

  Json save(const std::string& path) {
    TensorFile file;
    for (const nn::Parameter* parameter : trainer_.parameters()) {
      train::save_tensor(engine_, file, parameter->name, parameter->value);
    }
    file.put("batches", {batches, setup_.sequences, setup_.tokens + 1}, text_);
    file.save(path);
    return {{"saved", path}};
  }

  Json steps(std::size_t n) {
    std::vector<double> losses;
    std::vector<double> seconds;
    std::vector<double> processor_seconds;
    for (std::size_t i = 0; i < n; ++i) {
      const std::clock_t start = std::clock();
      const train::StepReport report = trainer_.step();
      processor_seconds.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
      losses.push_back(report.loss);
      seconds.push_back(report.seconds);
    }
    return {{"losses", losses},
            {"seconds", seconds},
            {"processor_seconds", processor_seconds},
            {"notes", engine_.take_notes()},
            {"pool_peak", engine_.pool().total().peak},
            {"pool_reserved", engine_.pool().reserved()},
            {"resident_peak", resident_peak()}};
  }

  Json peak() {
    constexpr std::size_t side = 2048;
    constexpr double slot = 0.5;  // seconds
    if (setup_.device.kind == nn::Device::Kind::cuda) return {{"peak", nn::measure_matmul(engine_, setup_.values, slot)}};
    const auto operations = 2.0 * side * side * side;
    nn::Tensor a = engine_.zeros({side, side}, setup_.values, nn::Use::workspace);
    nn::Tensor b = engine_.zeros({side, side}, setup_.values, nn::Use::workspace);
    nn::Tensor out = engine_.empty({side, side}, setup_.values, nn::Use::workspace);
    nn::fill(engine_, a, 0.5);
    nn::fill(engine_, b, 0.25);
    const double seconds = fastest(slot, [&] { nn::matmul(engine_, a, b, out); });
    const std::clock_t start = std::clock();
    nn::matmul(engine_, a, b, out);
    const double processor_seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    return {{"peak", operations / seconds}, {"processor_peak", operations / processor_seconds}};
  }

 private:
  // As bench/gpt_peers.py has it.
  static train::TrainOptions options(DType values) {
    train::TrainOptions options;
    options.values = values;
    options.rate.peak = 3e-4;
    options.optimizer.beta2 = 0.95;
    options.optimizer.decay = 0.1;
    options.optimizer.clip = 1;
    if (values == DType::f16) options.loss_scale = train::LossScaleOptions();
    return options;
  }

  void read(std::uint64_t step, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    const std::size_t tokens = setup_.tokens;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::size_t sequence = step % batches * setup_.sequences + i / tokens;
      const std::size_t at = sequence * (tokens + 1) + i % tokens;
      inputs[i] = text_[at];
      targets[i] = text_[at + 1];
    }
  }

  Setup setup_;
  nn::Engine engine_;
  models::Gpt net_;
  models::LanguageTask task_;
  train::Trainer trainer_;
  std::vector<std::int32_t> text_;
};

DType parse_values(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (nn::to_text(dtype) == name) return dtype;
  }
  fail(ErrorKind::usage, "type '{}'; expected f32, bf16 or f16", name);
}

Setup parse(int argc, char** argv) {
  if (argc < 7 || argc > 9) {
    fail(ErrorKind::usage, "expected NET f32|bf16|f16 VOCABULARY SEQUENCES TOKENS DROPOUT [DEVICE [BITS]]");
  }
  Setup setup;
  setup.config = models::config_of(models::find_gpt(argv[1], "NET"));
  setup.values = parse_values(argv[2]);
  setup.config.vocabulary = parse_count(argv[3], "VOCABULARY");
  setup.sequences = parse_count(argv[4], "SEQUENCES");
  setup.tokens = setup.config.context = parse_count(argv[5], "TOKENS");
  setup.config.dropout = std::stod(argv[6]);
  if (argc > 7) setup.device = nn::parse_device("DEVICE", argv[7]);
  if (argc > 8) setup.config.activation_bits = static_cast<unsigned>(parse_count(argv[8], "BITS"));
  return setup;
}

Json answer(Session& session, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  std::string argument;
  words >> command >> argument;
  if (command == "save") return session.save(argument);
  if (command == "steps") return session.steps(parse_count(argument, "steps"));
  if (command == "peak") return session.peak();
  fail(ErrorKind::usage, "command '{}'; expected save, steps or peak", command);
}

}  // namespace
}  // namespace bitloom::bench

int main(int argc, char** argv) {
  using namespace bitloom;
  try {
    bench::Session session(bench::parse(argc, argv));
    std::cout << session.describe().dump() << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << bench::answer(session, line).dump() << std::endl;
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bitloom_bench_gpt: {}\n", error.what());
    return 1;
  }
}
