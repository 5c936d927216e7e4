#include "train/parallel/giving_up.h"

#include <algorithm>
#include <array>
#include <span>

namespace bitloom::train {

std::function<bool()> GivingUp::asked(const std::function<bool()>& is_given_up) {
  if (!is_given_up || comm_.size() == 1) return is_given_up;
  if (every_ == 0) return {};
  return [this, is_given_up, passed = std::uint64_t{0}]() mutable {
    return ++passed % every_ == 0 && comm_.flag_any(is_given_up());
  };
}

void GivingUp::agree(double step_seconds) {
  constexpr std::uint64_t largest_gap = 100;
  if (comm_.size() == 1 || --steps_to_agree_ > 0) return;
  gap_ = std::min(2 * gap_, largest_gap);
  steps_to_agree_ = gap_;
  const auto own = static_cast<double>(own_);
  const double between = std::clamp(own * asking_seconds_ / std::max(step_seconds, 1e-9), 1.0, own);
  std::array<std::uint64_t, 1> every = {step_seconds < 2 * asking_seconds_ ? 0 : static_cast<std::uint64_t>(between)};
  comm_.broadcast(std::span<std::uint64_t>(every));
  every_ = every[0];
}

}  // namespace bitloom::train
