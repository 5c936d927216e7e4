// What is done to a product of matrices that the library did not do.
#include "nn/cuda/map.cuh"

namespace bitloom::nn::cuda {
namespace {

struct Same {
  __device__ float operator()(float x) const { return x; }
};
struct Relu {
  __device__ float operator()(float x) const { return x <= 0 ? 0 : x; }
};
struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};
struct Sigmoid {
  __device__ float operator()(float x) const { return 1 / (1 + expf(-x)); }
};
struct Silu {
  __device__ float operator()(float x) const { return x / (1 + expf(-x)); }
};
struct Gelu {
  __device__ float operator()(float x) const { return 0.5F * x * erfcf(-0.70710678F * x); }
};
struct GeluTanh {
  __device__ float operator()(float x) const { return x / (1 + expf(-1.59576912F * (x + 0.044715F * x * x * x))); }
};

template <typename X, typename Y, typename F>
__global__ void bias_activate_elements(std::size_t n, std::size_t columns, F f, const X* x, const float* bias, Y* y) {
  for (std::size_t i = first_piece(); i < n; i += piece_stride()) {
    y[i] = from_float<Y>(f(to_float(x[i]) + (bias == nullptr ? 0 : bias[i % columns])));
  }
}

template <typename Work>
void with_function(Function function, Work&& work) {
  switch (function) {
    case Function::none: return work(Same{});
    case Function::relu: return work(Relu{});
    case Function::tanh: return work(Tanh{});
    case Function::sigmoid: return work(Sigmoid{});
    case Function::silu: return work(Silu{});
    case Function::gelu: return work(Gelu{});
    case Function::gelu_tanh: return work(GeluTanh{});
    default: break;
  }
}

}  // namespace

void bias_activate(Stream stream, Number in, const void* x, const float* bias, Function function, Number out, void* y,
                   std::size_t rows, std::size_t columns) {
  const std::size_t n = rows * columns;
  if (n == 0) return;
  with_number(in, [&](auto x_type) {
    with_number(out, [&](auto y_type) {
      with_function(function, [&](auto f) {
        using X = typename decltype(x_type)::type;
        using Y = typename decltype(y_type)::type;
        launch(stream, "bias_activate", {blocks_for(n, 256), 256}, bias_activate_elements<X, Y, decltype(f)>, n, columns, f,
               static_cast<const X*>(x), bias, static_cast<Y*>(y));
      });
    });
  });
}

}  // namespace bitloom::nn::cuda
