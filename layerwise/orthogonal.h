// The orthogonal factor of a matrix of gradients, for Muon (muon.h), in whole numbers: products of these are exact, so any
// instruction set and any number of threads come to the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"

namespace bitloom::layerwise {

// Letters: S the shorter side of the matrix, L the longer one.
class Orthogonaliser {
 public:
  Orthogonaliser() = default;
  Orthogonaliser(std::size_t rows, std::size_t columns);

  // x (rows, columns), of finite values: nearly the factor U V^T of its singular value decomposition, by Newton and Schulz
  // (optim/newton_schulz.h), in 15 binary places; elements above 1, which matrices of a few elements have, end there. Zeros
  // stay zeros. Singular values are divided by the fourth root of the sum of their fourth powers first, a nearer bound than the
  // root of the sum of squares, by which Jordan et al. (2024) divide them. On all threads.
  void apply(std::span<float> x);

 private:
  float& element(std::span<float> x, std::size_t r, std::size_t c) const;
  void quantise(std::span<float> x, double scale);
  void square();
  void step(float square_scale);

  std::size_t rows_ = 0, columns_ = 0, short_ = 0, long_ = 0;
  std::size_t short_padded_ = 0, long_padded_ = 0;
  Buffer<std::int16_t> x_;                    // (S, padded L): the matrix, or its transpose; 1 is 2^15
  Buffer<std::int16_t> transpose_;            // the same in panels of pairs over columns
  Buffer<std::int32_t> square_;               // (S, padded S): X X^T, 1 is 2^30
  Buffer<std::int16_t> narrow_, polynomial_;  // (S, padded S): it, A, where 1 is 2^14, and b A + c A^2, where 1 is 2^13
  std::vector<double> row_squares_;
};

}  // namespace bitloom::layerwise
