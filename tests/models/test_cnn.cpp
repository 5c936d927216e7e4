// Convolutional nets: gradients of every kind of layer, what is kept of a pass, initial values that are not random.
#include "models/cnn/cnn.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "models/cnn/initial_values.h"
#include "nn/ops.h"
#include "tests/models/cnn_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/finite_differences.h"
#include "tests/support/message_of.h"
#include "train/memory.h"
#include "train/task.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::small_cnn;
using bitloom::test::SmallCnn;

namespace {

constexpr std::size_t examples = 3;

// Normalised pixels of small images as numbers of type T, converted to values, and their labels.
template <typename T>
train::Classification::Source batch_of(nn::Engine& engine, const Cnn& net, DType values) {
  return [&engine, &net, values](std::uint64_t, std::uint64_t) {
    const data::Dataset images = test::small_images(examples, net.config.image, net.config.classes);
    std::vector<T> numbers;
    for (const std::uint8_t pixel : images.pixels) numbers.push_back((static_cast<T>(pixel) - 128) / 64);
    const std::vector<std::int32_t> labels(images.labels.begin(), images.labels.end());
    nn::Tensor x = engine.from(std::span<const T>(numbers), net.input(examples), nn::Use::data);
    if (values != dtype_of<T>()) {
      nn::Tensor converted = engine.empty(x.shape(), values, nn::Use::data);
      nn::convert(engine, x, converted);
      x = converted;
    }
    return train::Classification::Batch{x, engine.from(std::span<const std::int32_t>(labels), {examples}, nn::Use::data)};
  };
}

// Loss of a pass over three images; its gradients are added to those of the parameters.
double loss_of(SmallCnn& cnn, train::Classification& task, bool backward) {
  nn::Stash stash;
  nn::Pass pass{cnn.engine};
  if (backward) pass.stash = &stash;
  train::LossSum sum(cnn.engine);
  sum.add(train::run_micro_batch(task, pass, 1));
  CHECK(stash.empty());
  return sum.total().sum;
}

// Patches of k x k of an image's numbers (channels, height, width), one after the other: (patches, channels, k, k).
std::vector<double> patches_of(const data::Dataset& images, const PixelScale& scale, std::size_t i, std::size_t k) {
  const data::ImageShape& shape = images.shape;
  std::vector<double> patches;
  for (std::size_t y = 0; y + k <= shape.height; ++y) {
    for (std::size_t x = 0; x + k <= shape.width; ++x) {
      for (std::size_t c = 0; c < shape.channels; ++c) {
        for (std::size_t j = 0; j < k * k; ++j) {
          const double pixel = images.image(i)[(c * shape.height + y + j / k) * shape.width + x + j % k];
          patches.push_back((pixel - static_cast<double>(scale.mean[c])) / static_cast<double>(scale.deviation[c]));
        }
      }
    }
  }
  return patches;
}

}  // namespace

TEST_CASE("gradients of layers of all kinds of convolutional nets are those of finite differences", "[cnn]") {
  for (std::size_t which = 0; which < test::cnn_descriptions().size(); ++which) {
    SmallCnn cnn(small_cnn(which), DType::f64, "ref");
    INFO(cnn.net.config.name);
    CHECK(cnn.net.layers->output(cnn.net.input(examples)) == nn::Shape{examples, 3});
    train::Classification task(cnn.net.layers, cnn.net.input(examples), batch_of<double>(cnn.engine, cnn.net, DType::f64), 0.1);
    nn::clear_gradients(cnn.engine, cnn.parameters);
    loss_of(cnn, task, true);
    nn::settle_gradients(cnn.engine, cnn.parameters);
    const auto [found, expected] = test::differences(cnn.engine, cnn.parameters, [&] { return loss_of(cnn, task, false); });
    CHECK(compare(found, expected, 1e-6) == "");
  }
}

