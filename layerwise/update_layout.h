// Which vector of an update by sparse messages carries what: the places in mpi::Bundle::vectors. Private to a stage's exchange.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "layerwise/head.h"
#include "mpi/bundle.h"
#include "mpi/sparse.h"

namespace bitloom::layerwise {

// Feedback vectors: per trained layer its weights' gradients (in the reply: the changes of the weights) and its channels' sums
// of values; per head its five parts. Then statistics, with numbers of their own: per layer LayerSums::statistics without the
// values, per head its counts, and how many images all of these are of.
class UpdateLayout {
 public:
  static constexpr std::size_t head_parts = 5;

  UpdateLayout(std::size_t layers, std::size_t heads) : layers_(layers), heads_(heads) {}

  std::size_t weights(std::size_t layer) const { return 2 * layer; }
  std::size_t values(std::size_t layer) const { return 2 * layer + 1; }
  std::size_t head(std::size_t h, std::size_t part) const { return 2 * layers_ + h * head_parts + part; }
  std::size_t feedback() const { return 2 * layers_ + heads_ * head_parts; }  // how many there are

  // Numbers of statistics.
  std::size_t of_layer(std::size_t layer) const { return layer; }
  std::size_t counts(std::size_t h) const { return layers_ + 2 * h; }
  std::size_t counts_squared(std::size_t h) const { return layers_ + 2 * h + 1; }
  std::size_t images() const { return layers_ + 2 * heads_; }

  // Where a statistic stands: behind the feedback vectors (mpi::SparseExchange).
  std::size_t place(std::size_t statistic) const { return feedback() + statistic; }

  // How many images a bundle's statistics are of.
  std::size_t images_observed(const mpi::Bundle& bundle) const;

  // Name of a vector in reports: "weights", "thresholds", "heads" or "statistics".
  const char* part(std::size_t vector) const {
    if (vector >= feedback()) return "statistics";
    if (vector >= 2 * layers_) return "heads";
    return vector % 2 == 0 ? "weights" : "thresholds";
  }

 private:
  std::size_t layers_, heads_;
};

// A head's sums that are feedback vectors, in the order of UpdateLayout::head().
std::array<std::vector<std::int64_t>*, UpdateLayout::head_parts> parts_of(Head::Sums& sums);

// `values` become those of a sparse vector; clamped to what they can hold, zeros if it is not there. Throws Error(data) if it
// has another size.
void fill_from(std::span<std::int32_t> values, const mpi::SparseVector& vector);
void fill_from(std::span<std::int64_t> values, const mpi::SparseVector& vector);

}  // namespace bitloom::layerwise
