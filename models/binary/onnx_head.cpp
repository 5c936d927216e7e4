// FORMAT.md, section 6, as a graph: integers in f64, everything else in f32, one operator per rounding.
#include <algorithm>
#include <span>

#include "layerwise/rounded_weights.h"
#include "models/binary/onnx_parts.h"

namespace bitloom::models {
namespace {

using layerwise::Head;
using layerwise::MapShape;

constexpr float largest_hidden = 2047;  // FORMAT.md, section 6

// 1 for the pixels of each region, f32 (H * W, regions).
std::string region_masks(OnnxGraph& graph, OnnxMaps& maps, const Head& head, const MapShape& shape) {
  std::vector<std::int8_t> masks(shape.height * shape.width * head.regions(), 1);
  const auto take = [&](std::size_t region, std::size_t top, std::size_t bottom, std::size_t left, std::size_t right) {
    for (std::size_t y = top; y < bottom; ++y) {
      for (std::size_t x = left; x < right; ++x) masks[(y * shape.width + x) * head.regions() + region] = -1;
    }
  };
  if (head.spec().kind == "class_conv") {
    // An offset (dy, dx) leaves out the rows and columns that come from outside of the map.
    const auto kernel = static_cast<std::ptrdiff_t>(head.spec().kernel);
    const auto from = [](std::ptrdiff_t d) { return static_cast<std::size_t>(std::max<std::ptrdiff_t>(d, 0)); };
    const auto to = [](std::size_t size, std::ptrdiff_t d) {
      return size - static_cast<std::size_t>(std::max<std::ptrdiff_t>(-d, 0));
    };
    for (std::ptrdiff_t k = 0; k < kernel * kernel; ++k) {
      const std::ptrdiff_t dy = k / kernel - kernel / 2, dx = k % kernel - kernel / 2;
      take(static_cast<std::size_t>(k), from(dy), to(shape.height, dy), from(dx), to(shape.width, dx));
    }
  } else {
    const std::size_t grid = head.spec().grid;
    for (std::size_t cell = 0; cell < grid * grid; ++cell) {
      const std::size_t a = cell / grid, b = cell % grid;
      take(cell, a * shape.height / grid, (a + 1) * shape.height / grid, b * shape.width / grid, (b + 1) * shape.width / grid);
    }
  }
  const std::vector<std::int64_t> sizes = {static_cast<std::int64_t>(shape.height * shape.width),
                                           static_cast<std::int64_t>(head.regions())};
  const std::string inside = graph.node("Less", {maps.numbers(masks, sizes), graph.scalar(0.0F)});
  return onnx_cast(graph, inside, OnnxType::f32);
}

// A matrix (rows, groups of `padded` columns) as its transpose, (groups * kept, rows): of each group the first `kept` columns.
template <typename T>
std::vector<T> transposed(std::span<const T> matrix, std::size_t rows, std::size_t padded, std::size_t kept) {
  const std::size_t columns = matrix.size() / rows;
  std::vector<T> result;
  result.reserve(columns / padded * kept * rows);
  for (std::size_t column = 0; column < columns; ++column) {
    if (column % padded >= kept) continue;
    for (std::size_t row = 0; row < rows; ++row) result.push_back(matrix[row * columns + column]);
  }
  return result;
}

// Counts (.., columns) times a matrix, without what the centre of the counts gives: f64 (.., rows). The centre has a row for
// each of the `positions` that the matrix is applied to; channels without a count have a centre, too.
template <typename T>
std::string centred_product(OnnxGraph& graph, const std::string& counts, const std::string& matrix, std::span<const T> values,
                            std::span<const std::int16_t> centre, std::size_t rows) {
  const std::size_t columns = values.size() / rows;
  const std::size_t positions = centre.size() / columns;
  std::vector<double> offsets;
  for (std::size_t p = 0; p < positions; ++p) {
    for (std::size_t row = 0; row < rows; ++row) {
      std::int64_t sum = 0;
      for (std::size_t k = 0; k < columns; ++k) sum += std::int64_t{centre[p * columns + k]} * values[row * columns + k];
      offsets.push_back(static_cast<double>(sum));
    }
  }
  const std::string offset = graph.constant({static_cast<std::int64_t>(positions), static_cast<std::int64_t>(rows)}, offsets);
  return graph.node("Sub", {graph.node("MatMul", {counts, matrix}), offset});
}

// transposed() as f64. Weights of few bits are stored as bytes, in steps of their row.
std::string matrix_constant(OnnxGraph& graph, std::span<const std::int16_t> matrix, std::size_t rows, std::size_t padded,
                            std::size_t kept, std::size_t bits) {
  const std::size_t columns = matrix.size() / rows;
  const auto sizes = [&](std::size_t count) {
    return std::vector<std::int64_t>{static_cast<std::int64_t>(count / rows), static_cast<std::int64_t>(rows)};
  };
  if (bits > 8) {
    const std::vector<std::int16_t> stored = transposed(matrix, rows, padded, kept);
    return onnx_cast(graph, graph.constant(sizes(stored.size()), stored), OnnxType::f64);
  }
  std::vector<std::int8_t> multiples(matrix.size());
  std::vector<double> steps(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::int16_t step = layerwise::step_of(matrix.subspan(row * columns, columns));
    steps[row] = step;
    for (std::size_t k = row * columns; k < (row + 1) * columns; ++k) multiples[k] = static_cast<std::int8_t>(matrix[k] / step);
  }
  const std::vector<std::int8_t> stored = transposed(std::span<const std::int8_t>(multiples), rows, padded, kept);
  return graph.node("Mul", {onnx_cast(graph, graph.constant(sizes(stored.size()), stored), OnnxType::f64),
                            graph.constant(sizes(rows), steps)});
}

// f32(sums) * step
std::string scaled(OnnxGraph& graph, const std::string& sums, float step) {
  return graph.node("Mul", {onnx_cast(graph, sums, OnnxType::f32), graph.scalar(step)});
}

class HeadGraph {
 public:
  HeadGraph(OnnxGraph& graph, OnnxMaps& maps, const Head& head, const MapShape& shape)
      : graph_(graph), maps_(maps), head_(head), shape_(shape), integers_(head.integers()) {}

