// Maps of bits as numbers of a graph: those of standard operators, and what all kinds of maps need to know of a layer.
#include <algorithm>
#include <bit>

#include "core/error.h"
#include "models/binary/onnx_parts.h"

namespace bitloom::models {

using layerwise::BinaryLayer;

std::int8_t OnnxSigns::value_of(unsigned base, unsigned digit) {
  return static_cast<std::int8_t>(base == 2 ? bit_value(digit != 0) : static_cast<int>(digit) - 1);
}

const std::string& OnnxSigns::name_of(Table& table) {
  if (!table.name.empty()) return table.name;
  std::vector<std::int8_t> values;
  std::int64_t rows = 1;
  for (unsigned k = 0; k < table.digits; ++k) rows *= table.base;
  for (std::int64_t byte = 0; byte < rows; ++byte) {
    auto rest = static_cast<unsigned>(byte);
    for (unsigned k = 0; k < table.digits; ++k, rest /= table.base) values.push_back(value_of(table.base, rest % table.base));
  }
  return table.name = graph_.constant({rows, table.digits}, values);
}

std::string OnnxSigns::unpack(const std::vector<std::int8_t>& values, const std::vector<std::int64_t>& shape) {
  const bool ternary = std::find(values.begin(), values.end(), 0) != values.end();
  Table& table = ternary ? ternary_ : binary_;
  std::vector<std::uint8_t> bytes((values.size() + table.digits - 1) / table.digits, 0);
  for (std::size_t i = values.size(); i-- > 0;) {  // the last digits first
    std::uint8_t& byte = bytes[i / table.digits];
    const unsigned digit = ternary ? static_cast<unsigned>(values[i] + 1) : (values[i] < 0 ? 1U : 0U);
    byte = static_cast<std::uint8_t>(byte * table.base + digit);
  }
  const std::string packed = graph_.constant({static_cast<std::int64_t>(bytes.size())}, bytes);
  const std::string& rows = name_of(table);
  std::string all = graph_.node("Gather", {rows, onnx_cast(graph_, packed, OnnxType::i32)});
  if (values.size() % table.digits != 0) {
    const std::string end = graph_.constant<std::int64_t>({1}, {static_cast<std::int64_t>(values.size())});
    all = graph_.node("Slice", {onnx_reshape(graph_, all, {-1}), graph_.constant<std::int64_t>({1}, {0}), end});
  }
  return onnx_cast(graph_, onnx_reshape(graph_, all, shape), OnnxType::f32);
}

OnnxWeights onnx_weights(const BinaryLayer& layer, std::size_t rows, const std::vector<std::uint64_t>& bits) {
  const layerwise::LayerSpec& spec = layer.spec();
  if (static_cast<std::int64_t>(layer.geometry().valid_bits) >= exact_in_f32) {
    fail(ErrorKind::data, "layer '{}': sums of {} weights; expected fewer than {}, which f32 adds exactly", spec.name,
         layer.geometry().valid_bits, exact_in_f32);
  }
  const std::size_t pixel_bits = layer.patch_bits() / (spec.kernel * spec.kernel);
  OnnxWeights result;
  for (std::size_t o = 0; o < rows; ++o) {
    const std::uint64_t* sign = layer.rows().data() + o * layer.patch_words();
    const std::uint64_t* nonzero = spec.ternary ? layer.nonzero_rows().data() + o * layer.patch_words() : nullptr;
    for (std::size_t c = 0; c < pixel_bits; ++c) {
      if (!get_bit(bits.data(), c)) continue;
      for (std::size_t k = c; k < layer.patch_bits(); k += pixel_bits) {
        result.values.push_back(
            static_cast<std::int8_t>(nonzero != nullptr ? trit_value(sign, nonzero, k) : bit_value(get_bit(sign, k))));
      }
    }
  }
  const auto kernel = static_cast<std::int64_t>(spec.kernel), first = static_cast<std::int64_t>(rows);
  result.shape = {first, static_cast<std::int64_t>(result.values.size()) / (first * kernel * kernel), kernel, kernel};
  return result;
}

namespace {

class StandardMaps final : public OnnxMaps {
 public:
  explicit StandardMaps(OnnxGraph& graph) : graph_(graph), signs_(graph) {}

