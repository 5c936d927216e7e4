// Muon (Jordan et al. 2024) for the weights of a binary layer: their accumulators descend, in place of the gradient, its
// momentum made orthogonal, so that every direction that gradients agree on moves weights alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/bits.h"
#include "layerwise/layer.h"
#include "layerwise/orthogonal.h"

namespace bitloom::layerwise {

// Letters: R rows of weights, B bits of a patch. Words of a patch that are tied to one another (ties.h) count once.
class Muon {
 public:
  // Bits of training state for each weight.
  static constexpr std::size_t state_bits = 16;

  Muon(const BinaryLayer& layer, double momentum);  // 0 < momentum < 1

  // A step: take() of all rows, orthogonalise(), give() of all rows. take and give may run side by side, for different rows.
  // momentum m = momentum m + (1 - momentum) scale gradient; the row of the matrix that is made orthogonal is that of Nesterov,
  // momentum m + (1 - momentum) scale gradient.
  void take(std::size_t row, std::span<const float> gradient, float scale);
  void orthogonalise();
  // gradient (B): with a root mean square of 1 over all weights; zeros if there was no gradient.
  void give(std::size_t row, std::span<float> gradient) const;

  // The momentum: (R, columns), 1 is 2^12.
  std::span<const std::int16_t> state() const { return momentum_; }
  std::span<std::int16_t> state() { return momentum_; }
  std::size_t columns() const { return word_of_column_.size() * word_bits; }

 private:
  float keep_;
  std::size_t rows_;
  double weights_ = 0;  // of the matrix: columns of bits that no input can set have none
  // The first word of a patch that has the columns of a word; and back.
  std::vector<std::size_t> word_of_column_, column_of_word_;
  std::vector<std::int16_t> momentum_;
  std::vector<float> matrix_;  // (R, columns)
  Orthogonaliser orthogonaliser_;
  float scale_ = 0;
};

}  // namespace bitloom::layerwise
