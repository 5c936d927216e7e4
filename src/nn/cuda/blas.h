// Products of matrices. Two implementations: native/cublaslt.cpp, and plain loops in tests/cuda.
#pragma once

#include <cstddef>
#include <memory>

#include "nn/cuda/runtime.h"

namespace bitloom::nn::cuda {

// Applied to a product before it is written, where the library can do it on the way. Not relu: libraries make 0 of a NaN,
// which would hide an overflow.
enum class Epilogue : unsigned char { none, bias, gelu_tanh, bias_gelu_tanh };

// out (S,M,N) = epilogue(scale a (S,M,K) b (S,K,N) + bias (N)) or, with accumulate, out + scale a b. Row by row, without gaps;
// with transpose_a, a is (S,K,M), with transpose_b, b is (S,N,K).
struct Product {
  std::size_t s = 1, m = 0, k = 0, n = 0;  // none is 0
  bool transpose_a = false, transpose_b = false, accumulate = false;
  float scale = 1;
  Number in = Number::f32, out = Number::f32;
  Epilogue epilogue = Epilogue::none;
  const void *a = nullptr, *b = nullptr;
  void* result = nullptr;
  const float* bias = nullptr;  // where out has 16 bits, the library may round it to them
};

class Blas {
 public:
  explicit Blas(Runtime& runtime);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Whether the library computes this product as it is; otherwise the caller leaves the epilogue out and does it itself, or
  // gives it matrices of other lengths.
  bool supports(const Product& product) const;
  void multiply(const Product& product);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bitloom::nn::cuda
