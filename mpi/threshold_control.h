// The control of thresholds: which elements of an update's vectors are large enough to be sent, so that messages have as many
// bytes as a budget allows. One control for each direction: what workers send, and what the root replies.
//
// Thresholds. The elements of vector v come in with a root mean square r_v. An element x is sent where |x| > m r_v / s_v. The
// scale s_v says how much sooner than other vectors it is sent; the multiple m is one for all vectors, and is what is
// controlled.
//
// First multiple. Of the n_v of N_v elements that are above a threshold a message has about log2(N_v over n_v) bits for the
// places, which is n_v log2(e N_v / n_v) by Stirling's formula, and some 3 bits each for sign and value. So it has
//   B(m) = sum over v of n_v(m) (log2(e N_v / n_v(m)) + 3) / 8 bytes,
// where n_v(m) follows from how many elements have which bit width; within a width logarithms are taken to be spread evenly,
// which is too many of normally distributed elements. B falls with m: bisection gives B(m) = w, the bytes wanted.
//
// Steering (integral control of log m). Message t has b bytes where w are wanted. With
//   saved  S <- min(S + w - b, R w)                        what messages had less than wanted, in all; R = 8 messages
//   aim    a = w (1 - 0.05 min((R - S / w) / 2R, 1))       up to 5% less while messages had more than wanted in all
//   owed   o <- o + (b - a) / a;  e = clip(o, -1, 1);  o <- o - e
// the multiple moves by log m <- log m + g e, g = 0.05, so that one message with far too many bytes moves it in several steps.
// How g follows: let b be proportional to m^-k near the aim; then the error shrinks by the factor 1 - k g per update, and where
// the effect comes d updates late (staleness) the loop is stable for k g < 2 sin(pi / (4 d + 2)). Of normally distributed
// elements k is about m^2 = 9 at m = 3, so k g = 0.45: stable up to d = 2, and heavier tails have smaller k (sqrt(2) m = 4.2
// for Laplace's distribution, k g = 0.21: stable up to d = 6).
//   Where b > 2 a in a message without statistics, gradients have grown since their root mean squares were measured. Then it
// moves at once, by log m <- log m + log(b / a) / 4, which for k = 4 is the whole error, and o <- 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace bitloom::mpi {

// A threshold that no element passes: of a vector of which nothing has come in yet.
inline constexpr std::uint64_t nothing_passes = std::numeric_limits<std::uint64_t>::max();

// Bit widths of magnitudes that are counted, from 0 (the value 0) on; the last is that of all larger ones.
inline constexpr std::size_t magnitude_widths = 64;

struct ControlledVector {
  std::uint64_t size = 0;
  double scale = 1;  // s_v
};

class ThresholdControl {
 public:
  ThresholdControl() = default;
  // For vectors of these sizes and scales. fixed_multiple: m, which does not move; 0: it is steered.
  ThresholdControl(std::vector<ControlledVector> vectors, double fixed_multiple);

  // The root mean square of what came in for vector v in an update; 0 or less is no observation. r_v is a moving average.
  void observe(std::size_t v, double rms);
  double rms(std::size_t v) const { return rms_[v]; }  // r_v; 0: unknown

  // A message had `bytes`, where `wanted` are wanted. vectors: how many vectors it carried; where others than before are sent,
  // m begins anew. plain: it had no statistics, so that its bytes are all of elements.
  void steer(double bytes, double wanted, std::size_t vectors, bool plain);
  // The first multiple, before anything is sent. magnitudes: (vectors, magnitude_widths), how many elements have which bit
  // width, over `workers` messages.
  void begin_with(std::span<const std::int64_t> magnitudes, double wanted, double workers);

  // Threshold of vector v: m r_v / s_v, or nothing_passes.
  std::uint64_t threshold(std::size_t v) const;

  // For checkpoints: m, o, S, and how many vectors messages carried; and r_v of all vectors.
  static constexpr std::size_t state_size = 4;
  std::array<double, state_size> state() const;
  const std::vector<double>& all_rms() const { return rms_; }
  void restore(std::span<const double> state, std::span<const double> rms);

 private:
  std::vector<ControlledVector> vectors_;
  std::vector<double> rms_;
  double multiple_ = 0, first_multiple_ = 0;
  double owed_ = 0;
  double saved_ = 0;  // bytes
  std::size_t vectors_steered_ = 0;
};

}  // namespace bitloom::mpi
