// The functions of activation.h on vectors. Each takes |x| into an exponential of a number <= 0, which can neither overflow nor
// lose the digits of 1 - (something near 1); |x| is clamped where the exponential has become 0, so that infinities meet no 0.
// Derivatives at kinks are those of the left side.
#pragma once

#include "nn/cpu/generic/elements.h"
#include "nn/cpu/generic/math.h"

namespace bitloom::nn {
namespace {

// x >= 0 ? a : b; b for NaN.
template <typename Isa>
BITLOOM_INLINE typename Isa::Float by_sign(typename Isa::Float x, typename Isa::Float a, typename Isa::Float b) {
  return Isa::select(Isa::less(x, Isa::splat(0)), b, a);
}

// sigmoid(-t) = e r and sigmoid(t) = r for t >= 0.
template <typename Isa>
struct Logistic {
  typename Isa::Float e, r;
  BITLOOM_INLINE explicit Logistic(typename Isa::Float t)
      : e(exp<Isa>(Isa::splat(0) - t)), r(Isa::splat(1) / (Isa::splat(1) + e)) {}
};

template <typename Isa>
struct Gelu {
  using Float = typename Isa::Float;
  static BITLOOM_INLINE Float value(Float x) {
    const Float t = Isa::min(Isa::splat(tail_end<Isa>), Isa::abs(x));
    const NormalTail<Isa> tail = normal_tail<Isa>(t);
    return Isa::max(Isa::splat(0), x) - t * (tail.ratio * tail.e);
  }
  static BITLOOM_INLINE Float derivative(Float x) {
    const Float t = Isa::min(Isa::splat(tail_end<Isa>), Isa::abs(x));
    const NormalTail<Isa> tail = normal_tail<Isa>(t);
    const Float left = tail.e * Isa::fnma(t, Isa::splat(0.3989422804F), tail.ratio);
    return by_sign<Isa>(x, Isa::splat(1) - left, left);
  }
};

// For results that are rounded to bf16, which loses ten times as much as this: the relative error of Phi(-t) is 1.6e-4. Its
// binary logarithm is a polynomial over [0, 14.5], where t Phi(-t) ends in float, and needs no division.
template <typename Isa>
struct GeluForBf16 {
  using Float = typename Isa::Float;
  static constexpr float end = 14.5F;
  static BITLOOM_INLINE Float value(Float x) {
    const Float t = Isa::min(Isa::splat(end), Isa::abs(x));
    const Float u = Isa::fma(t, Isa::splat(2 / end), Isa::splat(-1));
    const Float logarithm =
        polynomial_in_chains<Isa>(u, -42.125745F, -77.22418939F, -37.26914331F, -0.3893439193F, 0.2847045053F, -0.1900674252F,
                                  0.04377119123F, -0.04483834891F, 0.1394344701F, -0.07847456679F);
    Float power;
    const Float f = logarithm - Isa::round_to_power(logarithm, power);
    const Float p = polynomial<Isa>(f, 1.0F, 0.6932829672F, 0.2422110084F, 0.0550086068F);
    return Isa::fnma(t, finish_power<Isa>(p, power, logarithm), Isa::max(Isa::splat(0), x));
  }
};

// x sigmoid(u), u = 4 / sqrt(2 pi) (x + 0.044715 x^3).
template <typename Isa>
struct GeluTanh {
  using Float = typename Isa::Float;
  static constexpr float slope = 1.595769122F, cubic = 0.044715F, end = 11;
  static BITLOOM_INLINE Float value(Float x) {
    const Float t = Isa::min(Isa::splat(end), Isa::abs(x));
    const Logistic<Isa> s(t * Isa::fma(t * t, Isa::splat(slope * cubic), Isa::splat(slope)));
    return by_sign<Isa>(x, x * s.r, Isa::splat(0) - t * (s.e * s.r));
  }
  static BITLOOM_INLINE Float derivative(Float x) {
    const Float t = Isa::min(Isa::splat(end), Isa::abs(x));
    const Float square = t * t;
    const Logistic<Isa> s(t * Isa::fma(square, Isa::splat(slope * cubic), Isa::splat(slope)));
    const Float rise = t * Isa::fma(square, Isa::splat(3 * slope * cubic), Isa::splat(slope)) * (s.e * s.r) * s.r;
    return by_sign<Isa>(x, s.r + rise, s.e * s.r - rise);
  }
};

template <typename Isa>
struct Silu {
  using Float = typename Isa::Float;
  static BITLOOM_INLINE Float value(Float x) {
    const Float t = Isa::min(Isa::splat(110), Isa::abs(x));
    const Logistic<Isa> s(t);
    return by_sign<Isa>(x, x * s.r, Isa::splat(0) - t * (s.e * s.r));
  }
  static BITLOOM_INLINE Float derivative(Float x) {
    const Float t = Isa::min(Isa::splat(110), Isa::abs(x));
    const Logistic<Isa> s(t);
    const Float rise = t * (s.e * s.r) * s.r;
    return by_sign<Isa>(x, s.r + rise, s.e * s.r - rise);
  }
};

template <typename Isa>
struct Sigmoid {
  using Float = typename Isa::Float;
  static BITLOOM_INLINE Float value(Float x) {
    const Logistic<Isa> s(Isa::abs(x));
    return by_sign<Isa>(x, s.r, s.e * s.r);
  }
  static BITLOOM_INLINE Float derivative(Float x) {
    const Logistic<Isa> s(Isa::abs(x));
    return (s.e * s.r) * s.r;
  }
};

template <typename Isa>
struct Tanh {
  using Float = typename Isa::Float;
  static BITLOOM_INLINE Float value(Float x) {
    const Float t = Isa::abs(x);
    const Logistic<Isa> s(t + t);
    const Float far = (Isa::splat(1) - s.e) * s.r;
    const Float square = t * t;
    const Float near =
        t * polynomial<Isa>(square, 1.0F, -0.3333328194F, 0.1333144216F, -0.05373971216F, 0.02063907874F, -0.005704978374F);
    const Float size = Isa::select(Isa::less(t, Isa::splat(0.625F)), near, far);
    return by_sign<Isa>(x, size, Isa::splat(0) - size);
  }
  static BITLOOM_INLINE Float derivative(Float x) {
    const Float t = Isa::abs(x);
    const Logistic<Isa> s(t + t);
    return Isa::splat(4) * ((s.e * s.r) * s.r);
  }
};

template <typename Isa>
struct Selu {
  using Float = typename Isa::Float;
  static constexpr float lambda = 1.0507009873554805F, alpha = 1.6732632423543773F, both = 1.7580993408473766F;
  static BITLOOM_INLINE Float value(Float x) {
    const Float left = Isa::splat(both) * expm1<Isa>(Isa::min(Isa::splat(0), x));
    return Isa::select(Isa::less(Isa::splat(0), x), Isa::splat(lambda) * x, left);
  }
  static BITLOOM_INLINE Float derivative(Float x) {
    const Float left = Isa::splat(both) * exp<Isa>(Isa::min(Isa::splat(0), x));
    return Isa::select(Isa::less(Isa::splat(0), x), Isa::splat(lambda), left);
  }
};

template <typename Isa>
struct Softplus {
  using Float = typename Isa::Float;
  static BITLOOM_INLINE Float value(Float x) {
    return Isa::max(Isa::splat(0), x) + log1p<Isa>(exp<Isa>(Isa::splat(0) - Isa::abs(x)));
  }
  static BITLOOM_INLINE Float derivative(Float x) { return Sigmoid<Isa>::value(x); }
};

template <typename Isa>
struct Relu {
  using Float = typename Isa::Float;
  static BITLOOM_INLINE Float value(Float x) { return Isa::max(Isa::splat(0), x); }
  static BITLOOM_INLINE Float derivative(Float x) {
    return Isa::select(Isa::less(Isa::splat(0), x), Isa::splat(1), Isa::splat(0));
  }
};

// Which GELU an op of V computes.
template <typename Isa, typename V>
struct GeluOf {
  using Type = Gelu<Isa>;
};
template <typename Isa>
struct GeluOf<Isa, bf16> {
  using Type = GeluForBf16<Isa>;
};

template <typename Isa, typename V, typename Function>
void activate(const V* x, V* y, std::size_t n) {
  for_vectors<Isa>(
      n, [=](std::size_t i, auto part)
             __attribute__((always_inline)) { part.store(y + i, Function::value(part.load(x + i))); });
}

template <typename Isa, typename V, typename Function>
void activate_backward(const V* x, const V* dy, V* dx, std::size_t n) {
  for_vectors<Isa>(
      n, [=](std::size_t i, auto part) __attribute__((always_inline)) {
        part.store(dx + i, Function::derivative(part.load(x + i)) * part.load(dy + i));
      });
}

}  // namespace
}  // namespace bitloom::nn
