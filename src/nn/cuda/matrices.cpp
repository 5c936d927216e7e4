// Products of matrices.
#include <array>

#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {
namespace {

// What the library may do with a product of these options.
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

}  // namespace

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
    blas_.multiply(product);
  }
  if (bias == nullptr && function == Function::none) return;
  bias_activate(stream(), product.out, out.data(), bias, function, product.out, out.data(), out.size() / product.n, product.n);
}

}  // namespace bitloom::nn::cuda
