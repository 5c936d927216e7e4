// Scales of the gradients of residual blocks, each block's own (Ramesh et al. 2021, section 2.4 and appendix D, 1). What one
// scale for all cannot: gradients of late blocks are so much smaller than those of early ones that no range of five bits of
// exponent has both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace bitloom::train {

// first, least and largest are times the number of replicas M: losses are divided by the examples of all of them, which makes
// the gradients of each as much smaller (appendix D, 3).
struct GradientScaleOptions {
  double first = 8192, least = 128, largest = 16777216;  // 2^13, 2^7, 2^24
  double growth = 1.0006933874625807;                    // 2^(1/1000), at each clean update
  double division = 1.4142135623730951;                  // sqrt 2, where a gradient is not finite
  std::uint64_t window = 125;                            // updates from one division to the next, at least
};

class GradientScales {
 public:
  // blocks: their numbers.
  GradientScales(std::vector<std::size_t> blocks, std::size_t replicas, const GradientScaleOptions& options = {});

  const std::vector<std::size_t>& blocks() const { return blocks_; }
  // In their order.
  const std::vector<double>& all() const { return scales_; }
  // Throws Error(internal) for a block that it does not have.
  double of(std::size_t block) const { return scales_[index_of(block)]; }
  // Whether it cannot become smaller.
  bool is_least(std::size_t block) const { return of(block) == options_.least || of(block) <= smallest_least_; }

  // After an update. is_clean: whether all gradients of a block were finite.
  void update(const std::function<bool(std::size_t block)>& is_clean);

  // By block: its scale, and the number of updates since it was divided.
  std::vector<double> state() const;
  // Scales of a run with fewer or more replicas, which had other limits, stay what they were, and go on from there: below the
  // least down to that of one replica, not beyond the largest.
  void set_state(std::span<const double> state);

 private:
  std::size_t index_of(std::size_t block) const;

  std::vector<std::size_t> blocks_;
  GradientScaleOptions options_;  // times the number of replicas
  double smallest_least_ = 0;     // of one replica
  std::vector<double> scales_;
  std::vector<std::uint64_t> since_;  // updates since the last division; the window, if there was none
};

}  // namespace bitloom::train
