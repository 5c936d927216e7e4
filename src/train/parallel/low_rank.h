// Arithmetic of low-rank factors, with the same bits on every machine: processes that each compute a matrix of their own from
// the same factors must not drift apart. So the order of every sum is fixed here, whatever vector instructions, caches and
// threads a machine has, which neither oneDNN nor Eigen promises.
#pragma once

#include <cstddef>
#include <span>

namespace bitloom::train {

// p (n,r), n >= r, becomes the factor with orthonormal columns of the thin QR decomposition of p + epsilon s I, by Householder
// reflections in double precision; s is the largest magnitude in p, or 1 where p is 0, and I has ones on the diagonal. Columns
// have the signs that Gram-Schmidt gives them: those for which R's diagonal is not negative. p is finite.
// Ramesh et al. 2021, appendix E.2, step 5, with epsilon 1e-6 and values that are scaled to be near 1: here s does that.
void orthogonalise(std::span<float> p, std::size_t n, std::size_t r, double epsilon);

// out (n,m) = left (n,r) right^T (r,m), where right is (m,r).
void multiply_factors(std::span<const float> left, std::span<const float> right, std::size_t r, std::span<float> out);

// In double precision.
double sum_of_squares(std::span<const float> values);

bool all_finite(std::span<const float> values);

}  // namespace bitloom::train
