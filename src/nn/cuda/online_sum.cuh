// Parts of softmax and of the loss that follows it.
#pragma once

#include <limits>

#include "nn/cuda/reduce.cuh"
#include "nn/cuda/row_packs.cuh"

namespace bitloom::nn::cuda {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

// The largest of numbers and the sum of exp(number - largest), taken in one pass (Milakov, Gimelshein: "Online normalizer
// calculation for softmax", 2018).
struct OnlineSum {
  float largest = std::numeric_limits<float>::lowest();  // not -infinity, from which -infinity cannot be subtracted
  float sum = 0;

  __device__ void add(const float (&v)[pack_size]) {
    float most = v[0];
#pragma unroll
    for (int j = 1; j < pack_size; ++j) most = fmaxf(most, v[j]);
    if (most > largest) {
      sum *= __expf(largest - most);
      largest = most;
    }
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sum += __expf(v[j] - largest);
  }
  // Merges those of all threads of a group.
  template <unsigned Width>
  __device__ void merge_group() {
    const float own = largest;
    largest = group_max<Width>(own);
    sum = group_sum<Width>(sum * __expf(own - largest));
  }
};

template <typename Layout>
LaunchShape launch_of(std::size_t rows) {
  return {static_cast<unsigned>((rows + Layout::rows - 1) / Layout::rows), Layout::threads};
}

}  // namespace bitloom::nn::cuda
