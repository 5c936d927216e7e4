#include "train/parallel/gradient_norm.h"

#include <cmath>
#include <map>

#include "mpi/float_collectives.h"
#include "nn/ops.h"

namespace bitloom::train {
namespace {

std::size_t chunks_of(std::size_t elements) { return (elements + nn::squares_chunk - 1) / nn::squares_chunk; }

// Elements of the largest part that one of `ranks` ranks has of a parameter.
std::size_t largest_part(const nn::Parameter& parameter, int ranks) {
  if (!parameter.part) return parameter.shape.size();
  const nn::Part& part = *parameter.part;
  const std::size_t length = part.full[part.axis];
  const auto n = static_cast<std::size_t>(ranks);
  return (length / part.blocks + n - 1) / n * part.blocks * (part.full.size() / length);
}

}  // namespace

GradientNorm::GradientNorm(nn::Engine& engine, std::span<nn::Parameter* const> net, std::vector<Part> parts, mpi::Grid& grid,
                           mpi::Comm* shards)
    : engine_(engine), parts_(std::move(parts)), grid_(grid), shards_(shards) {
  std::map<const nn::Parameter*, std::size_t> first;
  for (const nn::Parameter* parameter : net) {
    first[parameter] = size_;
    first_slots_.push_back(size_);
    const std::size_t chunks = chunks_of(largest_part(*parameter, grid.shape().tensor));
    for (std::size_t chunk = 0; chunk < chunks; ++chunk, ++size_) {
      if (parameter->part) divided_slots_.push_back(size_);
    }
  }
  for (const Part& part : parts_) slots_.push_back(first.at(part.parameter) + part.begin / nn::squares_chunk);
}

std::vector<double> GradientNorm::sums_by_chunk() {
  std::vector<nn::Tensor> gradients;
  for (const Part& part : parts_) gradients.push_back(*part.gradient);
  const std::vector<double> sums = nn::sums_of_squares(engine_, gradients);
  std::vector<double> slots(size_, 0.0);
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    for (std::size_t chunk = 0; chunk < chunks_of(gradients[i].size()); ++chunk, ++at) {
      if (parts_[i].counts) slots[slots_[i] + chunk] = sums[at];
    }
  }
  // Every sum but those of divided parameters comes from one rank of a group, beside zeros of the others.
  if (shards_ != nullptr) mpi::sum_in_order(*shards_, std::span(slots));
  mpi::sum_in_order(grid_.pipeline(), std::span(slots));
  std::vector<double> divided;
  for (const std::size_t slot : divided_slots_) divided.push_back(slots[slot]);
  mpi::sum_in_order(grid_.tensor(), std::span(divided));
  for (std::size_t i = 0; i < divided.size(); ++i) slots[divided_slots_[i]] = divided[i];
  return slots;
}

double GradientNorm::norm(double scale) {
  double sum = 0;
  for (const double each : sums_by_chunk()) sum += each;
  return scale * std::sqrt(sum);
}

std::vector<double> GradientNorm::squares() {
  const std::vector<double> slots = sums_by_chunk();
  std::vector<double> squares;
  for (std::size_t i = 0; i < first_slots_.size(); ++i) {
    const std::size_t end = i + 1 < first_slots_.size() ? first_slots_[i + 1] : size_;
    double& sum = squares.emplace_back();
    for (std::size_t slot = first_slots_[i]; slot < end; ++slot) sum += slots[slot];
  }
  return squares;
}

}  // namespace bitloom::train