// The convolutions of a residual block at the beginning kept the gradient to themselves, and a norm behind a global pool had
// the channels of no axis.
TEST_CASE("a convolutional net may begin with a residual block, and have a norm behind a global pool", "[cnn]") {
  for (const std::string layers : {R"({"kind": "basic_block", "channels": 4}, {"kind": "global_mean_pool"})",
                                   R"({"kind": "basic_block", "channels": 2}, {"kind": "global_mean_pool"})",
                                   R"({"kind": "basic_block", "channels": 3, "stride": 2}, {"kind": "max_pool"})",
                                   R"({"kind": "norm"}, {"kind": "basic_block", "channels": 4})",
                                   R"({"kind": "conv", "channels": 4}, {"kind": "global_mean_pool"}, {"kind": "norm"})"}) {
    INFO(layers);
    CnnConfig config = parse_cnn(R"({"activation": "tanh", "layers": [)" + layers + R"(, {"kind": "linear"}]})", "it");
    config.image = test::small_image;
    config.classes = 3;
    SmallCnn cnn(config, DType::f64, "ref");
    CHECK(cnn.net.layers->output(cnn.net.input(examples)) == nn::Shape{examples, 3});
    train::Classification task(cnn.net.layers, cnn.net.input(examples), batch_of<double>(cnn.engine, cnn.net, DType::f64));
    nn::clear_gradients(cnn.engine, cnn.parameters);
    loss_of(cnn, task, true);
    nn::settle_gradients(cnn.engine, cnn.parameters);
    const auto [found, expected] = test::differences(cnn.engine, cnn.parameters, [&] { return loss_of(cnn, task, false); });
    CHECK(compare(found, expected, 1e-6) == "");
    // And a step of training.
    nn::Engine engine;
    Cnn net(config);
    train::Classification floats(net.layers, net.input(examples), batch_of<float>(engine, net, DType::f32));
    train::TrainOptions options;
    options.optimizer.rule = "sgd";
    train::Trainer trainer(engine, floats, options);
    CHECK(std::isfinite(trainer.step().loss));
    for (const nn::Parameter* parameter : trainer.parameters()) {
      INFO(parameter->name);
      const std::vector<float> gradient = engine.to_host<float>(parameter->gradient);
      CHECK(std::ranges::all_of(gradient, [](float each) { return std::isfinite(each); }));
      CHECK(std::ranges::any_of(gradient, [](float each) { return each != 0; }));
    }
  }
}

TEST_CASE("what a convolutional net keeps of a pass was predicted", "[cnn]") {
  for (std::size_t which = 0; which < test::cnn_descriptions().size(); ++which) {
    for (const unsigned bits : {0U, 2U}) {
      for (const DType values : {DType::f32, DType::bf16}) {
        CnnConfig config = small_cnn(which);
        if (bits != 0) config.activation = "gelu";
        config.activation_bits = bits;
        if (values == DType::bf16) config.activation_quantiser = nn::Quantiser::act_nn;
        INFO(config.name << ", " << bits << " bits, " << dtype_name(values));
        nn::Engine engine;
        Cnn net(config);
        train::TrainOptions options;
        options.values = values;
        options.optimizer.rule = bits == 0 ? "sgd" : "adamw";
        if (which == 0) options.optimizer.rule = "sgd";  // its biases have rates of their own
        options.optimizer.average = bits == 0 ? 0 : 0.9;
        options.optimizer.lookahead = bits == 0 && values == DType::bf16 ? 2 : 0;
        train::Classification task(net.layers, net.input(examples), batch_of<float>(engine, net, values));
        const train::MemoryNeeds needs = train::predict_memory(*net.layers, net.input(examples), options);
        train::Trainer trainer(engine, task, options);
        engine.pool().reset_peaks();
        const train::StepReport report = trainer.step();
        CHECK(report.stash_bytes == needs.stash);
        CHECK(needs.stash > 1000);
        CHECK(engine.pool().count(nn::Use::stash).peak <= needs.stash);
        CHECK(engine.pool().count(nn::Use::gradients).peak == needs.gradients);
        std::uint64_t others = 0;  // averages and slow weights of moving statistics
        std::vector<std::pair<std::string, nn::Tensor*>> buffers;
        net.layers->add_buffers(engine, values, buffers);
        const bool has_others = options.optimizer.lookahead > 0 || options.optimizer.average > 0;
        for (const auto& [name, tensor] : buffers) others += has_others ? tensor->bytes() : 0;
        CHECK(engine.pool().count(nn::Use::optimizer).peak == needs.optimizer + others);
      }
    }
  }
}

