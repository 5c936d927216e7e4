#include "models/dvae/dvae.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "nn/layers/categorical.h"
#include "nn/layers/images.h"

namespace bitloom::models {
namespace {

using nn::LayerPointer;
using nn::Sequence;

// The layers' numbers of random draws begin there; nothing else of these nets draws.
constexpr std::uint64_t categorical_number = 1;

LayerPointer relu() { return std::make_unique<nn::Activate>(nn::find_activation("relu")); }

// Weights begin with the deviation 1 / sqrt(inputs kernel^2), biases with 0.
LayerPointer conv(const std::string& name, std::size_t inputs, std::size_t outputs, std::size_t kernel,
                  bool reads_images = false) {
  nn::Convolution::Options options;
  options.conv = {1, kernel / 2};
  options.reads_images = reads_images;
  return std::make_unique<nn::Convolution>(name, inputs, outputs, kernel, options);
}

class DvaeBuilder {
 public:
  explicit DvaeBuilder(Dvae& net) : net_(net), config_(net.config) {}

  void encoder() {
    put(conv("encoder.blocks.input", 3, config_.hidden, 7, true));
    std::size_t channels = config_.hidden;
    for (std::size_t group = 0; group < config_.groups; ++group) {
      if (group > 0) put(std::make_unique<nn::MaxPool>(2));
      channels = add_group("encoder", group, channels, config_.hidden << group, {3, 3, 3, 1});
    }
    put(relu());
    put(conv("encoder.blocks.output.conv", channels, config_.codes, 1));
    net_.encoder_layers = net_.layers->size();
  }

  void decoder() {
    put(conv("decoder.blocks.input", config_.codes, config_.init, 1));
    std::size_t channels = config_.init;
    for (std::size_t group = 0; group < config_.groups; ++group) {
      if (group > 0) put(std::make_unique<nn::Upsample>(2));
      channels = add_group("decoder", group, channels, config_.hidden << (config_.groups - 1 - group), {1, 3, 3, 3});
    }
    put(relu());
    put(conv("decoder.blocks.output.conv", channels, 6, 1));
  }

 private:
  void put(LayerPointer layer) { net_.layers->add(std::move(layer)); }

  // Residual blocks whose inner maps have a quarter of the channels; gives the channels of the last one.
  std::size_t add_group(const char* half, std::size_t group, std::size_t inputs, std::size_t outputs,
                        const std::array<std::size_t, 4>& kernels) {
    for (std::size_t block = 0; block < config_.blocks; ++block) {
      const std::string name = fmt::format("{}.blocks.group_{}.block_{}", half, group + 1, block + 1);
      auto branch = std::make_unique<Sequence>();
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        branch->add(relu());
        branch->add(conv(fmt::format("{}.res_path.conv_{}", name, i + 1), i == 0 ? inputs : outputs / 4,
                         i + 1 == kernels.size() ? outputs : outputs / 4, kernels[i]));
      }
      branch->add(std::make_unique<nn::Scale>(config_.gain()));
      LayerPointer skip = inputs == outputs ? nullptr : conv(name + ".id_path", inputs, outputs, 1);
      put(std::make_unique<nn::Residual>(std::move(branch), residuals_++, std::move(skip)));
      inputs = outputs;
    }
    return outputs;
  }

  Dvae& net_;
  const DvaeConfig& config_;
  std::size_t residuals_ = 0;
};

std::uint64_t parameters_of(Dvae& net, std::size_t first, std::size_t last) {
  std::uint64_t count = 0;
  for (std::size_t i = first; i < last; ++i) {
    for (const nn::Parameter* parameter : nn::parameters_of((*net.layers)[i])) count += parameter->shape.size();
  }
  return count;
}

nn::Pass still(nn::Engine& engine) {
  nn::Pass pass{engine};
  pass.training = false;
  return pass;
}

}  // namespace

Dvae::Dvae(const DvaeConfig& described, const DvaeCourse& course) : config(described) {
  DvaeBuilder builder(*this);
  builder.encoder();
  // The loss is one per number of an image.
  const double share = 1 / static_cast<double>(config.values());
  layers->emplace<nn::RelaxedCategorical>(nn::RelaxedCategorical::Options{
      course.temperature, [weight = course.kl_weight, share](std::uint64_t step) { return share * weight(step); },
      categorical_number});
  builder.decoder();
}

nn::Tensor Dvae::encode(nn::Engine& engine, const nn::Tensor& images) {
  nn::Pass pass = still(engine);
  return layers->forward(pass, images, 0, encoder_layers);
}

nn::Tensor Dvae::decode(nn::Engine& engine, const nn::Tensor& codes) {
  nn::Pass pass = still(engine);
  return layers->forward(pass, codes, encoder_layers + 1, layers->size());
}

std::uint64_t Dvae::encoder_parameters() { return parameters_of(*this, 0, encoder_layers); }
std::uint64_t Dvae::decoder_parameters() { return parameters_of(*this, encoder_layers, layers->size()); }

std::vector<DvaeRow> describe(Dvae& net) {
  std::vector<DvaeRow> rows;
  nn::Shape shape = net.input(1);
  // "encoder.blocks.group_2.block_1.res_path..." belongs to "encoder.group_2". Layers without parameters to the one before.
  const auto row_of = [&](std::size_t i) -> std::string {
    if (i == net.encoder_layers) return "draw";
    const std::vector<nn::Parameter*> own = nn::parameters_of((*net.layers)[i]);
    if (own.empty()) return rows.back().name;
    const std::string& name = own.front()->name;
    const std::size_t begin = name.find(".blocks.") + 8;
    return fmt::format("{}.{}", name.substr(0, name.find('.')), name.substr(begin, name.find('.', begin) - begin));
  };
  for (std::size_t i = 0; i < net.layers->size(); ++i) {
    nn::Layer& layer = (*net.layers)[i];
    if (std::string name = row_of(i); rows.empty() || rows.back().name != name) rows.push_back({std::move(name), shape});
    DvaeRow& row = rows.back();
    row.cost += layer.cost(shape);
    shape = layer.output(shape);
    row.output = shape;
    row.parameters += parameters_of(net, i, i + 1);
  }
  return rows;
}

}  // namespace bitloom::models
