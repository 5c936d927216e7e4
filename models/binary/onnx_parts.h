// Parts of the graph that onnx.h tells of. Maps are f32 (N, C, H, W); only channels that the net has, no tails of words.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layerwise/encoder.h"
#include "layerwise/head.h"
#include "layerwise/layer.h"
#include "models/onnx_writer.h"

namespace bitloom::models {

// Integers whose magnitude is below this are exact in f32, also as sums on the way.
inline constexpr std::int64_t exact_in_f32 = std::int64_t{1} << 24;

// Numbers that are 1, 0 or -1, stored as bits and unpacked by the graph: what runs it does so once, when it loads it.
class OnnxSigns {
 public:
  explicit OnnxSigns(OnnxGraph& graph) : graph_(graph) {}

  // Name of `values`, of that shape, as f32. One byte holds eight of them, or five where one is 0.
  std::string unpack(const std::vector<std::int8_t>& values, const std::vector<std::int64_t>& shape);

 private:
  struct Table {
    unsigned base = 0, digits = 0;  // digits of a byte, to that base
    std::string name;               // of the digits' values, (base^digits, digits) i8; empty until one asks for it
  };
  const std::string& name_of(Table& table);
  static std::int8_t value_of(unsigned base, unsigned digit);

  OnnxGraph& graph_;
  Table binary_{2, 8, {}}, ternary_{3, 5, {}};
};

// How a graph has maps of bits, and the numbers 1, 0 and -1.
class OnnxMaps {
 public:
  OnnxMaps() = default;
  OnnxMaps(const OnnxMaps&) = delete;
  OnnxMaps& operator=(const OnnxMaps&) = delete;
  virtual ~OnnxMaps() = default;

  // Number of images.
  virtual OnnxSize batch() const = 0;
  // Name of `values`, of that shape, as f32.
  virtual std::string numbers(const std::vector<std::int8_t>& values, const std::vector<std::int64_t>& shape) = 0;
  // Sum of the numbers for a set and an unset bit.
  virtual float set_plus_unset() const = 0;
  // A map of f32 that are 1 for set bits, 0 for others, and back.
  virtual std::string from_bits(const std::string& bits) = 0;
  virtual std::string to_bits(const std::string& map) = 0;
  // The map whose bits are set where a mean over bits of another map is above that of `share` of them, which none is equal to.
  virtual std::string above(const std::string& mean, float share) = 0;
  // Input of layers for a map (N, planes * C, H, W) of several thresholds for each row of weights: the map itself, or the sum
  // of its planes (N, C, H, W), which all meet the same weights.
  virtual std::string levels(const std::string& map, std::size_t planes, std::size_t channels) = 0;
  // FORMAT.md, section 5, from the patches on. `input` has levels.
  virtual std::string layer(const layerwise::BinaryLayer& layer, const std::string& input) = 0;
};

// Bits are 1 and 0, weights are stored as bits: standard operators.
std::unique_ptr<OnnxMaps> standard_maps(OnnxGraph& graph);
// Bits are 1 and -1, quantized by QONNX's operators, as weights are.
std::unique_ptr<OnnxMaps> bipolar_maps(OnnxGraph& graph);

// Weights (rows, C, k, k) of a layer: +1, -1 (a set bit) or, of ternary ones, 0.
struct OnnxWeights {
  std::vector<std::int8_t> values;
  std::vector<std::int64_t> shape;
};
// The weights of the first `rows` of the layer's output channels, for those bits of a patch that `bits` (words of a patch) has.
// Throws Error(data) for a layer whose sums f32 could not have.
OnnxWeights onnx_weights(const layerwise::BinaryLayer& layer, std::size_t rows, const std::vector<std::uint64_t>& bits);

// The bits of the first map, (N, 2 F, H, W), f32 of 1 and 0, of images, u8 (N, colours, H, W). Throws Error(data) for filters
// whose sums could be inexact.
std::string onnx_encoder(OnnxGraph& graph, const layerwise::Encoder& encoder, const std::string& images);

// Logits (N, L) of the map of a layer, as bits.
std::string onnx_head(OnnxGraph& graph, OnnxMaps& maps, const layerwise::Head& head, const layerwise::MapShape& shape,
                      const std::string& bits);

}  // namespace bitloom::models