TEST_CASE("whitening kernels make patches white, and their second half is the first's negative", "[cnn]") {
  const data::Dataset images = test::small_images(50, {9, 8, 3});
  const PixelScale scale = fit_pixel_scale(images);
  for (const std::size_t k : {2U, 3U}) {
    const std::size_t taps = 3 * k * k;
    const std::vector<float> kernels = whitening_kernels(images, scale, k);
    REQUIRE(kernels.size() == 2 * taps * taps);
    // Covariance of the responses of the first half of the filters, over all patches.
    std::vector<double> sums(taps);
    std::vector<double> products(taps * taps);
    double count = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
      const std::vector<double> patches = patches_of(images, scale, i, k);
      for (std::size_t p = 0; p < patches.size(); p += taps, ++count) {
        std::vector<double> response(taps);
        for (std::size_t f = 0; f < taps; ++f) {
          for (std::size_t t = 0; t < taps; ++t) response[f] += static_cast<double>(kernels[f * taps + t]) * patches[p + t];
          sums[f] += response[f];
        }
        for (std::size_t f = 0; f < taps * taps; ++f) products[f] += response[f / taps] * response[f % taps];
      }
    }
    double before = 0;
    for (std::size_t f = 0; f < taps; ++f) {
      // A kernel is v / sqrt(eigenvalue + epsilon), |v| = 1, so that its responses have the variance 1 - epsilon |kernel|^2.
      double square = 0;
      float largest = 0;
      for (std::size_t t = 0; t < taps; ++t) {
        const float value = kernels[f * taps + t];
        square += static_cast<double>(value) * static_cast<double>(value);
        if (std::abs(value) > std::abs(largest)) largest = value;
        CHECK(kernels[(taps + f) * taps + t] == -value);
      }
      CHECK(square > before);  // eigenvalues descend
      before = square;
      CHECK(largest > 0);
      for (std::size_t g = 0; g < taps; ++g) {
        const double covariance = (products[f * taps + g] - sums[f] * sums[g] / count) / (count - 1);
        CHECK(std::abs(covariance - (f == g ? 1 - 5e-4 * square : 0)) < 1e-4);
      }
    }
  }
  CHECK(has(message_of(ErrorKind::usage, [&] { whitening_kernels(images, scale, 9); }), "patches of 9 x 9 in images of 9 x 8"));
}

TEST_CASE("whitening looks at the first 5,000 images", "[cnn]") {
  data::Dataset images = test::small_images(5010, {3, 3, 1});
  const PixelScale scale = fit_pixel_scale(images);
  const std::vector<float> all = whitening_kernels(images, scale, 2);
  data::truncate(images, 5000);
  CHECK(whitening_kernels(images, scale, 2) == all);
  data::truncate(images, 4999);
  CHECK(whitening_kernels(images, scale, 2) != all);
}

TEST_CASE("convolutions begin as the identity on their first channels, the whitening layer as its kernels", "[cnn]") {
  const data::Dataset images = test::small_images(20, test::small_image);
  const PixelScale scale = fit_pixel_scale(images);
  for (const std::string& backend : test::tested_backends()) {
    SmallCnn cnn(small_cnn(0), DType::f32, backend);
    const auto values_of = [&](const nn::Parameter& parameter) { return cnn.engine.to_host<float>(parameter.value); };
    std::vector<std::vector<float>> before;
    for (const nn::Parameter* parameter : cnn.parameters) before.push_back(values_of(*parameter));
    write_initial_values(cnn.engine, cnn.net, images, scale);
    REQUIRE(cnn.net.identities.size() == 5);
    REQUIRE(cnn.net.whitening != nullptr);
    CHECK(values_of(*cnn.net.whitening) == whitening_kernels(images, scale, 2));
    std::size_t changed = 0;
    for (std::size_t p = 0; p < cnn.parameters.size(); ++p) {
      const nn::Parameter& parameter = *cnn.parameters[p];
      INFO(parameter.name);
      std::vector<float> expected = before[p];
      if (&parameter == cnn.net.whitening) continue;
      if (std::ranges::find(cnn.net.identities, &parameter) != cnn.net.identities.end()) {
        const std::size_t inputs = parameter.shape[1];
        for (std::size_t o = 0; o < std::min(inputs, parameter.shape[0]); ++o) {
          for (std::size_t i = 0; i < inputs; ++i) {
            for (std::size_t tap = 0; tap < 9; ++tap) expected[(o * inputs + i) * 9 + tap] = o == i && tap == 4 ? 1 : 0;
          }
        }
        CHECK(expected != before[p]);
        ++changed;
      }
      CHECK(values_of(parameter) == expected);
      CHECK(cnn.engine.to_host<float>(parameter.read()) == expected);
    }
    CHECK(changed == 5);
  }
  // 20 of 16 inputs: the last four are random; a net that does not say so begins at random everywhere.
  SmallCnn other(small_cnn(1));
  CHECK(other.net.identities.empty());
  CHECK(other.net.whitening == nullptr);
}

