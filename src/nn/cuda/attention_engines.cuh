// Which engine a task of attention gets, and how its kernels are started. C++17.
#pragma once

#include "nn/cuda/attention_simt.cuh"
#include "nn/cuda/attention_tensor.cuh"

namespace bitloom::nn::cuda {

// Heads of up to this size are multiplied by tensor cores where they are of 16 bits.
constexpr std::size_t most_tensor_head_size = 128;

template <typename T, unsigned... sizes>
struct TensorEngines {
  template <typename Work>
  static void choose(std::size_t head_size, Work& work) {
    bool is_done = false;
    ((is_done = is_done || (head_size <= sizes && (work(Type<TensorEngine<T, sizes>>{}), true))), ...);
  }
};

// work(Type<Engine>{}) for the engine that suits the task.
template <typename Work>
void with_engine(const AttentionTask& task, Work work) {
  with_number(task.number, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, float>) {
      if (task.head_size <= 64) return work(Type<SimtEngine<T, 64>>{});
      if (task.head_size <= 128) return work(Type<SimtEngine<T, 128>>{});
    } else {
      if (task.head_size <= most_tensor_head_size) return TensorEngines<T, 32, 64, 96, 128>::choose(task.head_size, work);
    }
    work(Type<SimtEngine<T, most_head_size>>{});
  });
}

// Two stages where there is room for them.
template <typename E>
unsigned stages_of(const AttentionTask& task, unsigned kept_tiles) {
  return E::shared_bytes(kept_tiles, E::most_stages) <= task.shared_limit ? E::most_stages : 1;
}

// A block of threads per tile of `tokens` tokens of every head.
template <typename E>
LaunchShape shape_of(const AttentionTask& task, std::size_t tokens, unsigned kept_tiles, unsigned stages) {
  const std::size_t tiles = task.sequences * task.heads * tiles_of(tokens);
  return {static_cast<unsigned>(tiles), E::threads, static_cast<unsigned>(E::shared_bytes(kept_tiles, stages))};
}

}  // namespace bitloom::nn::cuda