  std::string logits(const std::string& map) {
    const auto pixels = static_cast<std::int64_t>(shape_.height * shape_.width);
    const auto channels = static_cast<std::int64_t>(shape_.channels), regions = static_cast<std::int64_t>(head_.regions());
    const std::string flat = onnx_reshape(graph_, map, {-1, channels, pixels});
    const std::string counted = graph_.node("MatMul", {flat, region_masks(graph_, maps_, head_, shape_)});
    const std::string by_region = graph_.node("Transpose", {counted}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
    const std::string counts = onnx_cast(graph_, by_region, OnnxType::f64);  // (N, regions, C)
    const std::string features = onnx_reshape(graph_, counts, {-1, regions * channels});
    std::string sum = scaled(graph_, linear(features), integers_.linear_step);
    if (head_.spec().kind == "hidden") sum = graph_.node("Add", {sum, scaled(graph_, hidden(counts), integers_.output_step)});
    return graph_.node("Add", {sum, constant(integers_.bias)});
  }

 private:
  std::string constant(std::span<const float> values) {
    return graph_.constant({static_cast<std::int64_t>(values.size())}, std::vector(values.begin(), values.end()));
  }

  std::string stored(std::span<const std::int16_t> matrix, std::size_t rows, std::size_t padded, std::size_t kept) {
    return matrix_constant(graph_, matrix, rows, padded, kept, head_.weight_bits());
  }

  // The sums over features, f64 (N, L).
  std::string linear(const std::string& features) {
    const std::span<const std::int16_t> weights = integers_.linear;
    const std::size_t classes = head_.classes();
    if (head_.spec().kind != "class_conv") {
      return centred_product(graph_, features, stored(weights, classes, head_.channels(), shape_.channels), weights,
                             integers_.centre, classes);
    }
    // All have the size of the first: signs relative to it are bits.
    std::vector<std::int8_t> relative;
    for (const std::int16_t weight : weights) relative.push_back(weight == weights[0] ? 1 : -1);
    const std::span<const std::int8_t> all(relative);
    const std::vector<std::int8_t> signs = transposed(all, classes, head_.channels(), shape_.channels);
    const auto rows = static_cast<std::int64_t>(signs.size() / classes);
    const std::string matrix =
        onnx_cast(graph_, maps_.numbers(signs, {rows, static_cast<std::int64_t>(classes)}), OnnxType::f64);
    const std::string sum = centred_product(graph_, features, matrix, all, integers_.centre, classes);
    return graph_.node("Mul", {sum, graph_.scalar(static_cast<double>(weights[0]))});
  }

  // The sums over hidden units, f64 (N, L), of counts (N, regions, C).
  std::string hidden(const std::string& counts) {
    const std::size_t units = head_.spec().hidden;
    const std::string before =
        centred_product(graph_, counts, stored(integers_.input, units, head_.channels(), shape_.channels), integers_.input,
                        integers_.centre, units);
    std::string value = graph_.node("Add", {scaled(graph_, before, integers_.input_step), constant(integers_.input_bias)});
    value = graph_.node("Mul", {graph_.node("Max", {value, graph_.scalar(0.0F)}), graph_.scalar(Head::hidden_steps)});
    value = graph_.node("Min", {value, graph_.scalar(largest_hidden)});
    value = graph_.node("Floor", {graph_.node("Add", {value, graph_.scalar(0.5F)})});
    const std::size_t all = head_.regions() * units;
    const std::string flat =
        onnx_reshape(graph_, onnx_cast(graph_, value, OnnxType::f64), {-1, static_cast<std::int64_t>(all)});
    const std::size_t classes = head_.classes();
    return graph_.node("MatMul", {flat, stored(integers_.output, classes, all, all)});
  }

  OnnxGraph& graph_;
  OnnxMaps& maps_;
  const Head& head_;
  const MapShape& shape_;
  const Head::Integers integers_;
};

}  // namespace

std::string onnx_head(OnnxGraph& graph, OnnxMaps& maps, const Head& head, const MapShape& shape, const std::string& bits) {
  return HeadGraph(graph, maps, head, shape).logits(bits);
}

}  // namespace bitloom::models
