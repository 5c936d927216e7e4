// Three small nets, trained for ten steps, against PyTorch: the files of tests/golden, which make_float_nets.py there made.
#include <charconv>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/safetensors.h"
#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "nn/layers/images.h"
#include "nn/layers/tokens.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "train/trainer.h"

using namespace bitloom;
using bitloom::test::compare;
using bitloom::test::device_of;
using bitloom::test::tested_backends;

namespace {

constexpr std::size_t steps = 10;
constexpr double f32_limit = 1e-4;
// The files hold results of f64 rounded to f32, and so does what the nets of f64 are compared with.
constexpr double f64_limit = 2e-7;

nn::LinearOptions as_outputs_inputs() {
  nn::LinearOptions options;
  options.transposed = true;
  return options;
}

std::unique_ptr<nn::Sequence> mlp() {
  constexpr std::size_t inputs = 10, hidden = 20, classes = 5;
  const nn::Activation& gelu = nn::find_activation("gelu");
  auto net = std::make_unique<nn::Sequence>();
  net->emplace<nn::Linear>("first", inputs, hidden, as_outputs_inputs());
  net->emplace<nn::LayerNorm>("norm1", hidden);
  net->emplace<nn::Activate>(gelu);
  auto branch = std::make_unique<nn::Sequence>();
  branch->emplace<nn::Linear>("second", hidden, hidden, as_outputs_inputs());
  branch->emplace<nn::LayerNorm>("norm2", hidden);
  branch->emplace<nn::Activate>(gelu);
  net->emplace<nn::Residual>(std::move(branch));
  net->emplace<nn::Linear>("head", hidden, classes, as_outputs_inputs());
  return net;
}

std::unique_ptr<nn::Sequence> convnet() {
  constexpr std::size_t side = 8, channels = 3, width = 8, classes = 5;
  const nn::Activation& relu = nn::find_activation("relu");
  auto net = std::make_unique<nn::Sequence>();
  net->emplace<nn::Convolution>("conv1", channels, width, 3, nn::Convolution::Options{{1, 1}, false});
  net->emplace<nn::BatchNorm>("norm1", width);
  net->emplace<nn::Activate>(relu);
  net->emplace<nn::MaxPool>(2);
  net->emplace<nn::Convolution>("conv2", width, width, 3, nn::Convolution::Options{{2, 1}, false});
  net->emplace<nn::BatchNorm>("norm2", width);
  net->emplace<nn::Activate>(relu);
  net->emplace<nn::Flatten>(nn::Shape{side / 4, side / 4, width});
  net->emplace<nn::Linear>("head", width * side * side / 16, classes, as_outputs_inputs());
  return net;
}

// (B,T,C) -> (B T,C): the loss knows rows.
class Rows final : public nn::Layer {
 public:
  explicit Rows(std::size_t tokens) : tokens_(tokens) {}
  nn::Tensor forward(nn::Pass& /*pass*/, const nn::Tensor& x) override { return x.reshaped(output(x.shape())); }
  nn::Tensor backward(nn::Pass& /*pass*/, const nn::Tensor& dy) override {
    return dy.reshaped({dy.shape()[0] / tokens_, tokens_, dy.shape()[1]});
  }
  nn::Shape output(const nn::Shape& x) const override { return {x.rows(), x.back()}; }
  double cost(const nn::Shape& /*x*/) const override { return 0; }
  std::uint64_t stash_bytes(const nn::Shape& /*x*/, DType /*values*/) const override { return 0; }

