#include "plan/float_compression.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/narrow.h"
#include "train/parallel/sharding.h"

namespace bitloom::plan {
namespace {

// Gradients that a shard has, in the parts in which they are divided.
std::vector<train::PowerSgdShape> shapes_of(const FloatModel& model, std::size_t rank, std::size_t shards, std::size_t shard) {
  std::vector<train::PowerSgdShape> shapes;
  const auto add_vectors = [&](std::span<const std::size_t> sizes) {
    for (const std::vector<std::size_t>& counts : train::divide_parameters(sizes, shards)) {
      shapes.push_back(train::power_sgd_shape("", 1, counts[shard], rank));
    }
  };
  const auto add = [&](std::span<const FloatParameter> parameters, bool is_block) {
    std::vector<std::size_t> vectors;  // of a layer, divided together
    for (const FloatParameter& each : parameters) {
      if (each.is_frozen) continue;
      const std::size_t elements = each.elements.of(1);
      if (!is_block || !each.is_matrix) {
        vectors.push_back(elements);
        continue;
      }
      const std::size_t columns = elements / each.rows;
      const std::size_t own = train::divide_matrix(each.rows, columns, shards)[shard];
      shapes.push_back(train::power_sgd_shape_of_shard("", each.rows, columns, rank, shards, own));
    }
    add_vectors(vectors);
  };
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    std::span<const FloatParameter> parameters(model.layers[i].parameters);
    if (i == 0 && model.has_tied_head()) {  // the table is by itself
      add(parameters.first(1), false);
      parameters = parameters.subspan(1);
    }
    add(parameters, model.layers[i].is_block);
  }
  if (!model.has_tied_head()) add(model.head_parameters(), false);
  return shapes;
}

}  // namespace

CompressionNeeds compression_of(const FloatModel& model, std::size_t rank, train::FloatFormat format, std::size_t shards,
                                bool warm_start, train::FloatFormat errors) {
  CompressionNeeds most;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const std::vector<train::PowerSgdShape> shapes = shapes_of(model, rank, shards, shard);
    CompressionNeeds needs;
    needs.sent = train::power_sgd_bytes(shapes, format);
    needs.work_bytes = needs.sent.exact + needs.sent.flags;
    std::uint64_t elements = 0, longest = 0;
    for (const train::PowerSgdShape& shape : shapes) {
      if (shape.rank == 0) continue;
      elements += shape.rows * shape.columns;
      longest = std::max<std::uint64_t>(longest, shape.rows * shape.columns);
      // P is the shorter factor, but where each step begins with the last one's.
      const std::size_t query_rows = warm_start ? shape.columns : std::max(shape.rows, shape.columns);
      const std::size_t p_rows = shape.rows + shape.columns - query_rows;
      needs.query_bytes += query_rows * shape.rank * sizeof(float);
      // Messages are of f32 before they are rounded; P is kept while Q is summed.
      needs.work_bytes += (2 * p_rows + query_rows) * shape.rank * sizeof(float);
      // P, Q, and the gradient that they make.
      needs.operations += 3 * 2.0 * static_cast<double>(shape.rows * shape.columns * shape.rank);
    }
    needs.error_bytes =
        errors == train::FloatFormat::f32 ? elements * sizeof(float) : elements * sizeof(f1_6_9) + longest * sizeof(float);
    needs.saved_bytes = elements * sizeof(float) + (warm_start ? needs.query_bytes : 0);
    if (needs.sent.sum() > most.sent.sum()) most = needs;
  }
  return most;
}

}  // namespace bitloom::plan