  OnnxSize batch() const override { return "N"; }
  std::string numbers(const std::vector<std::int8_t>& values, const std::vector<std::int64_t>& shape) override {
    return signs_.unpack(values, shape);
  }
  float set_plus_unset() const override { return 1; }
  std::string from_bits(const std::string& bits) override { return bits; }
  std::string to_bits(const std::string& map) override { return map; }
  std::string above(const std::string& mean, float share) override {
    return onnx_cast(graph_, graph_.node("Greater", {mean, graph_.scalar(share)}), OnnxType::f32);
  }
  std::string levels(const std::string& map, std::size_t planes, std::size_t channels) override;
  std::string layer(const BinaryLayer& layer, const std::string& input) override;

 private:
  OnnxGraph& graph_;
  OnnxSigns signs_;
};

std::string StandardMaps::levels(const std::string& map, std::size_t planes, std::size_t channels) {
  if (planes == 1) return map;
  const std::string axis = graph_.constant<std::int64_t>({1}, {1});
  std::string sum;
  for (std::size_t p = 0; p < planes; ++p) {
    const auto begin = static_cast<std::int64_t>(p * channels), end = static_cast<std::int64_t>((p + 1) * channels);
    const std::string plane = graph_.node(
        "Slice", {map, graph_.constant<std::int64_t>({1}, {begin}), graph_.constant<std::int64_t>({1}, {end}), axis});
    sum = p == 0 ? plane : graph_.node("Add", {sum, plane});
  }
  return sum;
}

// With bits x, signs w and nonzero weights c: d = sum of c (x xor w) = sum of c (x + w - 2 x w), so that
//   d <= T  iff  sum of x c (1 - 2 w) <= T - sum of c w,
// whose left side is a convolution with weights of 1, -1 and 0. Those right sides for the channels from `begin` to `end`; none
// outside of what a sum can be.
std::vector<float> layer_limits(const BinaryLayer& layer, std::size_t begin, std::size_t end) {
  const auto most = static_cast<std::int64_t>(layer.geometry().valid_bits);
  std::vector<float> limits;
  for (std::size_t o = begin; o < end; ++o) {
    std::int64_t set = 0;  // sum of c w
    for (std::size_t t = o * layer.patch_words(); t < (o + 1) * layer.patch_words(); ++t)
      set += std::popcount(layer.rows()[t] & (layer.spec().ternary ? layer.nonzero_rows()[t] : ~std::uint64_t{0}));
    limits.push_back(static_cast<float>(std::clamp(layer.thresholds()[o] - set, -most - 1, most)));
  }
  return limits;
}

std::string StandardMaps::layer(const BinaryLayer& layer, const std::string& input) {
  const auto padding = static_cast<std::int64_t>(layer.spec().padding), stride = static_cast<std::int64_t>(layer.spec().stride);
  const std::size_t rows = layer.ties().rows();
  const OnnxWeights weights = onnx_weights(layer, rows, layer.ties().first());
  const std::string sums =
      graph_.node("Conv", {input, numbers(weights.values, weights.shape)},
                  {{"pads", std::vector<std::int64_t>(4, padding)}, {"strides", std::vector<std::int64_t>(2, stride)}});
  std::vector<std::string> bits;  // for each threshold of a row
  for (std::size_t begin = 0; begin < layer.channels(); begin += rows) {
    const std::string limits = graph_.constant({weights.shape.front(), 1, 1}, layer_limits(layer, begin, begin + rows));
    bits.push_back(graph_.node("LessOrEqual", {sums, limits}));
  }
  return onnx_cast(graph_, onnx_concat(graph_, bits, 1), OnnxType::f32);
}

}  // namespace

std::unique_ptr<OnnxMaps> standard_maps(OnnxGraph& graph) { return std::make_unique<StandardMaps>(graph); }

}  // namespace bitloom::models
