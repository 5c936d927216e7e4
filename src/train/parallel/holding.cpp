#include "train/parallel/holding.h"

#include <algorithm>

namespace bitloom::train {

std::size_t Holding::below(std::size_t n) const {
  const auto& [first, run, stride, begin] = numbers;
  if (n <= first) return 0;
  const std::size_t in_part = run == 0 ? n : (n - first) / stride * run + std::min(run, (n - first) % stride);
  return std::clamp(in_part, begin, begin + count) - begin;
}

Holding holding_of(const nn::Parameter& parameter) { return {parameter.numbers(), parameter.shape.size()}; }

std::vector<std::size_t> full_shape_of(const nn::Parameter& parameter) {
  const auto lengths = (parameter.part ? parameter.part->full : parameter.shape).lengths();
  return {lengths.begin(), lengths.end()};
}

}  // namespace bitloom::train
