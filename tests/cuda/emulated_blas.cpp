// Products of matrices for src/nn/cuda on the CPU: plain loops, for what cuBLASLt does on a GPU.
#include "nn/cuda/blas.h"

#include <cmath>

#include "core/error.h"
#include "core/half.h"

namespace bitloom::nn::cuda {
namespace {

double load(Number number, const void* x, std::size_t i) {
  switch (number) {
    case Number::bf16: return to_float(static_cast<const bf16*>(x)[i]);
    case Number::f16: return to_float(static_cast<const f16*>(x)[i]);
    default: return static_cast<const float*>(x)[i];
  }
}

void store(Number number, void* x, std::size_t i, double value) {
  switch (number) {
    case Number::bf16: static_cast<bf16*>(x)[i] = to_bf16(static_cast<float>(value)); return;
    case Number::f16: static_cast<f16*>(x)[i] = to_f16(static_cast<float>(value)); return;
    default: static_cast<float*>(x)[i] = static_cast<float>(value);
  }
}

double applied(Epilogue epilogue, double x) {
  switch (epilogue) {
    case Epilogue::gelu_tanh:
    case Epilogue::bias_gelu_tanh: return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    default: return x;
  }
}

}  // namespace

struct Blas::State {};

Blas::Blas(Runtime& /*runtime*/) {}
Blas::~Blas() = default;

// No epilogue for an odd N, and no product at all for some lengths, so that the caller's own ways are tested too.
bool Blas::supports(const Product& product) const {
  const bool has_algorithm = product.m % 4 != 3 && product.k % 8 != 5 && product.n % 16 != 7;
  return has_algorithm && (product.epilogue == Epilogue::none || product.n % 2 == 0);
}

void Blas::multiply(const Product& p) {
  if (!supports(p)) fail(ErrorKind::internal, "a product that the library does not have");
  for (std::size_t s = 0; s < p.s; ++s) {
    for (std::size_t i = 0; i < p.m; ++i) {
      for (std::size_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (std::size_t l = 0; l < p.k; ++l) {
          const std::size_t a = s * p.m * p.k + (p.transpose_a ? l * p.m + i : i * p.k + l);
          const std::size_t b = s * p.k * p.n + (p.transpose_b ? j * p.k + l : l * p.n + j);
          sum += load(p.in, p.a, a) * load(p.in, p.b, b);
        }
        const std::size_t place = (s * p.m + i) * p.n + j;
        double result = p.scale * sum;
        if (p.accumulate) result += load(p.out, p.result, place);
        if (p.bias != nullptr) result += p.bias[j];
        store(p.out, p.result, place, applied(p.epilogue, result));
      }
    }
  }
}

}  // namespace bitloom::nn::cuda
