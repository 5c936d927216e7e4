#include "layerwise/update_layout.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace bitloom::layerwise {
namespace {

template <typename T>
void fill_values(std::span<T> values, const mpi::SparseVector& vector) {
  std::fill(values.begin(), values.end(), T{0});
  if (vector.size == 0) return;
  if (vector.size != values.size()) {
    fail(ErrorKind::data, "exchange: a vector of {} elements; expected {}", vector.size, values.size());
  }
  for (std::size_t i = 0; i < vector.index.size(); ++i) {
    values[vector.index[i]] =
        static_cast<T>(std::clamp<std::int64_t>(vector.value[i], std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
}

}  // namespace

std::size_t UpdateLayout::images_observed(const mpi::Bundle& bundle) const {
  std::int64_t count = 0;
  fill_from(std::span(&count, 1), bundle.vectors[place(images())]);
  return static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
}

std::array<std::vector<std::int64_t>*, UpdateLayout::head_parts> parts_of(Head::Sums& sums) {
  return {&sums.linear, &sums.linear_bias, &sums.hidden, &sums.hidden_bias, &sums.output};
}

void fill_from(std::span<std::int32_t> values, const mpi::SparseVector& vector) { fill_values(values, vector); }

void fill_from(std::span<std::int64_t> values, const mpi::SparseVector& vector) { fill_values(values, vector); }

}  // namespace bitloom::layerwise
