// Shared by the tests of layerwise/: random layers and maps, a small data set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "core/buffer.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "data/dataset.h"
#include "data/synthetic.h"
#include "layerwise/layer.h"
#include "layerwise/net.h"
#include "tests/support/message_of.h"

namespace bitloom::test {

// "" if both files hold the same tensors, bit for bit; else the first difference.
inline std::string difference(const TensorFile& a, const TensorFile& b) {
  if (a.tensors.size() != b.tensors.size()) return "another number of tensors";
  for (const auto& [name, tensor] : a.tensors) {
    if (!b.contains(name)) return name + " is missing";
    const Tensor& other = b.tensors.at(name);
    if (tensor.dtype != other.dtype || tensor.shape != other.shape) return name + " has another type or shape";
    if (tensor.bytes.size() != 0 && std::memcmp(tensor.bytes.data(), other.bytes.data(), tensor.bytes.size()) != 0) {
      return name + " differs";
    }
  }
  return "";
}

// A layer of its own net with these inputs (shapes without border).
inline layerwise::BinaryLayer make_layer(const layerwise::LayerSpec& spec, std::size_t height, std::size_t width,
                                         std::size_t channels) {
  layerwise::NetSpec net;
  net.layers = {spec};
  net.layers[0].inputs = {"input"};
  return layerwise::BinaryLayer(net.layers[0], layerwise::derive_geometry(net, height, width, channels)[0]);
}

inline layerwise::LayerSpec layer_spec(std::size_t width, std::size_t kernel, std::size_t stride, bool ternary) {
  layerwise::LayerSpec spec;
  spec.name = "layer";
  spec.inputs = {"input"};
  spec.width = width;
  spec.kernel = kernel;
  spec.stride = stride;
  spec.padding = (kernel - 1) / 2;
  spec.ternary = ternary;
  return spec;
}

inline void draw_weights(layerwise::BinaryLayer& layer, Random& random) {
  std::vector<std::uint64_t> sign(layer.patch_words());
  std::vector<std::uint64_t> nonzero(layer.patch_words());
  for (std::size_t row = 0; row < layer.ties().rows(); ++row) {
    for (std::size_t w = 0; w < sign.size(); ++w) {
      nonzero[w] = layer.valid_bits()[w] & (layer.spec().ternary ? random.next() : ~std::uint64_t{0});
      sign[w] = random.next() & nonzero[w];
    }
    layer.ties().spread(sign.data());
    layer.ties().spread(nonzero.data());
    for (std::size_t o = row; o < layer.channels(); o += layer.ties().rows()) {
      layer.set_row(o, sign.data(), layer.spec().ternary ? nonzero.data() : nullptr);
    }
  }
}

// Sets each bit of a map's interior with probability 1/`one_in`; border and tails stay 0.
inline void draw_map(std::uint64_t* map, const layerwise::MapShape& shape, std::uint32_t one_in, Random& random) {
  for (std::size_t y = 0; y < shape.height; ++y) {
    for (std::size_t x = 0; x < shape.width; ++x) {
      std::uint64_t* pixel = map + shape.interior() + y * shape.pitch() + x * shape.words();
      for (std::size_t c = 0; c < shape.channels; ++c) set_bit(pixel, c, random.below(one_in) == 0);
    }
  }
}

// `count` synthetic images, reduced to 12 x 12 pixels.
inline data::Dataset small_data(std::size_t count, std::size_t first = 0) {
  data::Dataset large = data::make_synthetic(1, count, first);
  data::Dataset small = large;
  small.name = "small";
  small.shape = {12, 12, 3};
  small.pixels.clear();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t y = 0; y < 12; ++y) {
        for (std::size_t x = 0; x < 12; ++x) small.pixels.push_back(large.image(i)[(c * 32 + 4 + 2 * y) * 32 + 4 + 2 * x]);
      }
    }
  }
  return small;
}

// The encoder of small nets: 64 channels, quick to fit.
inline const char* const thermometer = R"("encoder": {"kind": "thermometer", "levels": 20})";

}  // namespace bitloom::test
