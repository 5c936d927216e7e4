// Small convolutional nets and images for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/random.h"
#include "data/dataset.h"
#include "models/cnn/cnn.h"
#include "models/cnn/image_batches.h"
#include "tests/support/backends.h"

namespace bitloom::test {

// Random bytes in smooth patterns, so that neighbours are alike; no image is its own mirror.
inline data::Dataset small_images(std::size_t count, const data::ImageShape& shape, std::size_t classes = 3) {
  data::Dataset images{.name = "small", .shape = shape, .class_names = {}, .pixels = {}, .labels = {}};
  for (std::size_t c = 0; c < classes; ++c) images.class_names.push_back("class" + std::to_string(c));
  for (std::size_t i = 0; i < count; ++i) {
    Random random(21, Stream::test, i);
    const std::size_t label = random.below(static_cast<std::uint32_t>(classes));
    images.labels.push_back(static_cast<std::uint16_t>(label));
    for (std::size_t c = 0; c < shape.channels; ++c) {
      const std::uint32_t base = random.below(64);
      for (std::size_t y = 0; y < shape.height; ++y) {
        for (std::size_t x = 0; x < shape.width; ++x) {
          const std::size_t slope = (label + 1) * x + (c + 1) * y;
          images.pixels.push_back(static_cast<std::uint8_t>((base + 4 * slope + random.below(40)) % 256));
        }
      }
    }
  }
  return images;
}

// Layers of all kinds between them, with images of 16 x 16 pixels of 2 colours and 3 classes.
inline const std::vector<std::string>& cnn_descriptions() {
  static const std::vector<std::string> texts{
      R"({"name": "groups", "activation": "silu", "identity_start": true, "decays_vectors": true,
          "norm": {"momentum": 0.4, "epsilon": 1e-6, "gain": false, "bias_rate": 64},
          "layers": [{"kind": "whitening"}, {"kind": "activation"}, {"kind": "conv_group", "channels": 20, "convolutions": 3},
                     {"kind": "conv_group", "channels": 6}, {"kind": "global_max_pool"},
                     {"kind": "linear", "bias": false, "scale": 0.5}]})",
      R"({"name": "blocks", "activation": "gelu",
          "layers": [{"kind": "conv", "channels": 4, "kernel": 5, "stride": 2}, {"kind": "norm"}, {"kind": "activation"},
                     {"kind": "basic_block", "channels": 4}, {"kind": "basic_block", "channels": 5, "stride": 2},
                     {"kind": "global_mean_pool"}, {"kind": "linear"}]})",
      R"({"name": "flat", "activation": "tanh",
          "layers": [{"kind": "conv", "channels": 3, "kernel": 1}, {"kind": "max_pool", "kernel": 3},
                     {"kind": "conv_group", "channels": 4, "convolutions": 1}, {"kind": "linear"}]})"};
  return texts;
}

inline constexpr data::ImageShape small_image{16, 16, 2};

inline models::CnnConfig small_cnn(std::size_t which) {
  models::CnnConfig config = models::parse_cnn(cnn_descriptions().at(which), "it");
  config.image = small_image;
  config.classes = 3;
  return config;
}

// A net with random initial values, vectors too, whose moving averages are not those of new nets.
struct SmallCnn {
  explicit SmallCnn(const models::CnnConfig& config, DType values = DType::f32, const std::string& backend = "cpu")
      : engine(device_of(backend), backend), net(config), parameters(nn::parameters_of(*net.layers)) {
    nn::initialise(engine, parameters, values, 5);
    for (nn::Parameter* parameter : parameters) {
      if (parameter->shape.axes() == 1) add_noise(parameter->value);
    }
    nn::refresh_copies(engine, parameters);
    std::vector<std::pair<std::string, nn::Tensor*>> buffers;
    net.layers->add_buffers(engine, values, buffers);
    for (const auto& [name, tensor] : buffers) add_noise(*tensor);
  }

  // Adds numbers from 0 to 0.3.
  void add_noise(nn::Tensor& tensor) {
    Random random(6, Stream::test, ++noises);
    const auto change = [&](auto values) {
      using T = typename decltype(values)::value_type;
      for (T& value : values) value += static_cast<T>(0.3 * random.uniform());
      engine.write(tensor, std::as_bytes(std::span(values)));
    };
    if (tensor.dtype() == DType::f64) return change(engine.to_host<double>(tensor));
    change(engine.to_host<float>(tensor));
  }

  nn::Engine engine;
  models::Cnn net;
  std::vector<nn::Parameter*> parameters;
  std::uint64_t noises = 0;
};

}  // namespace bitloom::test
