// The functions of nn/activation.h and their derivatives in single precision: accurate in both tails, limits instead of NaN at
// infinities, NaN for NaN where nn/activation.h has that. C++17.
#pragma once

#include <cuda_platform.h>
#include "nn/cuda/kernels.h"

namespace bitloom::nn::cuda {

constexpr float sqrt_half = 0.70710678118654752F;
constexpr float inverse_sqrt_2pi = 0.39894228040143268F;

// x * factor where a factor of 0 wins over an infinite x.
__device__ inline float damped(float x, float factor) { return factor == 0 ? 0 : x * factor; }

__device__ inline float logistic(float x) { return __fdividef(1, 1 + __expf(-x)); }
__device__ inline float logistic_derivative(float x) {
  const float e = __expf(-fabsf(x));
  return __fdividef(e, (1 + e) * (1 + e));
}

struct Identity {
  __device__ static float value(float x) { return x; }
};
struct Gelu {
  __device__ static float normal_cdf(float x) { return 0.5F * erfcf(-sqrt_half * x); }
  __device__ static float value(float x) { return damped(x, normal_cdf(x)); }
  __device__ static float derivative(float x) {
    return normal_cdf(x) + damped(x, inverse_sqrt_2pi * __expf(-0.5F * x * x));
  }
};
// 0.5 x (1 + tanh u) = x logistic(2 u).
struct GeluTanh {
  static constexpr float cubic = 0.044715F;
  __device__ static float argument(float x) { return 4 * inverse_sqrt_2pi * (x + cubic * x * x * x); }
  __device__ static float value(float x) { return damped(x, logistic(argument(x))); }
  __device__ static float derivative(float x) {
    const float u = argument(x);
    const float slope = 4 * inverse_sqrt_2pi * (1 + 3 * cubic * x * x);
    return logistic(u) + damped(x * slope, logistic_derivative(u));
  }
};
struct Silu {
  __device__ static float value(float x) { return damped(x, logistic(x)); }
  __device__ static float derivative(float x) { return logistic(x) + damped(x, logistic_derivative(x)); }
};
struct Sigmoid {
  __device__ static float value(float x) { return logistic(x); }
  __device__ static float derivative(float x) { return logistic_derivative(x); }
};
struct Tanh {
  __device__ static float value(float x) { return tanhf(x); }
  __device__ static float derivative(float x) { return 4 * logistic_derivative(2 * x); }
};
struct Selu {
  static constexpr float alpha = 1.6732632423543772F;
  static constexpr float lambda = 1.0507009873554805F;
  __device__ static float value(float x) { return lambda * (x > 0 ? x : alpha * expm1f(x)); }
  __device__ static float derivative(float x) { return lambda * (x > 0 ? 1 : alpha * __expf(x)); }
};
struct Softplus {
  __device__ static float value(float x) { return fmaxf(x, 0) + log1pf(__expf(-fabsf(x))); }
  __device__ static float derivative(float x) { return logistic(x); }
};
struct Relu {
  __device__ static float value(float x) { return x <= 0 ? 0 : x; }
  __device__ static float derivative(float x) { return x > 0 ? 1 : 0; }
};

// work(F{}) for the F that `function`, not none, names.
template <typename Work>
void with_function(Function function, Work&& work) {
  switch (function) {
    case Function::none: return;
    case Function::gelu: return work(Gelu{});
    case Function::gelu_tanh: return work(GeluTanh{});
    case Function::silu: return work(Silu{});
    case Function::sigmoid: return work(Sigmoid{});
    case Function::tanh: return work(Tanh{});
    case Function::selu: return work(Selu{});
    case Function::softplus: return work(Softplus{});
    case Function::relu: return work(Relu{});
  }
}

}  // namespace bitloom::nn::cuda
