// Loops over elements of f32 or bf16 in plain C++, for ops that memory bounds.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "core/half.h"
#include "nn/tensor.h"

namespace bitloom::nn {

using bitloom::to_float;
constexpr float to_float(float x) { return x; }

template <typename T>
constexpr T from_float(float x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(x);
  } else {
    return x;
  }
}

// work(T{}) for the type of a tensor's elements.
template <typename Work>
void with_type(DType dtype, Work&& work) {
  if (dtype == DType::bf16) return std::forward<Work>(work)(bf16{});
  std::forward<Work>(work)(float{});
}

template <typename T>
T* elements(const Tensor& tensor) {
  return tensor.as<T>().data();
}

// Every row of out (R,C) becomes bias (C), or zeros if that is none: what is left of products and convolutions over nothing.
inline void fill_rows(Tensor& out, const Tensor& bias) {
  const std::span<const float> bias_c = bias ? bias.as<float>() : std::span<float>();
  with_type(out.dtype(), [&]<typename T>(T) {
    T* values = elements<T>(out);
    for (std::size_t i = 0; i < out.size(); ++i) values[i] = from_float<T>(bias ? bias_c[i % bias_c.size()] : 0.F);
  });
}

}  // namespace bitloom::nn
