// Several processes that evaluate and train a convolutional net: the numbers of one process.
#include <string>
#include <vector>

#include "models/cnn/evaluate.h"
#include "nn/ops.h"
#include "tests/models/cnn_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/mpi.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;

namespace {

constexpr std::size_t examples = 4, micro_batches = 12;  // a multiple of 1, 2, 3 and 4

// SGD with averages, or lookahead, on a net with batch norm, whose moving averages all processes contribute to.
struct Run {
  explicit Run(mpi::Comm* comm, double average = 0)
      : grid(test::data_grid(comm)),
        net(test::small_cnn(1)),
        batches(images, scale, options(comm)),
        task(net.layers, net.input(examples),
             [this](std::uint64_t step, std::uint64_t micro_batch) {
               const ImageBatch batch = batches.get(step, micro_batch);
               return train::Classification::Batch{
                   engine.from(std::span<const float>(batch.images), net.input(examples), nn::Use::data),
                   engine.from(std::span<const std::int32_t>(batch.labels), {examples}, nn::Use::data)};
             }),
        trainer(engine, task, train_options(average), {grid.get()}) {}

  static ImageBatches::Options options(const mpi::Comm* comm) {
    ImageBatches::Options options;
    options.batch = examples * micro_batches;
    options.micro_batch = examples;
    options.augment = data::parse_augment("crop2");
    options.flip = Flip::alternating;
    options.ranks = comm == nullptr ? 1 : comm->size();
    return options;
  }
  static train::TrainOptions train_options(double average) {
    train::TrainOptions options;
    options.micro_batches = micro_batches;
    options.optimizer.rule = "sgd";
    options.optimizer.average = average;
    options.optimizer.lookahead = average > 0 ? 0 : 2;
    options.optimizer.lookahead_steps = 5;
    options.rate.peak = 0.05;
    return options;
  }
  // Parameters and moving averages.
  std::vector<double> state() {
    std::vector<double> all = test::all_of(engine, trainer.parameters(), &nn::Parameter::value);
    std::vector<std::pair<std::string, nn::Tensor*>> buffers;
    net.layers->add_buffers(engine, DType::f32, buffers);
    for (const auto& [name, tensor] : buffers) {
      const std::vector<float> values = engine.to_host<float>(*tensor);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::unique_ptr<mpi::Grid> grid;
  data::Dataset images = test::small_images(100, test::small_image);
  PixelScale scale = fit_pixel_scale(images);
  nn::Engine engine;
  Cnn net;
  ImageBatches batches;
  train::Classification task;
  train::Trainer trainer;
};

}  // namespace

TEST_CASE("processes that share the evaluation of a convolutional net count what one counts", "[cnn]") {
  const data::Dataset images = test::small_images(900, test::small_image);  // four parts
  test::SmallCnn cnn(test::small_cnn(1));
  CnnClassifier classifier(cnn.engine, cnn.net, fit_pixel_scale(images), DType::f32, {.mirror = true, .shift = 0});
  mpi::Comm alone;
  const auto expected = classifier.evaluate(alone, images);
  const auto result = classifier.evaluate(test::world(), images);
  CHECK(result.confusion == expected.confusion);
  CHECK(result.loss == expected.loss);
  CHECK(result.correct == expected.correct);
  CHECK(result.images == 900);
  REQUIRE(result.mistakes.size() == expected.mistakes.size());
  for (std::size_t i = 0; i < result.mistakes.size(); ++i) {
    CHECK(result.mistakes[i].image == expected.mistakes[i].image);
    CHECK(result.mistakes[i].label == expected.mistakes[i].label);
    CHECK(result.mistakes[i].probability == expected.mistakes[i].probability);
  }
  CHECK(result.correct > 0);
}

TEST_CASE("processes that share the steps of a convolutional net train one net", "[cnn]") {
  Run alone(nullptr);
  Run together(&test::world());
  for (int i = 0; i < 5; ++i) {
    const double expected = alone.trainer.step().loss;
    CHECK(std::abs(together.trainer.step().loss - expected) < 1e-4 * expected);
  }
  const std::vector<double> state = together.state();
  CHECK(test::compare(state, alone.state(), 1e-3) == "");
  std::vector<double> of_root = state;
  test::world().broadcast(std::span(of_root));
  CHECK_FALSE(test::world().flag_any(of_root != state));
}

TEST_CASE("a checkpoint of processes that share steps has the averages of one, of moving statistics too", "[cnn]") {
  Run alone(nullptr, 0.9);
  Run together(&test::world(), 0.9);
  test::loss_after(alone.trainer, 3);
  test::loss_after(together.trainer, 3);
  const auto averages_of = [](const TensorFile& file) {
    std::vector<double> all;
    for (const auto& [name, tensor] : file.tensors) {
      if (!name.starts_with("optimizer.average.")) continue;
      for (const float x : tensor.as<float>()) all.push_back(static_cast<double>(x));
    }
    return all;
  };
  const TensorFile expected = test::saved(alone.trainer);
  const TensorFile found = test::everywhere(test::world(), test::saved(together.trainer));
  REQUIRE(found.contains("optimizer.average.layers.1.moving_mean"));
  CHECK(test::compare(averages_of(found), averages_of(expected), 1e-3) == "");
  // A run goes on from it by itself.
  Run other(nullptr, 0.9);
  test::load(other.trainer, found);
  CHECK(test::saved(other.trainer).serialize() == found.serialize());
}
