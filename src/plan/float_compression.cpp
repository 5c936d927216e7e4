#include "plan/float_compression.h"

#include <algorithm>
#include <vector>

namespace bitloom::plan {

CompressionNeeds compression_of(const FloatModel& model, std::size_t rank, train::FloatFormat format) {
  std::vector<train::PowerSgdShape> shapes;
  const auto add = [&](const FloatParameter& each, bool is_block) {
    const std::uint64_t elements = each.elements.of(1);
    const std::uint64_t rows = is_block && each.is_matrix ? each.rows : 1;
    shapes.push_back(train::power_sgd_shape("", rows, elements / rows, rank));
  };
  for (const FloatLayer& layer : model.layers) {
    for (const FloatParameter& each : layer.parameters) add(each, layer.is_block);
  }
  if (!model.has_tied_head()) {
    for (const FloatParameter& each : model.head_parameters()) add(each, false);
  }
  CompressionNeeds needs;
  needs.sent = train::power_sgd_bytes(shapes, format);
  for (const train::PowerSgdShape& shape : shapes) {
    if (shape.rank == 0) continue;
    needs.error_bytes += shape.rows * shape.columns * sizeof(float);
    // P is the shorter factor.
    needs.query_bytes += std::max(shape.rows, shape.columns) * shape.rank * sizeof(float);
    // P, Q, and the gradient that they make.
    needs.operations += 3 * 2.0 * static_cast<double>(shape.rows * shape.columns * shape.rank);
  }
  return needs;
}

}  // namespace bitloom::plan
