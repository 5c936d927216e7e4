#include "models/cnn/cnn.h"

#include <cmath>
#include <memory>

#include "core/error.h"
#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "nn/layers/images.h"

namespace bitloom::models {
namespace {

using Kind = CnnLayer::Kind;
using nn::LayerPointer;
using nn::Sequence;

// Adds layers one after the other and knows the shape between them, that of one image.
class CnnBuilder {
 public:
  explicit CnnBuilder(Cnn& net) : net_(net), config_(net.config), shape_(net.input(1)) {}

  void add(const CnnLayer& layer, const std::string& name) {
    switch (layer.kind) {
      case Kind::whitening: return whitening(layer, name);
      case Kind::conv: return put(conv(name, shape_[3], layer.channels, layer.kernel, layer.stride));
      case Kind::norm: return put(norm(name, shape_.back()));
      case Kind::activation: return put(activation());
      case Kind::max_pool: return put(std::make_unique<nn::MaxPool>(layer.kernel));
      case Kind::global_max_pool: return global_max_pool(name);
      case Kind::global_mean_pool: return put(std::make_unique<nn::MeanPool>());
      case Kind::conv_group: return conv_group(layer, name);
      case Kind::basic_block: return basic_block(layer, name);
      case Kind::linear: return linear(layer, name);
    }
  }

 private:
  void put(LayerPointer layer) {
    reads_images_ = false;
    shape_ = layer->output(shape_);
    net_.layers->add(std::move(layer));
  }

  // As PyTorch's layers begin, whose uniform numbers have this deviation.
  static double deviation(std::size_t inputs) { return 1 / std::sqrt(3 * static_cast<double>(inputs)); }

  LayerPointer conv(const std::string& name, std::size_t inputs, std::size_t outputs, std::size_t kernel, std::size_t stride) {
    nn::Convolution::Options options;
    options.conv = {stride, kernel / 2};
    options.bias = false;
    options.deviation = deviation(inputs * kernel * kernel);
    options.reads_images = reads_images_;
    auto layer = std::make_unique<nn::Convolution>(name, inputs, outputs, kernel, options);
    if (config_.identity_start) net_.identities.push_back(&layer->weight());
    return layer;
  }

  LayerPointer norm(const std::string& name, std::size_t channels) const {
    const CnnNorm& norm = config_.norm;
    return std::make_unique<nn::BatchNorm>(name, channels,
                                           nn::BatchNorm::Options{norm.momentum, norm.epsilon, norm.gain, norm.bias_rate});
  }

  LayerPointer activation() {
    return std::make_unique<nn::Activate>(nn::find_activation(config_.activation), config_.activation_bits,
                                          config_.activation_quantiser, activations_++);
  }

  // Twice as many kernels as a patch has numbers: its principal components and their negatives.
  void whitening(const CnnLayer& layer, const std::string& name) {
    nn::Convolution::Options options;
    options.is_frozen = true;
    options.reads_images = true;
    const std::size_t patch = shape_[3] * layer.kernel * layer.kernel;
    options.deviation = deviation(patch);
    auto layer_conv = std::make_unique<nn::Convolution>(name, shape_[3], 2 * patch, layer.kernel, options);
    net_.whitening = &layer_conv->weight();
    put(std::move(layer_conv));
  }

  void global_max_pool(const std::string& name) {
    if (shape_.axes() != 4 || shape_[1] != shape_[2] || shape_[1] > 15) {
      fail(ErrorKind::usage, "{}: maps {}; expected square ones of at most 15 pixels a side", name, nn::to_text(shape_));
    }
    const std::size_t side = shape_[1];
    put(std::make_unique<nn::MaxPool>(side));
    put(std::make_unique<nn::Flatten>(nn::Shape{1, 1, shape_[3]}));
  }

  void conv_group(const CnnLayer& layer, const std::string& name) {
    const auto part = [&](const char* kind, std::size_t i) { return fmt::format("{}.{}{}", name, kind, i); };
    put(conv(part("conv", 1), shape_[3], layer.channels, 3, 1));
    put(std::make_unique<nn::MaxPool>(2));
    put(norm(part("norm", 1), layer.channels));
    put(activation());
    if (layer.convolutions == 2) {
      put(conv(part("conv", 2), layer.channels, layer.channels, 3, 1));
      put(norm(part("norm", 2), layer.channels));
      put(activation());
    }
    if (layer.convolutions != 3) return;
    auto branch = std::make_unique<Sequence>();
    branch->add(conv(part("conv", 2), layer.channels, layer.channels, 3, 1));
    branch->add(norm(part("norm", 2), layer.channels));
    branch->add(activation());
    branch->add(conv(part("conv", 3), layer.channels, layer.channels, 3, 1));
    branch->add(norm(part("norm", 3), layer.channels));
    put(std::make_unique<nn::Residual>(std::move(branch), blocks_++));
    put(activation());
  }

