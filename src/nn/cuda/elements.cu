// Ops on single elements, all bound by memory.
#include "nn/cuda/map.cuh"
#include "nn/dropout.h"

namespace bitloom::nn::cuda {
namespace {

constexpr unsigned threads = 256;

struct Copy {
  __device__ float operator()(float x) const { return x; }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Scale {
  float alpha;
  __device__ float operator()(float x) const { return alpha * x; }
};
struct ScaleAdd {
  float alpha, beta;
  __device__ float operator()(float x, float y) const { return alpha * x + beta * y; }
};

struct AddFinite {
  float alpha;
  // Infinity and NaN minus themselves are NaN.
  __device__ float operator()(float x, float y) const { return x - x == 0 ? alpha * x + y : y; }
};

struct Clamp {
  float limit;
  __device__ float operator()(float x) const { return x > limit ? limit : x < -limit ? -limit : x; }
};

struct ClampBackward {
  float limit;
  __device__ float operator()(float x, float dy) const { return fabsf(x) >= limit ? 0.0F : dy; }
};

template <typename T>
__global__ void __launch_bounds__(threads) fill_elements(std::size_t n, T value, T* y) {
  for (std::size_t i = first_piece(); i < n; i += piece_stride()) y[i] = value;
}

template <typename T>
__global__ void __launch_bounds__(threads) resize_matrices(Resize r, const T* x, T* y) {
  const std::size_t n = r.matrices * r.y_rows * r.y_columns;
  for (std::size_t i = first_piece(); i < n; i += piece_stride()) {
    const std::size_t column = i % r.y_columns;
    const std::size_t row = i / r.y_columns % r.y_rows;
    const std::size_t matrix = i / r.y_columns / r.y_rows;
    const bool is_there = row < r.x_rows && column < r.x_columns;
    y[i] = is_there ? x[(matrix * r.x_rows + row) * r.x_columns + column] : T{};
  }
}

template <typename T>
void fill_as(Stream stream, void* y, std::size_t n, std::uint64_t bits) {
  launch(stream, "fill", {blocks_for(n, threads), threads}, fill_elements<T>, n, static_cast<T>(bits), static_cast<T*>(y));
}

// A thread has the elements of one call of Philox.
template <typename T>
__global__ void __launch_bounds__(threads) drop(std::size_t n, Drops drops, const T* x, T* y) {
  const std::size_t groups = (n + dropout_group - 1) / dropout_group;
  for (std::size_t group = first_piece(); group < groups; group += piece_stride()) {
    const Philox4x32 draws = dropout_draws(drops.seed, drops.site, drops.first / dropout_group + group);
    for (unsigned j = 0; j < dropout_group; ++j) {
      const std::size_t i = group * dropout_group + j;
      if (i >= n) return;
      y[i] = from_float<T>(dropout_draw(draws, j) < drops.threshold ? 0.0F : to_float(x[i]) * drops.factor);
    }
  }
}

}  // namespace

void convert(Stream stream, Number from, const void* x, Number to, void* y, std::size_t n) {
  if (n == 0) return;
  with_numbers(from, to, [&](auto x_type, auto y_type) {
    using X = typename decltype(x_type)::type;
    using Y = typename decltype(y_type)::type;
    map(stream, "convert", n, Copy{}, static_cast<Y*>(y), static_cast<const X*>(x));
  });
}

void fill(Stream stream, void* y, std::size_t n, std::size_t element_bytes, std::uint64_t bits) {
  if (n == 0) return;
  switch (element_bytes) {
    case 1: return fill_as<std::uint8_t>(stream, y, n, bits);
    case 2: return fill_as<std::uint16_t>(stream, y, n, bits);
    case 4: return fill_as<std::uint32_t>(stream, y, n, bits);
    default: return fill_as<std::uint64_t>(stream, y, n, bits);
  }
}

void add(Stream stream, Number number, const void* a, const void* b, void* y, std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    map(stream, "add", n, Sum{}, static_cast<T*>(y), static_cast<const T*>(a), static_cast<const T*>(b));
  });
}

void scale_add(Stream stream, float alpha, Number x_number, const void* x, float beta, Number y_number, void* y,
               std::size_t n) {
  if (n == 0) return;
  with_numbers(x_number, y_number, [&](auto x_type, auto y_type) {
    using X = typename decltype(x_type)::type;
    using Y = typename decltype(y_type)::type;
    auto* out = static_cast<Y*>(y);
    const auto* in = static_cast<const X*>(x);
    if (beta == 0) return map(stream, "scale_add", n, Scale{alpha}, out, in);
    map(stream, "scale_add", n, ScaleAdd{alpha, beta}, out, in, static_cast<const Y*>(out));
  });
}

void add_finite(Stream stream, float alpha, Number x_number, const void* x, Number y_number, void* y, std::size_t n) {
  if (n == 0) return;
  with_numbers(x_number, y_number, [&](auto x_type, auto y_type) {
    using X = typename decltype(x_type)::type;
    using Y = typename decltype(y_type)::type;
    auto* out = static_cast<Y*>(y);
    map(stream, "add_finite", n, AddFinite{alpha}, out, static_cast<const X*>(x), static_cast<const Y*>(out));
  });
}

void clamp(Stream stream, float limit, Number number, const void* x, void* y, std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    map(stream, "clamp", n, Clamp{limit}, static_cast<T*>(y), static_cast<const T*>(x));
  });
}

void clamp_backward(Stream stream, float limit, Number number, const void* x, const void* dy, void* dx, std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    map(stream, "clamp_backward", n, ClampBackward{limit}, static_cast<T*>(dx), static_cast<const T*>(x),
        static_cast<const T*>(dy));
  });
}

void dropout(Stream stream, const Drops& drops, Number number, const void* x, void* y, std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "dropout", {blocks_for((n + dropout_group - 1) / dropout_group, threads), threads}, drop<T>, n, drops,
           static_cast<const T*>(x), static_cast<T*>(y));
  });
}

void resize(Stream stream, const Resize& sizes, Number number, const void* x, void* y) {
  const std::size_t n = sizes.matrices * sizes.y_rows * sizes.y_columns;
  if (n == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "matmul", {blocks_for(n, threads), threads}, resize_matrices<T>, sizes, static_cast<const T*>(x),
           static_cast<T*>(y));
  });
}

}  // namespace bitloom::nn::cuda
