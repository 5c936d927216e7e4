// bitloom_bench_gpt NET f32|bf16|f16 VOCABULARY SEQUENCES TOKENS DROPOUT [DEVICE [BITS]]: trains a GPT as `bitloom train gpt`
// does, on made-up text, by commands on standard input, so that bench/gpt_peers.py can run it in turns with other programs.
// DEVICE: cpu or cuda:N; BITS: kept of every activation's input, without it all. Its replies: bench/float_worker.h; `save`
// writes the parameters and, as "batches" (N,B,T+1), the texts of the steps, which come again after N.
#include <fmt/format.h>
#include <omp.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/float_worker.h"
#include "bench/timing.h"
#include "core/error.h"
#include "core/random.h"
#include "models/gpt/language_task.h"
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

// Operations of a pass forward and one backward, products alone; the backward pass has twice as many.
double product_operations(const models::GptConfig& config, std::size_t sequences, std::size_t tokens) {
  const auto of = [](std::size_t n) { return static_cast<double>(n); };
  const double weights =
      12 * of(config.layers) * of(config.width) * of(config.width) + of(config.width) * of(config.vocabulary);
  const double pairs = of(tokens) * of(tokens + 1) / 2;  // of a query and a key that it sees
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

  Json steps(std::size_t n) { return run_steps(engine_, trainer_, n); }
  Json peak() { return measure_peak(engine_, setup_.values); }

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

}  // namespace
}  // namespace bitloom::bench

int main(int argc, char** argv) {
  using namespace bitloom::bench;
  return serve<Session>("bitloom_bench_gpt", [&] { return parse(argc, argv); });
}
