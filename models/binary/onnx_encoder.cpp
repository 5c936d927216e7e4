// FORMAT.md, section 4, as a graph.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>

#include "core/error.h"
#include "models/binary/onnx_parts.h"

namespace bitloom::models {
namespace {

constexpr std::int64_t largest_byte = 255;

// The encoder's numbers, in the order that tensors of the graph have them in.
struct EncoderTensors {
  explicit EncoderTensors(const layerwise::Encoder& encoder)
      : colours(static_cast<std::int64_t>(encoder.image_shape().channels)),
        patch(static_cast<std::int64_t>(encoder.patch())),
        features(static_cast<std::int64_t>(encoder.features())),
        filters(encoder.filters()) {
    for (std::size_t f = 0; f < encoder.features(); ++f) {
      upper.push_back(encoder.thresholds()[2 * f]);
      lower.push_back(encoder.thresholds()[2 * f + 1]);
    }
    if (encoder.contrast() > 0) contrast = encoder.contrast();
  }

  std::int64_t taps() const { return patch * patch * colours; }

  std::int64_t colours, patch, features;
  std::vector<std::int16_t> filters;       // (F, p, p, colours)
  std::vector<std::int32_t> upper, lower;  // (F)
  std::optional<float> contrast;
};

// The largest sum of filter times bytes that some filter (`taps` numbers) could give, on the way to it, too.
std::int64_t largest_response(std::span<const std::int16_t> filters, std::int64_t taps) {
  std::int64_t largest = 0;
  for (std::size_t begin = 0; begin < filters.size(); begin += static_cast<std::size_t>(taps)) {
    std::int64_t sum = 0;
    for (const std::int16_t tap : filters.subspan(begin, static_cast<std::size_t>(taps))) sum += std::abs(int{tap});
    largest = std::max(largest, largest_byte * sum);
  }
  return largest;
}

// Filters as the sum of parts[k] * step^k, with parts whose responses are exact in f32.
struct FilterParts {
  std::int32_t step = 1;
  std::vector<std::vector<std::int16_t>> parts;
};

// Digits from -step / 2 to step / 2 - 1, of which the last takes what remains.
FilterParts digits_of(const std::vector<std::int16_t>& filters, int bits, std::size_t count) {
  FilterParts result{std::int32_t{1} << bits, std::vector(count, filters)};
  for (std::size_t i = 0; i < filters.size(); ++i) {
    std::int32_t rest = filters[i];
    for (std::size_t k = 0; k + 1 < count; ++k) {
      const std::int32_t half = result.step / 2;
      const std::int32_t digit = ((rest + half) & (result.step - 1)) - half;
      result.parts[k][i] = static_cast<std::int16_t>(digit);
      rest = (rest - digit) / result.step;
    }
    result.parts.back()[i] = static_cast<std::int16_t>(rest);
  }
  return result;
}

FilterParts exact_parts(const EncoderTensors& encoder) {
  constexpr int digit_bits[] = {16, 8, 6, 4};  // of 1, 2, 3 and 4 digits
  for (std::size_t count = 1; count <= std::size(digit_bits); ++count) {
    FilterParts result = digits_of(encoder.filters, digit_bits[count - 1], count);
    const auto fits = [&](const auto& part) { return largest_response(part, encoder.taps()) < exact_in_f32; };
    if (std::all_of(result.parts.begin(), result.parts.end(), fits)) return result;
  }
  fail(ErrorKind::data, "encoder.filters: {} x {} pixels are too many for exact sums", encoder.patch, encoder.patch);
}

// Filters (F, p, p, colours) as weights of a convolution, f32 (F, colours, p, p).
std::string filter_weights(OnnxGraph& graph, const EncoderTensors& encoder, const std::vector<std::int16_t>& filters) {
  std::vector<std::int16_t> moved(filters.size());
  const std::int64_t pixels = encoder.patch * encoder.patch;
  for (std::int64_t f = 0; f < encoder.features; ++f) {
    for (std::int64_t t = 0; t < encoder.taps(); ++t) {
      const std::int64_t to = f * encoder.taps() + t % encoder.colours * pixels + t / encoder.colours;
      moved[static_cast<std::size_t>(to)] = filters[static_cast<std::size_t>(f * encoder.taps() + t)];
    }
  }
  const std::vector<std::int64_t> shape = {encoder.features, encoder.colours, encoder.patch, encoder.patch};
  const bool narrow = std::all_of(moved.begin(), moved.end(), [](std::int16_t tap) { return tap >= -128 && tap <= 127; });
  const std::string name =
      narrow ? graph.constant(shape, std::vector<std::int8_t>(moved.begin(), moved.end())) : graph.constant(shape, moved);
  return onnx_cast(graph, name, OnnxType::f32);
}

// Responses, i32 (N, F, H, W), of pixels with a border, f32.
std::string responses_of(OnnxGraph& graph, const EncoderTensors& encoder, const std::string& pixels) {
  const FilterParts split = exact_parts(encoder);
  std::string sum;
  std::int32_t unit = 1;
  for (const std::vector<std::int16_t>& part : split.parts) {
    const std::string response = graph.node("Conv", {pixels, filter_weights(graph, encoder, part)});
    std::string whole = onnx_cast(graph, response, OnnxType::i32);
    if (!sum.empty()) {
      unit *= split.step;
      whole = graph.node("Mul", {whole, graph.scalar(unit)});
    }
    sum = sum.empty() ? whole : graph.node("Add", {sum, whole});
  }
  return sum;
}

// Sums over the patches of pixels, f64 (N, 1, H, W), of values below 256.
std::string patch_sums(OnnxGraph& graph, const EncoderTensors& encoder, const std::string& values) {
  const std::vector<std::int8_t> ones(static_cast<std::size_t>(encoder.taps()), 1);
  const std::string weights = graph.constant({1, encoder.colours, encoder.patch, encoder.patch}, ones);
  return onnx_cast(graph, graph.node("Conv", {values, onnx_cast(graph, weights, OnnxType::f32)}), OnnxType::f64);
}

// x^2. The two factors have two names, since the package qonnx renames one of them alone where a node has the same input twice.
std::string squared(OnnxGraph& graph, const std::string& x) { return graph.node("Mul", {x, graph.node("Identity", {x})}); }

// Sums of squares: of their quotients and of their remainders by 256, since those of squares can exceed 2^24.
std::string patch_squares(OnnxGraph& graph, const EncoderTensors& encoder, const std::string& pixels) {
  const std::string squares = squared(graph, pixels);
  const std::string high = graph.node("Floor", {graph.node("Mul", {squares, graph.scalar(1.0F / 256)})});
  const std::string low = graph.node("Sub", {squares, graph.node("Mul", {high, graph.scalar(256.0F)})});
  const std::string scaled = graph.node("Mul", {patch_sums(graph, encoder, high), graph.scalar(256.0)});
  return graph.node("Add", {scaled, patch_sums(graph, encoder, low)});
}

// By what the responses of each patch are multiplied, f32 (N, 1, H, W): f32(c / sqrt(max(q / n - (s / n)^2, 0) + c^2)).
std::string patch_gains(OnnxGraph& graph, const EncoderTensors& encoder, const std::string& pixels) {
  const auto contrast = static_cast<double>(*encoder.contrast);
  const std::string n = graph.scalar(static_cast<double>(encoder.taps()));
  const std::string mean = graph.node("Div", {patch_sums(graph, encoder, pixels), n});
  const std::string mean_square = graph.node("Div", {patch_squares(graph, encoder, pixels), n});
  const std::string difference = graph.node("Sub", {mean_square, squared(graph, mean)});
  const std::string variance = graph.node("Max", {difference, graph.scalar(0.0)});
  const std::string root = graph.node("Sqrt", {graph.node("Add", {variance, graph.scalar(contrast * contrast)})});
  return onnx_cast(graph, graph.node("Div", {graph.scalar(contrast), root}), OnnxType::f32);
}

}  // namespace

std::string onnx_encoder(OnnxGraph& graph, const layerwise::Encoder& encoder, const std::string& images) {
  const EncoderTensors tensors(encoder);
  if (largest_byte * tensors.taps() >= exact_in_f32) {
    fail(ErrorKind::data, "encoder.filters: {} taps; expected fewer than {}", tensors.taps(), exact_in_f32 / largest_byte);
  }
  graph.scope("encoder");
  const std::int64_t half = tensors.patch / 2;
  const std::string border = graph.constant<std::int64_t>({8}, {0, 0, half, half, 0, 0, half, half});
  const std::string padded = graph.node("Pad", {images, border}, {{"mode", "edge"}});
  const std::string pixels = onnx_cast(graph, padded, OnnxType::f32);
  std::string responses = responses_of(graph, tensors, pixels);
  if (tensors.contrast) {
    const std::string gains = patch_gains(graph, tensors, pixels);
    const std::string scaled = graph.node("Mul", {onnx_cast(graph, responses, OnnxType::f32), gains});
    responses = onnx_cast(graph, scaled, OnnxType::i32);  // rounds towards 0
  }
  // Two bits of a feature, one after the other: (N, F, 2, H, W).
  const std::string axis = graph.constant<std::int64_t>({1}, {2});
  const auto bit = [&](const char* operation, const std::vector<std::int32_t>& thresholds) {
    const std::string limits = graph.constant({tensors.features, 1, 1}, thresholds);
    return graph.node("Unsqueeze", {graph.node(operation, {responses, limits}), axis});
  };
  const std::vector<std::string> both = {bit("GreaterOrEqual", tensors.upper), bit("LessOrEqual", tensors.lower)};
  const std::string bits = onnx_concat(graph, both, 2);
  const auto height = static_cast<std::int64_t>(encoder.output().height),
             width = static_cast<std::int64_t>(encoder.output().width);
  return onnx_cast(graph, onnx_reshape(graph, bits, {-1, 2 * tensors.features, height, width}), OnnxType::f32);
}

}  // namespace bitloom::models
