// Makes an xsimd architecture tag with internal linkage: `BITLOOM_NN_LOCAL_ARCH(avx2)` at the top level of a file of isa/
// declares bitloom::nn::LocalArch. Templates instantiated with it, xsimd's own included, are then local to that file, even
// where the compiler does not inline them: the linker can never pick code with this file's ISA flags for another file.
//
// The bodies of generic/ are templated on a struct `Isa` of the including file, about vectors of `width` floats:
//   Float, Word, Mask   xsimd batches of float and std::uint32_t, and of truth values
//   splat, load, load_part(from, n), store, store_part(to, x, n)   of float and bf16 in memory; n < width, the rest is 0
//   fma(a, b, c) = a b + c, with one rounding where has_fma; fnma(a, b, c) = c - a b
//   max, min            the second argument where one is NaN; abs, sqrt
//   beats(a, b)         a > b, or only a is NaN
//   less(a, b), select(mask, a, b), mask_of(bits): lane i is bit i
//   sum, largest        of the lanes
//   round_to_power(x, power), scale_by(p, power): x to the nearest integer n, and p 2^n (exact_scaling: for every n, otherwise
//                       for -126 <= n <= 0 only, and 0 for n = -127)
//   as_word, as_float, word_splat, shift_left<n>, shift_right<n>, to_float (of small integers), load_words, load_bytes,
//   store_bytes, product(a, m, high): the two halves of a 64-bit product
//   lookup(table, index): table[index] of 16 entries; fast_lookup: by instructions that permute lanes
//   has_lane_bits: 16 lanes, whose masks are bits of a register: lanes_of(mask), and deposit(bits, places): bit i to the i-th
//   place
//   packs_numbers: 8 lanes; ones_where_less(a, b): -1 or 0; lookup_eight(table, index) by the low 3 bits of index;
//   pack_numbers<n>(to, number): the 32 of four vectors, each below 2^n, n <= 4, side by side; writes 16 bytes
//   tile_rows, tile_vectors: the part of a matrix product that stays in registers
//   Product<V>: how products of matrices of V are formed (matrix_product.h)
#pragma once

#include <xsimd/xsimd.hpp>

#define BITLOOM_INLINE inline __attribute__((always_inline))

#define BITLOOM_NN_LOCAL_ARCH(arch)                                \
  namespace bitloom::nn {                                          \
  namespace {                                                      \
  struct LocalArch : xsimd::arch {};                               \
  }                                                                \
  }                                                                \
  namespace xsimd::types {                                         \
  XSIMD_DECLARE_SIMD_REGISTER_ALIAS(bitloom::nn::LocalArch, arch); \
  }
