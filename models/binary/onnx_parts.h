// Parts of the graph that onnx.h tells of. All maps are f32 (N, C, H, W), 1 where a bit is set and 0 elsewhere; only channels
// that the net has, no tails of words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerwise/encoder.h"
#include "layerwise/head.h"
#include "models/onnx_writer.h"

namespace bitloom::models {

// Integers whose magnitude is below this are exact in f32, also as sums on the way.
inline constexpr std::int64_t exact_in_f32 = std::int64_t{1} << 24;

// `value` as numbers of another type.
std::string onnx_cast(OnnxGraph& graph, const std::string& value, OnnxType type);
// `value` in another shape.
std::string onnx_reshape(OnnxGraph& graph, const std::string& value, const std::vector<std::int64_t>& shape);

// Numbers that are 1, 0 or -1, stored as bits and unpacked by the graph: what runs it does so once, when it loads it.
class OnnxSigns {
 public:
  explicit OnnxSigns(OnnxGraph& graph) : graph_(graph) {}

  // Name of `values`, of that shape, as f32. One byte holds eight of them, or five where one is 0.
  std::string unpack(const std::vector<std::int8_t>& values, const std::vector<std::int64_t>& shape);

 private:
  struct Table {
    unsigned base = 0, digits = 0;  // a byte is a number of so many digits
    std::string name;               // of the digits' values, (base^digits, digits) i8; empty until one asks for it
  };
  const std::string& name_of(Table& table);
  static std::int8_t value_of(unsigned base, unsigned digit);

  OnnxGraph& graph_;
  Table binary_{2, 8, {}}, ternary_{3, 5, {}};
};

// The first map, (N, 2 F, H, W), of images, u8 (N, colours, H, W). Throws Error(data) for filters whose sums could be inexact.
std::string onnx_encoder(OnnxGraph& graph, const layerwise::Encoder& encoder, const std::string& images);

// Logits (N, L) of the map of a layer.
std::string onnx_head(OnnxGraph& graph, OnnxSigns& signs, const layerwise::Head& head, const layerwise::MapShape& shape,
                      const std::string& map);

}  // namespace bitloom::models
