// bitloom_bench_cnn NET f32|bf16|f16 BATCH [DEVICE [BITS [ACTIVATION]]]: trains a convolutional net as `bitloom train cnn`
// does, on made-up images, so that bench/cnn_peers.py can run it in turns with other programs. DEVICE: cpu or cuda:N; BITS:
// kept of every activation's input, 0 for all. Its replies: bench/float_worker.h; `save` writes the net as `bitloom export`
// does and, as "images" (N,B,Y,X,C) and "labels" (N,B), the batches of the steps, which come again after N.
#include <fmt/format.h>
#include <omp.h>

#include <string>
#include <vector>

#include "bench/float_worker.h"
#include "bench/timing.h"
#include "core/error.h"
#include "core/random.h"
#include "data/synthetic.h"
#include "models/cnn/initial_values.h"
#include "models/cnn/model_file.h"
#include "nn/floats.h"

namespace bitloom::bench {
namespace {

using Json = nlohmann::json;

constexpr std::size_t batches = 2;

struct Setup {
  models::CnnConfig config;
  nn::Device device;
  DType values = DType::f32;
  std::size_t batch = 128;
};

class Session {
 public:
  explicit Session(const Setup& setup)
      : setup_(setup),
        engine_(setup.device),
        images_(data::make_synthetic(1, batches * setup.batch)),
        scale_(models::fit_pixel_scale(images_)),
        net_(setup.config),
        task_(
            net_.layers, net_.input(setup.batch), [this](std::uint64_t step, std::uint64_t) { return read(step); },
            setup.config.training.label_smoothing),
        trainer_(engine_, task_, options()) {
    const TensorFile initial = models::initial_values(engine_, net_.config, images_, scale_, options().seed);
    trainer_.load_model(&initial);
    // Before any step is timed, as PyTorch has its batches.
    const std::size_t size = images_.shape.size();
    numbers_.resize(images_.size() * size);
    for (std::size_t i = 0; i < images_.size(); ++i) {
      models::to_numbers(images_.image(i), images_.shape, scale_, false, std::span(numbers_).subspan(i * size, size));
      labels_.push_back(images_.labels[i]);
    }
  }

  Json describe() {
    return {{"parameters", net_.parameters()},
            {"operations", 3 * net_.cost() * static_cast<double>(setup_.batch)},
            {"threads", omp_get_max_threads()},
            {"cpu", cpu_name()},
            {"device", setup_.device == nn::Device{} ? "cpu" : nn::describe_gpu(setup_.device.index).name}};
  }

  Json save(const std::string& path) {
    TensorFile file =
        models::to_pytorch_names(models::save_cnn(engine_, net_, setup_.values, {net_.config, scale_, images_.class_names}));
    const data::ImageShape& shape = images_.shape;
    file.put("images", {batches, setup_.batch, shape.height, shape.width, shape.channels}, numbers_);
    file.put("labels", {batches, setup_.batch}, labels_);
    file.metadata["training"] = Json{{"learning_rate", setup_.config.training.learning_rate},
                                     {"momentum", setup_.config.training.momentum},
                                     {"weight_decay", setup_.config.training.weight_decay},
                                     {"label_smoothing", setup_.config.training.label_smoothing},
                                     {"bias_rate", setup_.config.norm.bias_rate},
                                     {"decays_vectors", setup_.config.decays_vectors}}
                                    .dump();
    file.save(path);
    return {{"saved", path}};
  }

  Json steps(std::size_t n) { return run_steps(engine_, trainer_, n); }
  Json peak() { return measure_peak(engine_, setup_.values); }

 private:
  train::TrainOptions options() const {
    const models::CnnTraining& training = setup_.config.training;
    train::TrainOptions options;
    options.values = setup_.values;
    options.rate.peak = training.learning_rate;
    options.optimizer.rule = "sgd";
    options.optimizer.momentum = training.momentum;
    options.optimizer.decay = training.weight_decay;
    if (setup_.values == DType::f16) options.loss_scale = train::LossScaleOptions();
    return options;
  }

  train::Classification::Batch read(std::uint64_t step) {
    const std::size_t first = step % batches * setup_.batch;
    const std::size_t size = images_.shape.size();
    const nn::Tensor x = nn::from_floats(engine_, std::span<const float>(numbers_).subspan(first * size, setup_.batch * size),
                                         net_.input(setup_.batch), setup_.values, nn::Use::data);
    return {x,
            engine_.from(std::span<const std::int32_t>(labels_).subspan(first, setup_.batch), {setup_.batch}, nn::Use::data)};
  }

  Setup setup_;
  nn::Engine engine_;
  data::Dataset images_;
  models::PixelScale scale_;
  models::Cnn net_;
  train::Classification task_;
  train::Trainer trainer_;
  std::vector<float> numbers_;
  std::vector<std::int32_t> labels_;
};

Setup parse(int argc, char** argv) {
  if (argc < 4 || argc > 7) fail(ErrorKind::usage, "expected NET f32|bf16|f16 BATCH [DEVICE [BITS [ACTIVATION]]]");
  Setup setup;
  setup.config = models::find_cnn(argv[1]);
  setup.config.image = {32, 32, 3};
  setup.values = parse_values(argv[2]);
  setup.batch = parse_count(argv[3], "BATCH");
  if (argc > 4) setup.device = nn::parse_device("DEVICE", argv[4]);
  if (argc > 5) setup.config.activation_bits = static_cast<unsigned>(std::stoul(argv[5]));
  if (argc > 6) setup.config.activation = argv[6];
  setup.config.classes = data::synthetic_classes;
  return setup;
}

}  // namespace
}  // namespace bitloom::bench

int main(int argc, char** argv) {
  using namespace bitloom::bench;
  return serve<Session>("bitloom_bench_cnn", [&] { return parse(argc, argv); });
}
