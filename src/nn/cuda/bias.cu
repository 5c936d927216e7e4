// The bias and activation of a product of matrices, where the library did not apply them.
#include "nn/cuda/activation_functions.cuh"
#include "nn/cuda/columns.cuh"

namespace bitloom::nn::cuda {
namespace {

template <typename F, typename X, typename Y>
struct BiasActivate {
  Rows<const X> x;
  Rows<const float> bias;  // or none
  Rows<Y> y;

  struct Columns {
    float bias[pack_size];
  };
  __device__ Columns start(std::size_t first) const {
    Columns columns = {};
    if (bias.data != nullptr) bias.load(0, first, columns.bias);
    return columns;
  }
  __device__ void apply(const Columns& columns, std::size_t row, std::size_t first) const {
    float v[pack_size];
    x.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] = F::value(v[j] + columns.bias[j]);
    y.store(row, first, v);
  }
};

}  // namespace

void bias_activate(Stream stream, Number in, const void* x, const float* bias, Function function, Number out, void* y,
                   std::size_t rows, std::size_t columns) {
  if (rows == 0 || columns == 0) return;
  const auto run = [&](auto f, auto x_type, auto y_type) {
    using F = decltype(f);
    using X = typename decltype(x_type)::type;
    using Y = typename decltype(y_type)::type;
    const BiasActivate<F, X, Y> all{rows_of(static_cast<const X*>(x), columns), vector_of(bias, columns),
                                    rows_of(static_cast<Y*>(y), columns)};
    apply_columns(stream, "bias_activate", all, tiles_of(rows, columns));
  };
  with_number(out, [&](auto y_type) {
    const auto run_types = [&](auto f) {
      if (in == out) return run(f, y_type, y_type);
      run(f, Type<float>{}, y_type);
    };
    if (function == Function::none) return run_types(Identity{});
    with_function(function, run_types);
  });
}

}  // namespace bitloom::nn::cuda
