// Weights of few bits: each row of a matrix consists of multiples q * step of a step of its own, |q| below 2^(bits - 1), and is
// stored as bit planes of q + 2^(bits - 1) (FORMAT.md, section 6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace bitloom::layerwise {

// Rounds the rows of a matrix (rows, columns), each to multiples of the step whose squared error is least among some, from the
// one that reaches the row's largest weight down to a third of it, which clips what is rare. bits: 2 to 15.
void round_rows(std::span<std::int16_t> weights, std::size_t rows, std::size_t bits);

// A matrix (rows, columns) whose weight k of row r is (q - 2^(bits - 1)) * steps[r]; bit b of q is bit k % 64 of word k / 64 of
// planes[r, b].
struct BitPlanes {
  std::size_t bits = 0, words = 0;    // words = ceil(columns / 64)
  std::vector<std::uint64_t> planes;  // (rows, bits, words)
  std::vector<std::int16_t> steps;    // (rows)
};

// The planes of a matrix that round_rows() rounded to `bits` bits, or of any matrix in 16 bits.
BitPlanes bit_planes(std::span<const std::int16_t> weights, std::size_t rows, std::size_t bits);

// The greatest step of which all weights of a row are multiples, at least 1: that of round_rows() or a multiple of it, and the
// same whenever the row is stored again.
std::int16_t step_of(std::span<const std::int16_t> row);

// Stores a matrix that round_rows() rounded to `bits` bits, as tensors `name`, U64 (rows, bits, words), and `name`_step, I16
// (rows).
void put_rounded(TensorFile& file, const std::string& name, std::span<const std::int16_t> weights, std::size_t rows,
                 std::size_t bits);

// The bits of a stored matrix: 16 unless it is one that put_rounded() stored. Throws a data error if that has no possible
// number.
std::size_t stored_bits(const TensorFile& file, const std::string& name);

// A matrix that put_rounded() stored. Throws a data error if it has another shape, a step below 1, or a weight that
// put_rounded() could not have stored.
std::vector<std::int16_t> get_rounded(const TensorFile& file, const std::string& name, std::size_t rows, std::size_t columns,
                                      std::size_t bits);

}  // namespace bitloom::layerwise
