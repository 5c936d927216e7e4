// Exponentials and what is made of them, for vectors of floats. Polynomials are near-minimax fits (of the relative error, by
// reweighted least squares in double precision) over the range that is left after reduction; the error of each is below a
// quarter of a unit in the last place, so that rounding of the operations is what remains: about 2 units.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/local_arch.h"

namespace bitloom::nn {
namespace {

// c0 + c1 x + c2 x^2 + ..., by Horner's rule.
template <typename Isa, typename... Rest>
BITLOOM_INLINE typename Isa::Float polynomial(typename Isa::Float x, float c0, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return Isa::splat(c0);
  } else {
    return Isa::fma(polynomial<Isa>(x, rest...), x, Isa::splat(c0));
  }
}

// The same for an odd degree as two chains, of even and of odd powers, which run at once: for loops that have little else to do
// while they wait.
template <typename Isa, typename... Pairs>
BITLOOM_INLINE void add_chains(typename Isa::Float square, typename Isa::Float& even, typename Isa::Float& odd, float c_even,
                               float c_odd, Pairs... rest) {
  if constexpr (sizeof...(rest) == 0) {
    even = Isa::splat(c_even);
    odd = Isa::splat(c_odd);
  } else {
    add_chains<Isa>(square, even, odd, rest...);
    even = Isa::fma(even, square, Isa::splat(c_even));
    odd = Isa::fma(odd, square, Isa::splat(c_odd));
  }
}
template <typename Isa, typename... Coefficients>
BITLOOM_INLINE typename Isa::Float polynomial_in_chains(typename Isa::Float x, Coefficients... c) {
  typename Isa::Float even, odd;
  add_chains<Isa>(x * x, even, odd, c...);
  return Isa::fma(odd, x, even);
}

// 2^n p for the n of round_to_power(x): 0 where x is too small for a normal number; x <= 0.
template <typename Isa>
BITLOOM_INLINE typename Isa::Float finish_power(typename Isa::Float p, typename Isa::Float power, typename Isa::Float x) {
  const typename Isa::Float scaled = Isa::scale_by(p, power);
  if constexpr (Isa::exact_scaling) {
    return scaled;
  } else {
    return Isa::select(Isa::less(x, Isa::splat(-126)), Isa::splat(0), scaled);
  }
}

// 2^x for x <= 0: 0 from -infinity on, below the smallest normal number perhaps 0; NaN stays NaN.
template <typename Isa>
BITLOOM_INLINE typename Isa::Float exp2(typename Isa::Float x) {
  if constexpr (Isa::exact_scaling) x = Isa::max(Isa::splat(-160), x);
  typename Isa::Float power;
  const typename Isa::Float f = x - Isa::round_to_power(x, power);
  const typename Isa::Float p =
      polynomial<Isa>(f, 1.0F, 0.6931472029F, 0.2402264791F, 0.0555033247F, 0.009618437366F, 0.001339887487F, 0.0001535336063F);
  return finish_power<Isa>(p, power, x);
}

// exp(x) = 2^n (1 + expm1_rest), for x <= 0 clamped to where float has results. Cody and Waite's reduction: n ln 2 is
// subtracted in two parts, of which the first has few bits, so that its product is exact.
template <typename Isa>
BITLOOM_INLINE typename Isa::Float reduce_exp(typename Isa::Float x, typename Isa::Float& power, typename Isa::Float& binary) {
  using Float = typename Isa::Float;
  binary = x * Isa::splat(1.442695041F);
  const Float n = Isa::round_to_power(binary, power);
  Float f = Isa::fnma(n, Isa::splat(0.693359375F), x);
  f = Isa::fnma(n, Isa::splat(-2.12194440e-4F), f);
  return f;
}
template <typename Isa>
BITLOOM_INLINE typename Isa::Float expm1_rest(typename Isa::Float f) {
  const typename Isa::Float p =
      polynomial<Isa>(f, 0.4999999345F, 0.1666652068F, 0.04166838754F, 0.00836871134F, 0.00138146083F);
  return Isa::fma(p, f * f, f);
}

// exp(x + low) for x <= 0 and a small correction `low` to x.
template <typename Isa>
BITLOOM_INLINE typename Isa::Float exp(typename Isa::Float x, typename Isa::Float low) {
  typename Isa::Float power, binary;
  x = Isa::max(Isa::splat(-110), x);
  const typename Isa::Float f = reduce_exp<Isa>(x, power, binary) + low;
  return finish_power<Isa>(expm1_rest<Isa>(f) + Isa::splat(1), power, binary);
}
template <typename Isa>
BITLOOM_INLINE typename Isa::Float exp(typename Isa::Float x) {
  typename Isa::Float power, binary;
  x = Isa::max(Isa::splat(-110), x);
  const typename Isa::Float f = reduce_exp<Isa>(x, power, binary);
  return finish_power<Isa>(expm1_rest<Isa>(f) + Isa::splat(1), power, binary);
}

// exp(x) - 1 for x <= 0, with its digits near 0.
template <typename Isa>
BITLOOM_INLINE typename Isa::Float expm1(typename Isa::Float x) {
  typename Isa::Float power, binary;
  x = Isa::max(Isa::splat(-80), x);
  const typename Isa::Float f = reduce_exp<Isa>(x, power, binary);
  const typename Isa::Float scale = Isa::scale_by(Isa::splat(1), power);
  return Isa::fma(scale, expm1_rest<Isa>(f), scale - Isa::splat(1));
}

// atanh(w) / w of w^2 <= 1/9: log((1 + w) / (1 - w)) = 2 atanh(w).
template <typename Isa>
BITLOOM_INLINE typename Isa::Float atanh_ratio(typename Isa::Float square) {
  return polynomial<Isa>(square, 1.0F, 0.3333333775F, 0.1999944417F, 0.1430829844F, 0.1071536973F, 0.1214478103F);
}

// log(1 + z), 0 <= z <= 1.
template <typename Isa>
BITLOOM_INLINE typename Isa::Float log1p(typename Isa::Float z) {
  const typename Isa::Float w = z / (z + Isa::splat(2));
  return (w + w) * atanh_ratio<Isa>(w * w);
}

// log(x) of a positive normal number; NaN stays NaN.
template <typename Isa>
BITLOOM_INLINE typename Isa::Float log(typename Isa::Float x) {
  using Float = typename Isa::Float;
  using Word = typename Isa::Word;
  constexpr std::uint32_t root_half = 0x3F3504F3;  // sqrt(1/2): mantissas are taken from [sqrt(1/2), sqrt(2))
  const Word moved = Isa::as_word(x) + Isa::word_splat(0x3F800000 - root_half);
  const Float exponent = Isa::to_float(Isa::template shift_right<23>(moved)) - Isa::splat(127);
  const Float mantissa = Isa::as_float((moved & Isa::word_splat(0x7FFFFF)) + Isa::word_splat(root_half));
  const Float w = (mantissa - Isa::splat(1)) / (mantissa + Isa::splat(1));
  const Float result = Isa::fma(exponent, Isa::splat(0.693147181F), (w + w) * atanh_ratio<Isa>(w * w));
  return result + (x - x);
}

// Tail of the normal distribution, for 0 <= t <= tail_end: Phi(-t) = ratio e, phi(t) = e / sqrt(2 pi), e =
// exp(-t^2 / 2). The ratio is a polynomial in (t - 3) / (t + 3), fitted over [0, 20] (the substitution of Shepherd and
// Laframboise 1981). Largest t, at which e has become 0: its power of two is 2^-127, which scale_by makes 0; or, by exact
// scaling, one that float does not have.
template <typename Isa>
inline constexpr float tail_end = Isa::exact_scaling ? 20.0F : 13.27F;
template <typename Isa>
struct NormalTail {
  typename Isa::Float e, ratio;
};
template <typename Isa>
BITLOOM_INLINE NormalTail<Isa> normal_tail(typename Isa::Float t) {
  using Float = typename Isa::Float;
  // exp of t^2 / 2 with the rounding error of the square: in the tail it would be multiplied by t^2 / 2.
  const Float square = t * t;
  Float low;
  if constexpr (Isa::has_fma) {
    low = Isa::fma(t, t, Isa::splat(0) - square);
  } else {
    const Float high = Isa::as_float(Isa::as_word(t) & Isa::word_splat(0xFFFFF000));
    const Float rest = t - high;
    low = ((high * high - square) + (high + high) * rest) + rest * rest;
  }
  NormalTail<Isa> tail;
  // exp() without its care for arguments that are too small.
  Float power, binary;
  const Float f = reduce_exp<Isa>(square * Isa::splat(-0.5F), power, binary) + low * Isa::splat(-0.5F);
  tail.e = Isa::scale_by(expm1_rest<Isa>(f) + Isa::splat(1), power);
  const Float s = (t - Isa::splat(3)) / (t + Isa::splat(3));
  tail.ratio = polynomial<Isa>(s, 0.12151394613056753F, -0.20640264500231487F, 0.12322516534843184F, -0.04621281219179098F,
                               0.006130556509584398F, 0.002901961093032812F, -0.0009787363239603768F, -0.00033345974078089445F,
                               0.00011046488599115306F, 4.833686621261591e-05F);
  return tail;
}

}  // namespace
}  // namespace bitloom::nn