 private:
  std::size_t tokens_;
};

std::unique_ptr<nn::Sequence> transformer() {
  constexpr std::size_t tokens = 66, vocabulary = 29, width = 16;
  auto attention = std::make_unique<nn::Sequence>();
  attention->emplace<nn::LayerNorm>("norm1", width);
  nn::SelfAttentionOptions heads;
  heads.heads = 2;
  const auto mask = std::make_shared<nn::AttentionMask>(nn::AttentionMask::causal(tokens, tokens));
  attention->emplace<nn::SelfAttention>("attention", width, mask, heads);
  auto mlp = std::make_unique<nn::Sequence>();
  mlp->emplace<nn::LayerNorm>("norm2", width);
  mlp->emplace<nn::Linear>("up", width, 2 * width);
  mlp->emplace<nn::Activate>(nn::find_activation("gelu_tanh"));
  mlp->emplace<nn::Linear>("down", 2 * width, width);
  auto net = std::make_unique<nn::Sequence>();
  net->emplace<nn::Embedding>("embedding", vocabulary, tokens, width);
  net->emplace<nn::Residual>(std::move(attention));
  net->emplace<nn::Residual>(std::move(mlp));
  net->emplace<nn::LayerNorm>("norm3", width);
  net->emplace<nn::Linear>("head", width, vocabulary);
  net->emplace<Rows>(tokens);
  return net;
}

struct Golden {
  const char* name;  // of the file
  std::unique_ptr<nn::Sequence> (*net)();
};
const std::vector<Golden> golden_nets = {{"mlp", mlp}, {"convnet", convnet}, {"transformer", transformer}};

double option(const TensorFile& file, const std::string& key) {
  const std::string& text = file.get_metadata(key);
  double value = 0;
  REQUIRE(std::from_chars(text.data(), text.data() + text.size(), value).ptr == text.data() + text.size());
  return value;
}

train::TrainOptions options_of(const TensorFile& file, DType values) {
  train::TrainOptions options;
  options.values = values;
  options.rate.peak = option(file, "rate");
  options.optimizer.beta1 = option(file, "beta1");
  options.optimizer.beta2 = option(file, "beta2");
  options.optimizer.epsilon = option(file, "epsilon");
  options.optimizer.decay = option(file, "decay");
  options.optimizer.clip = option(file, "clip");
  return options;
}

// A net of type T, float or double, that begins as the file says.
template <typename T>
class GoldenRun {
 public:
  GoldenRun(const Golden& golden, const std::string& backend)
      : file_(TensorFile::load(test::source_folder() / "tests/golden" / (std::string(golden.name) + ".safetensors"))),
        engine_(device_of(backend), backend),
        batch_{input("x"), input("labels")},
        task_(golden.net(), batch_.x.shape(), [this](std::uint64_t, std::uint64_t) { return batch_; }),
        trainer_(engine_, task_, options_of(file_, dtype_of<T>())) {
    for (nn::Parameter* parameter : trainer_.parameters()) {
      const nn::Tensor initial = input("initial." + parameter->name);
      REQUIRE(initial.shape() == parameter->shape);
      nn::scale_add(engine_, 1, initial, 0, parameter->value);
    }
    nn::refresh_copies(engine_, trainer_.parameters());
  }

  void check(double limit) {
    check_tensor(logits(true), "logits", limit);
    std::vector<T> losses, norms;
    for (std::size_t i = 0; i < steps; ++i) {
      const train::StepReport report = trainer_.step();
      losses.push_back(static_cast<T>(report.loss));
      norms.push_back(static_cast<T>(report.gradient_norm));
      if (i > 0) continue;
      for (const nn::Parameter* parameter : trainer_.parameters()) {
        check_tensor(parameter->gradient, "gradient." + parameter->name, limit);
      }
    }
    check_numbers({losses.data(), 1}, "loss", limit);
    check_numbers(losses, "losses", limit);
    check_numbers(norms, "norms", limit);
    for (const nn::Parameter* parameter : trainer_.parameters()) {
      check_tensor(parameter->value, "final." + parameter->name, limit);
    }
    std::vector<std::pair<std::string, nn::Tensor*>> averages;
    task_.net().add_buffers(engine_, dtype_of<T>(), averages);
    for (const auto& [name, tensor] : averages) check_tensor(*tensor, "final." + name, limit);
    check_tensor(logits(false), "final_logits", limit);
    // Every tensor of the file is an input or was compared.
    CHECK(compared_ + trainer_.parameters().size() + 2 == file_.tensors.size());
  }

 private:
  // A tensor of the file; floats become T.
  nn::Tensor input(const std::string& name) {
    const Tensor& stored = file_.get(name);
    const nn::Shape shape{std::span<const std::size_t>(stored.shape)};
    if (stored.dtype == DType::i32) return engine_.from(stored.as<std::int32_t>(), shape, nn::Use::data);
    const auto values = stored.as<float>();
    const std::vector<T> converted(values.begin(), values.end());
    return engine_.from(std::span<const T>(converted), shape, nn::Use::data);
  }

  nn::Tensor logits(bool training) {
    nn::Pass pass{engine_};
    pass.training = training;
    pass.again = true;  // moving averages do not count this one
    return task_.net().forward(pass, batch_.x);
  }

  void check_tensor(const nn::Tensor& tensor, const std::string& name, double limit) {
    INFO(name);
    const auto lengths = tensor.shape().lengths();
    CHECK(file_.get(name).shape == std::vector<std::size_t>(lengths.begin(), lengths.end()));
    check_numbers(engine_.template to_host<T>(tensor), name, limit);
  }
  void check_numbers(std::span<const T> found, const std::string& name, double limit) {
    INFO(name);
    const auto stored = file_.get(name).template as<float>();
    CHECK(compare(found, std::vector<T>(stored.begin(), stored.end()), limit) == "");
    ++compared_;
  }

  TensorFile file_;
  nn::Engine engine_;
  train::Classification::Batch batch_;
  train::Classification task_;
  train::Trainer trainer_;
  std::size_t compared_ = 0;
};

}  // namespace

TEST_CASE("nets of f32 give PyTorch's outputs, gradients and ten steps of AdamW", "[train][golden]") {
  for (const std::string& backend : tested_backends()) {
    for (const Golden& golden : golden_nets) {
      INFO(golden.name << " on " << backend);
      GoldenRun<float>(golden, backend).check(f32_limit);
    }
  }
}

TEST_CASE("nets of f64 give them to the last digit of the files", "[train][golden]") {
  for (const Golden& golden : golden_nets) {
    INFO(golden.name);
    GoldenRun<double>(golden, "ref").check(f64_limit);
  }
}
