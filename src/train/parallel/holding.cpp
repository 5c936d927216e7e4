#include "train/parallel/holding.h"

#include <algorithm>

namespace bitloom::train {

std::uint64_t Holding::below(std::uint64_t n) const {
  if (n <= first || count == 0) return 0;
  const std::uint64_t rows = (n - first) / stride;
  const std::uint64_t in_part = rows * run + std::min(run, (n - first) % stride);
  return std::clamp(in_part, begin, begin + count) - begin;
}

Holding holding_of(const nn::Parameter& parameter) {
  Holding holding = Holding::whole(parameter.shape.size());
  if (!parameter.part) return holding;
  const nn::ElementNumbers numbers = parameter.numbers();
  holding.first = numbers.first;
  holding.run = numbers.run;
  holding.stride = numbers.stride;
  return holding;
}

std::vector<std::size_t> full_shape_of(const nn::Parameter& parameter) {
  const auto lengths = (parameter.part ? parameter.part->full : parameter.shape).lengths();
  return {lengths.begin(), lengths.end()};
}

}  // namespace bitloom::train