// Kernels of 2 x 2 had their 1 a column to the left of the centre.
TEST_CASE("the identity that a convolution begins with moves no pixel, in kernels of even sides too", "[cnn]") {
  for (const std::size_t kernel : {1U, 2U, 3U, 4U}) {
    INFO(kernel);
    CnnConfig config = parse_cnn(R"({"identity_start": true, "layers": [{"kind": "conv", "channels": 3, "kernel": )" +
                                     std::to_string(kernel) + R"(}, {"kind": "linear"}]})",
                                 "it");
    config.image = test::small_image;
    config.classes = 3;
    SmallCnn cnn(config, DType::f32, "ref");
    const data::Dataset images = test::small_images(examples, config.image);
    write_initial_values(cnn.engine, cnn.net, images, fit_pixel_scale(images));
    const nn::Tensor x = batch_of<float>(cnn.engine, cnn.net, DType::f32)(0, 0).x;
    nn::Pass pass{cnn.engine};
    pass.training = false;
    const nn::Tensor y = (*cnn.net.layers)[0].forward(pass, x);
    const std::vector<float> from = cnn.engine.to_host<float>(x), to = cnn.engine.to_host<float>(y);
    const std::size_t side = config.image.height, channels = config.image.channels;
    const std::size_t rows = y.shape()[1], columns = y.shape()[2];
    REQUIRE(rows >= side);
    REQUIRE(columns >= side);
    std::vector<float> moved;
    for (std::size_t n = 0; n < examples; ++n) {
      for (std::size_t row = 0; row < side; ++row) {
        for (std::size_t column = 0; column < side; ++column) {
          for (std::size_t c = 0; c < channels; ++c) moved.push_back(to[((n * rows + row) * columns + column) * 3 + c]);
        }
      }
    }
    CHECK(moved == from);
  }
}

TEST_CASE("which vectors of a net decay, learn faster or not at all", "[cnn]") {
  const auto find = [](SmallCnn& cnn, const std::string& name) -> const nn::Parameter& {
    const auto found = std::ranges::find(cnn.parameters, name, &nn::Parameter::name);
    REQUIRE(found != cnn.parameters.end());
    return **found;
  };
  SmallCnn groups(small_cnn(0));
  CHECK(find(groups, "layers.0.weight").is_frozen);
  CHECK_FALSE(find(groups, "layers.0.bias").is_frozen);
  CHECK(find(groups, "layers.2.norm1.bias").rate == 64);
  CHECK(find(groups, "layers.2.conv1.weight").rate == 1);
  for (const nn::Parameter* parameter : groups.parameters) {
    INFO(parameter->name);
    CHECK(parameter->decays);
    CHECK(parameter->is_frozen == (parameter->name == "layers.0.weight" || parameter->name.ends_with("gain")));
  }
  SmallCnn blocks(small_cnn(1));
  CHECK(find(blocks, "layers.4.skip_norm.bias").rate == 1);
  for (const nn::Parameter* parameter : blocks.parameters) {
    CHECK(parameter->decays == (parameter->shape.axes() > 1));
    CHECK_FALSE(parameter->is_frozen);
  }
}
