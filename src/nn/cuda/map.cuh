// y[i] = f(x1[i], x2[i], ...) for tensors of any types, in floats. C++17.
#pragma once

#include "nn/cuda/numbers.cuh"

namespace bitloom::nn::cuda {

constexpr unsigned map_threads = 256;

template <typename F, typename Y, typename... X>
__global__ void __launch_bounds__(map_threads) map_packs(std::size_t n, F f, Y* y, const X*... x) {
  for (std::size_t pack = first_piece(); pack < n / pack_size; pack += piece_stride()) {
    const std::size_t i = pack * pack_size;
    // Whatever y shares its memory with has been read before it is written.
    const auto apply = [&](const Pack<X>... in) {
      Pack<Y> out;
#pragma unroll
      for (int j = 0; j < pack_size; ++j) out.values[j] = from_float<Y>(f(to_float(in.values[j])...));
      *reinterpret_cast<Pack<Y>*>(y + i) = out;
    };
    apply(*reinterpret_cast<const Pack<X>*>(x + i)...);
  }
}

// Elements first .. n - 1.
template <typename F, typename Y, typename... X>
__global__ void __launch_bounds__(map_threads) map_elements(std::size_t first, std::size_t n, F f, Y* y, const X*... x) {
  for (std::size_t i = first + first_piece(); i < n; i += piece_stride()) y[i] = from_float<Y>(f(to_float(x[i])...));
}

// y may be any of the x that is of its type. f is a __device__ function object.
template <typename F, typename Y, typename... X>
void map(Stream stream, const char* name, std::size_t n, F f, Y* y, const X*... x) {
  std::size_t done = 0;
  if ((is_aligned(y) && ... && is_aligned(x)) && n >= pack_size) {
    done = n / pack_size * pack_size;
    launch(stream, name, {blocks_for(done / pack_size, map_threads), map_threads}, map_packs<F, Y, X...>, n, f, y, x...);
  }
  if (done < n) {
    launch(stream, name, {blocks_for(n - done, map_threads), map_threads}, map_elements<F, Y, X...>, done, n, f, y, x...);
  }
}

}  // namespace bitloom::nn::cuda
