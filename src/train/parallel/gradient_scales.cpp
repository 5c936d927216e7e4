#include "train/parallel/gradient_scales.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace bitloom::train {

GradientScales::GradientScales(std::vector<std::size_t> blocks, std::size_t replicas, const GradientScaleOptions& options)
    : blocks_(std::move(blocks)), options_(options) {
  const auto m = static_cast<double>(replicas);
  smallest_least_ = options_.least;
  options_.first *= m;
  options_.least *= m;
  options_.largest *= m;
  scales_.assign(blocks_.size(), options_.first);
  since_.assign(blocks_.size(), options_.window);
}

std::size_t GradientScales::index_of(std::size_t block) const {
  const auto found = std::ranges::find(blocks_, block);
  if (found == blocks_.end()) fail(ErrorKind::internal, "gradient scales: there is no block {}", block);
  return static_cast<std::size_t>(found - blocks_.begin());
}

void GradientScales::update(const std::function<bool(std::size_t block)>& is_clean) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    ++since_[i];
    double& scale = scales_[i];
    if (is_clean(blocks_[i])) {
      if (scale < options_.largest) scale = std::min(scale * options_.growth, options_.largest);
    } else if (since_[i] >= options_.window) {
      scale = std::max(scale / options_.division, scale >= options_.least ? options_.least : smallest_least_);
      since_[i] = 0;
    }
  }
}

std::vector<double> GradientScales::state() const {
  std::vector<double> state;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    state.push_back(scales_[i]);
    state.push_back(static_cast<double>(since_[i]));
  }
  return state;
}

void GradientScales::set_state(std::span<const double> state) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    scales_[i] = state[2 * i];
    since_[i] = static_cast<std::uint64_t>(state[2 * i + 1]);
  }
}

}  // namespace bitloom::train
