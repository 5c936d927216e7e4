#include "mpi/threshold_control.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/softmax.h"

namespace bitloom::mpi {
namespace {

// Where m begins and between which bounds it stays: below, nearly everything is sent; above, nothing, even where most gradients
// are zero, as those of few images that are known by heart.
constexpr double first_multiple = 3;
constexpr double least_multiple = 0.5;
constexpr double largest_multiple = 512;
constexpr double gain = 0.05;         // g
constexpr double far_too_long = 2;    // b / a from which on m moves at once,
constexpr double jump = 0.25;         // by this power of b / a
constexpr double reserve = 8;         // R, in messages
constexpr double most_saving = 0.05;  // largest share of a message that is saved
constexpr double rms_decay = 0.7;     // decay of the moving average, per observation
constexpr double bits_of_value = 3;   // bits of an element that is sent, its sign included
constexpr double largest = 0x1p60;    // largest threshold
constexpr int bisections = 20;        // steps in log m: 512 / 0.5 to the 2^-20th power is 1 + 7e-6

// The same on every machine, unlike the C library's.
double log2_fixed(double x) { return static_cast<double>(log_fixed(static_cast<float>(x))) / std::numbers::ln2; }

}  // namespace

ThresholdControl::ThresholdControl(std::vector<ControlledVector> vectors, double fixed_multiple)
    : vectors_(std::move(vectors)),
      rms_(vectors_.size(), 0),
      multiple_(fixed_multiple > 0 ? fixed_multiple : first_multiple),
      first_multiple_(multiple_) {}

void ThresholdControl::observe(std::size_t v, double rms) {
  if (!(rms > 0)) return;
  rms_[v] = rms_[v] > 0 ? rms_decay * rms_[v] + (1 - rms_decay) * rms : rms;
}

void ThresholdControl::steer(double bytes, double wanted, std::size_t vectors, bool plain) {
  if (vectors != vectors_steered_) {
    vectors_steered_ = vectors;
    multiple_ = first_multiple_;
    owed_ = 0;
  }
  saved_ = std::min(saved_ + wanted - bytes, reserve * wanted);
  const double aim = wanted * (1 - most_saving * std::min((reserve - saved_ / wanted) / (2 * reserve), 1.0));
  double growth = 0;  // growth of log m
  if (plain && bytes > far_too_long * aim) {
    growth = jump * static_cast<double>(log_fixed(static_cast<float>(bytes / aim)));
    owed_ = 0;
  } else {
    owed_ += (bytes - aim) / aim;
    const double now = std::clamp(owed_, -1.0, 1.0);
    owed_ -= now;
    growth = gain * now;
  }
  multiple_ =
      std::clamp(multiple_ * static_cast<double>(exp_fixed(static_cast<float>(growth))), least_multiple, largest_multiple);
}

void ThresholdControl::begin_with(std::span<const std::int64_t> magnitudes, double wanted, double workers) {
  const auto bytes_at = [&](double multiple) {
    double bits = 0;
    for (std::size_t v = 0; v < vectors_.size(); ++v) {
      if (!(rms_[v] > 0)) continue;
      const double threshold = multiple / vectors_[v].scale * rms_[v];
      const auto width = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(threshold)));
      const std::span<const std::int64_t> counts = magnitudes.subspan(v * magnitude_widths, magnitude_widths);
      double above = 0;
      for (std::size_t w = width + 1; w < magnitude_widths; ++w) above += static_cast<double>(counts[w]);
      // Share of those as wide as the threshold, as if their logarithms were spread evenly.
      const double low = width == 0 ? 1 : std::ldexp(1.0, static_cast<int>(width) - 1);
      const double share = 1 - std::clamp(log2_fixed(std::max(threshold, 1.0) / low), 0.0, 1.0);
      if (width < magnitude_widths) above += static_cast<double>(counts[width]) * share;
      const double each = above / workers;
      if (each > 0) bits += each * (log2_fixed(std::numbers::e * static_cast<double>(vectors_[v].size) / each) + bits_of_value);
    }
    return bits / 8;
  };
  double low = least_multiple;
  double high = largest_multiple;
  for (int i = 0; i < bisections; ++i) {
    const double middle = std::sqrt(low * high);
    (bytes_at(middle) > wanted ? low : high) = middle;
  }
  multiple_ = high;
  owed_ = 0;
}

std::uint64_t ThresholdControl::threshold(std::size_t v) const {
  if (!(rms_[v] > 0)) return nothing_passes;
  return static_cast<std::uint64_t>(std::llround(std::min(multiple_ / vectors_[v].scale * rms_[v], largest)));
}

std::array<double, ThresholdControl::state_size> ThresholdControl::state() const {
  return {multiple_, owed_, saved_, static_cast<double>(vectors_steered_)};
}

void ThresholdControl::restore(std::span<const double> state, std::span<const double> rms) {
  multiple_ = state[0];
  owed_ = state[1];
  saved_ = state[2];
  vectors_steered_ = static_cast<std::size_t>(state[3]);
  rms_.assign(rms.begin(), rms.end());
}

}  // namespace bitloom::mpi
