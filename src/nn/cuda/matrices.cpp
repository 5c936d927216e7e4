// Products of matrices.
#include <array>

#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {
namespace {

// The part of these options that the library may apply to a product.
struct Fusable {
  bool has_bias;
  Function function;
  Epilogue epilogue;
};
constexpr std::array epilogue_table = {
    Fusable{true, Function::none, Epilogue::bias},
    Fusable{false, Function::gelu_tanh, Epilogue::gelu_tanh},
    Fusable{true, Function::gelu_tanh, Epilogue::bias_gelu_tanh},
};

Product describe(const Tensor& a, const Tensor& b, const Tensor& out, const MatmulOptions& options) {
  const std::size_t axes = a.shape().axes();
  return {.s = axes == 3 ? a.shape()[0] : 1,
          .m = a.shape()[options.transpose_a ? axes - 1 : axes - 2],
          .k = a.shape()[options.transpose_a ? axes - 2 : axes - 1],
          .n = b.shape()[options.transpose_b ? axes - 2 : axes - 1],
          .transpose_a = options.transpose_a,
          .transpose_b = options.transpose_b,
          .accumulate = options.accumulate,
          .scale = static_cast<float>(options.scale),
          .in = number_of(a),
          .out = number_of(out),
          .a = a.data(),
          .b = b.data(),
          .result = out.data()};
}

// The smallest length that libraries have products for, whatever the type: 16 bytes of 16 bits, 32 of f32.
std::size_t padded(std::size_t length) { return (length + 7) / 8 * 8; }

std::size_t bytes_of(Number number) { return number == Number::f32 ? 4 : 2; }

}  // namespace

void CudaBackend::multiply(const Product& product) {
  if (blas_.supports(product)) return blas_.multiply(product);
  notes_.add(
      "matmul: the library has no algorithm for {} products {} x {} x {}; on copies with lengths that are multiples of 8",
      product.s, product.m, product.k, product.n);
  Product p = product;
  p.m = padded(product.m);
  p.k = padded(product.k);
  p.n = padded(product.n);
  const auto resized = [&](bool transposed, std::size_t rows, std::size_t columns, std::size_t y_rows, std::size_t y_columns) {
    return transposed ? Resize{p.s, columns, rows, y_columns, y_rows} : Resize{p.s, rows, columns, y_rows, y_columns};
  };
  const Resize a = resized(p.transpose_a, product.m, product.k, p.m, p.k);
  const Resize b = resized(p.transpose_b, product.k, product.n, p.k, p.n);
  const std::size_t a_bytes = Scratch::rounded(p.s * p.m * p.k * bytes_of(p.in));
  const std::size_t b_bytes = Scratch::rounded(p.s * p.k * p.n * bytes_of(p.in));
  auto* memory = static_cast<std::byte*>(workspace(a_bytes + b_bytes + p.s * p.m * p.n * bytes_of(p.out)));
  resize(stream(), a, p.in, product.a, memory);
  resize(stream(), b, p.in, product.b, memory + a_bytes);
  p.a = memory;
  p.b = memory + a_bytes;
  p.result = memory + a_bytes + b_bytes;
  if (p.accumulate) resize(stream(), {p.s, product.m, product.n, p.m, p.n}, p.out, product.result, p.result);
  blas_.multiply(p);
  resize(stream(), {p.s, p.m, p.n, product.m, product.n}, p.out, p.result, product.result);
}

void CudaBackend::matmul(const Tensor& a, const Tensor& b, Tensor& out, const MatmulOptions& options) {
  if (out.size() == 0) return;
  Product product = describe(a, b, out, options);
  const Function function = options.activation == nullptr ? Function::none : function_of(*options.activation);
  const auto* bias = options.bias ? static_cast<const float*>(options.bias.data()) : nullptr;
  if (product.k == 0) {
    if (!options.accumulate) fill(out, 0);
  } else {
    Product fused = product;
    fused.bias = bias;
    for (const Fusable& each : epilogue_table) {
      if (each.has_bias == (bias != nullptr) && each.function == function) fused.epilogue = each.epilogue;
    }
    if (fused.epilogue != Epilogue::none && blas_.supports(fused)) return blas_.multiply(fused);
    multiply(product);
  }
  if (bias == nullptr && function == Function::none) return;
  bias_activate(stream(), product.out, out.data(), bias, function, product.out, out.data(), out.size() / product.n, product.n);
}

}  // namespace bitloom::nn::cuda