  // He et al. 2016, figure 2, with a convolution of 1 x 1 beside it where the shape changes (option B of section 3.3).
  void basic_block(const CnnLayer& layer, const std::string& name) {
    const std::size_t inputs = shape_[3];
    reads_images_ = false;  // branch and skip connection would both have to
    auto branch = std::make_unique<Sequence>();
    branch->add(conv(name + ".conv1", inputs, layer.channels, 3, layer.stride));
    branch->add(norm(name + ".norm1", layer.channels));
    branch->add(activation());
    branch->add(conv(name + ".conv2", layer.channels, layer.channels, 3, 1));
    branch->add(norm(name + ".norm2", layer.channels));
    LayerPointer skip;
    if (layer.stride != 1 || inputs != layer.channels) {
      auto sequence = std::make_unique<Sequence>();
      sequence->add(conv(name + ".skip_conv", inputs, layer.channels, 1, layer.stride));
      sequence->add(norm(name + ".skip_norm", layer.channels));
      skip = std::move(sequence);
    }
    put(std::make_unique<nn::Residual>(std::move(branch), blocks_++, std::move(skip)));
    put(activation());
  }

  void linear(const CnnLayer& layer, const std::string& name) {
    if (shape_.axes() != 2) put(std::make_unique<nn::Flatten>(nn::Shape{shape_[1], shape_[2], shape_[3]}));
    nn::LinearOptions options;
    options.bias = layer.bias;
    options.transposed = true;
    options.deviation = deviation(shape_[1]);
    put(std::make_unique<nn::Linear>(name, shape_[1], config_.classes, options));
    if (layer.scale != 1) put(std::make_unique<nn::Scale>(layer.scale));
  }

  Cnn& net_;
  const CnnConfig& config_;
  nn::Shape shape_;
  bool reads_images_ = true;  // the next layer, whose input needs no gradient
  std::size_t blocks_ = 0;
  std::uint64_t activations_ = std::uint64_t{1} << 33U;  // numbers beyond those of a transformer beside the net (CLIP)
};

std::string layer_name(std::size_t i) { return fmt::format("layers.{}", i); }

std::uint64_t learned_numbers(nn::Layer& layer) {
  std::uint64_t count = 0;
  for (const nn::Parameter* parameter : nn::parameters_of(layer)) count += parameter->is_frozen ? 0 : parameter->shape.size();
  return count;
}

}  // namespace

Cnn::Cnn(const CnnConfig& described) : config(described) {
  if (config.classes == 0 || config.image.size() == 0) {
    fail(ErrorKind::internal, "net '{}': images of {} bytes and {} classes", config.name, config.image.size(), config.classes);
  }
  CnnBuilder builder(*this);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    builder.add(config.layers[i], layer_name(i));
    ends.push_back(layers->size());
  }
  if (!config.decays_vectors) return;
  for (nn::Parameter* parameter : nn::parameters_of(*layers)) parameter->decays = true;
}

nn::Shape Cnn::input(std::size_t images) const {
  return {images, config.image.height, config.image.width, config.image.channels};
}

std::uint64_t Cnn::parameters() { return learned_numbers(*layers); }

std::vector<CnnRow> describe(Cnn& net) {
  std::vector<CnnRow> rows;
  nn::Shape shape = net.input(1);
  std::size_t at = 0;
  for (std::size_t i = 0; i < net.config.layers.size(); ++i) {
    CnnRow row{layer_name(i), kind_name(net.config.layers[i].kind), shape, 0, 0};
    for (; at < net.ends[i]; ++at) {
      row.cost += (*net.layers)[at].cost(row.output);
      row.output = (*net.layers)[at].output(row.output);
      row.parameters += learned_numbers((*net.layers)[at]);
    }
    shape = row.output;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace bitloom::models
