// Maps of bits as QONNX has them (https://github.com/fastmachinelearning/qonnx): BipolarQuant(x, scale) is scale where x >= 0
// and -scale elsewhere, Quant(x, scale, zero, bits) the nearest integer that
// has this number of bits.
#include <algorithm>

#include "models/binary/onnx_parts.h"

namespace bitloom::models {
namespace {

using layerwise::BinaryLayer;

constexpr const char* qonnx_domain = "qonnx.custom_op.general";

class BipolarMaps final : public OnnxMaps {
 public:
  explicit BipolarMaps(OnnxGraph& graph) : graph_(graph) {}

  OnnxSize batch() const override { return std::int64_t{1}; }
  std::string numbers(const std::vector<std::int8_t>& values, const std::vector<std::int64_t>& shape) override {
    return graph_.constant(shape, std::vector<float>(values.begin(), values.end()));
  }
  float set_plus_unset() const override { return 0; }
  std::string from_bits(const std::string& bits) override { return sign_of(bits, graph_.scalar(0.5F)); }
  std::string to_bits(const std::string& map) override {
    return graph_.node("Mul", {graph_.node("Add", {map, graph_.scalar(1.0F)}), graph_.scalar(0.5F)});
  }
  std::string above(const std::string& mean, float share) override { return sign_of(mean, graph_.scalar(2 * share - 1)); }
  // Tools that know QONNX look for bits that meet bits, so that planes stay, each with its weights.
  std::string levels(const std::string& map, std::size_t /*planes*/, std::size_t /*channels*/) override { return map; }
  std::string layer(const BinaryLayer& layer, const std::string& input) override;

 private:
  // 1 where `value` is not below the limit, -1 elsewhere.
  std::string sign_of(const std::string& value, const std::string& limit) {
    return bipolar(graph_.node("Sub", {value, limit}));
  }
  std::string bipolar(const std::string& value) {
    return graph_.node("BipolarQuant", {value, graph_.scalar(1.0F)}, {}, qonnx_domain);
  }
  std::string stored(OnnxWeights weights, bool ternary);
  std::string padded(const std::string& map, std::int64_t padding);

  OnnxGraph& graph_;
};

// 1 where the bit of the filter is set, as in maps; -1, 0, 1 as integers of two bits without -2 where there are zeros.
std::string BipolarMaps::stored(OnnxWeights weights, bool ternary) {
  for (std::int8_t& weight : weights.values) weight = static_cast<std::int8_t>(-weight);
  const std::string floats = numbers(weights.values, weights.shape);
  if (!ternary) return bipolar(floats);
  return graph_.node("Quant", {floats, graph_.scalar(1.0F), graph_.scalar(0.0F), graph_.scalar(2.0F)},
                     {{"signed", std::int64_t{1}}, {"narrow", std::int64_t{1}}, {"rounding_mode", "ROUND"}}, qonnx_domain);
}

// A border of unset bits, which are not the zeros that a convolution adds.
std::string BipolarMaps::padded(const std::string& map, std::int64_t padding) {
  if (padding == 0) return map;
  const std::string border = graph_.constant<std::int64_t>({8}, {0, 0, padding, padding, 0, 0, padding, padding});
  return graph_.node("Pad", {map, border, graph_.scalar(-1.0F)});
}

// Where a bit and its weight differ, their product is -1, and 1 where they do not: of n weights that are not 0 the sum of
// products is n - 2 d, so that d <= T iff that sum is not below n - 2 T.
std::string BipolarMaps::layer(const BinaryLayer& layer, const std::string& input) {
  const auto stride = static_cast<std::int64_t>(layer.spec().stride);
  const auto most = static_cast<std::int64_t>(layer.geometry().valid_bits);
  const OnnxWeights weights = onnx_weights(layer, layer.channels(), layer.valid_bits());
  std::vector<float> limits;
  for (std::size_t o = 0; o < layer.channels(); ++o) {
    const auto row = weights.values.begin() + static_cast<std::ptrdiff_t>(o * layer.geometry().valid_bits);
    const std::int64_t zeros = std::count(row, row + most, 0);
    const std::int64_t limit = most - zeros - 2 * std::int64_t{layer.thresholds()[o]};
    limits.push_back(static_cast<float>(std::clamp(limit, -most - 1, most + 1)));
  }
  const std::string from = padded(input, static_cast<std::int64_t>(layer.spec().padding));
  const std::string sums =
      graph_.node("Conv", {from, stored(weights, layer.spec().ternary)}, {{"strides", std::vector<std::int64_t>(2, stride)}});
  return sign_of(sums, graph_.constant({1, weights.shape.front(), 1, 1}, limits));
}

}  // namespace

std::unique_ptr<OnnxMaps> bipolar_maps(OnnxGraph& graph) { return std::make_unique<BipolarMaps>(graph); }

}  // namespace bitloom::models
