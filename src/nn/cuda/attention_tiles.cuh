// Attention by tiles of 64 queries x 64 keys, which are the mask's blocks (Dao 2023: "FlashAttention-2", algorithms 1 and 2):
// what its kernels share, whatever multiplies. C++17.
//
// The kernels are written against an engine (attention_tensor.cuh: tensor cores; attention_simt.cuh: floats), a class with
//   Element, threads       the type of numbers in global memory; threads of a block
//   most_stages            2 if start() copies for the next tiles while products use others
//   forward_blocks, keys_blocks, queries_blocks
//                          of the three kernels, blocks that one multiprocessor should have registers for
//   rows, columns          of a tile of 64 x 64 each thread has rows x columns numbers; number (i, j) is at (first_row() +
//   row_step(i), column_step(j)  row_step(i), first_column() + column_step(j))
//   row_lanes              neighbouring lanes that share rows
//   Scores, Wide           what a thread has of a tile of 64 x 64, and of one of 64 x D: at(i, j), of f32
//   keep(i, rows)          starts to copy one of two tiles of 64 x D that stay
//   hold(i, held)          gives it to products as their left side, Held<most>, once it is there
//   start(stage, a, b)     starts to copy two tiles that are used once: first(stage) and second(stage)
//   product(held, b)       Scores a b^T
//   add_product(x, p, b)   x += p b, where p is Scores
//   store(x, factors, i, rows)  factor of the row times x into global memory, by way of where kept tile i was
#pragma once

#include <cmath>

#include <cuda_tensor_cores.h>
#include "nn/cuda/numbers.cuh"
#include "nn/dropout.h"

namespace bitloom::nn::cuda {

constexpr unsigned tile_size = 64;
constexpr float log2_e = 1.4426950408889634F;
constexpr float ln_2 = 0.6931471805599453F;

// Part of one head: up to 64 tokens of `columns` numbers.
template <typename T>
struct TileRows {
  T* first;
  unsigned stride, rows, columns;
  bool is_aligned;
};

inline __host__ __device__ unsigned tiles_of(std::size_t tokens) {
  return static_cast<unsigned>((tokens + tile_size - 1) / tile_size);
}

// Those of tile `tile` of `tokens` tokens; `head` counts the heads of all sequences.
template <typename T, typename Void>
__device__ TileRows<T> tile_rows(const AttentionTask& task, const AttentionRows<Void>& all, std::size_t tokens,
                                 std::size_t head, unsigned tile) {
  const std::size_t token = static_cast<std::size_t>(tile) * tile_size;
  const std::size_t left = tokens - token;
  T* first =
      static_cast<T*>(all.first) + (head / task.heads * tokens + token) * all.stride + head % task.heads * task.head_size;
  return {first, static_cast<unsigned>(all.stride), left < tile_size ? static_cast<unsigned>(left) : tile_size,
          static_cast<unsigned>(task.head_size), all.is_aligned};
}

// Numbers of a tile, in shared memory.
struct TileNumbers {
  std::uint64_t seen[tile_size];  // per query, if the mask's block is a partial one
  float lse[tile_size], delta[tile_size];
};
struct AttentionShared {
  TileNumbers stage[2];
  std::uint32_t kept[tile_size][2];  // per query, with dropout: bit k: key k is kept
};

// Which keys of a tile its queries see.
class Seen {
 public:
  __device__ Seen(const TileNumbers& numbers, const MaskBlock& block, const DeviceMask& mask, unsigned key_tile)
      : numbers_(numbers), is_partial_(block.rows != all_seen) {
    const std::size_t left = mask.keys - static_cast<std::size_t>(key_tile) * tile_size;
    if (left < tile_size) there_ = (std::uint64_t{1} << left) - 1;
  }
  // Whether some may not be seen.
  __device__ bool is_tested() const { return is_partial_ || there_ != ~std::uint64_t{0}; }
  __device__ std::uint64_t by(unsigned query) const { return is_partial_ ? numbers_.seen[query] : there_; }

 private:
  const TileNumbers& numbers_;
  bool is_partial_;
  std::uint64_t there_ = ~std::uint64_t{0};
};

// Starts to copy the words of a partial block.
__device__ inline void start_seen(TileNumbers& numbers, const MaskBlock& block, const DeviceMask& mask) {
  if (block.rows == all_seen || threadIdx.x >= tile_size) return;
  copy_async<8>(&numbers.seen[threadIdx.x], mask.bits + static_cast<std::size_t>(block.rows) * tile_size + threadIdx.x, true);
}

// Starts to copy one number per query; 0 for queries that are not there.
__device__ inline void start_numbers(float* to, const float* from_bhq, const DeviceMask& mask, std::size_t head,
                                     unsigned query_tile) {
  if (threadIdx.x >= tile_size) return;
  const std::size_t query = static_cast<std::size_t>(query_tile) * tile_size + threadIdx.x;
  const bool is_there = query < mask.queries;
  copy_async<4>(to + threadIdx.x, from_bhq + head * mask.queries + (is_there ? query : 0), is_there);
}

// Draws for all pairs of a tile: 8 neighbours along the keys share a call of Philox, or, where the row of a query does not
// begin with such a group, parts of two.
__device__ inline void draw_kept(AttentionShared& shared, const AttentionTask& task, std::size_t head, unsigned query_tile,
                                 unsigned key_tile) {
  if (task.drops.threshold == 0) return;
  constexpr unsigned half_size = tile_size / 2;
  const std::size_t number =  // of the head; in 32 bits, which takes fewer registers
      head + static_cast<unsigned>(head) / static_cast<unsigned>(task.heads) * task.other_heads + task.first_head;
  for (unsigned half = threadIdx.x; half < 2 * tile_size; half += blockDim.x) {
    const std::size_t query = static_cast<std::size_t>(query_tile) * tile_size + half / 2;
    const std::uint64_t element = task.drops.first + (number * task.mask.queries + query) * task.mask.keys +
                                  static_cast<std::uint64_t>(key_tile) * tile_size + half % 2 * half_size;
    const auto skipped = static_cast<unsigned>(element % dropout_group);
    const unsigned groups = half_size / dropout_group + (skipped == 0 ? 0 : 1);
    std::uint64_t bits = 0;
#pragma unroll 1
    for (unsigned group = 0; group < groups; ++group) {
      const Philox4x32 draws = dropout_draws(task.drops.seed, task.drops.site, element / dropout_group + group);
      std::uint64_t kept = 0;
#pragma unroll
      for (unsigned j = 0; j < dropout_group; ++j) kept |= (dropout_draw(draws, j) < task.drops.threshold ? 0ULL : 1ULL) << j;
      bits |= kept << (group * dropout_group);
    }
    shared.kept[half / 2][half % 2] = static_cast<std::uint32_t>(bits >> skipped);
  }
}

__device__ inline std::uint64_t kept_by(const AttentionShared& shared, unsigned query) {
  return shared.kept[query][0] | static_cast<std::uint64_t>(shared.kept[query][1]) << 32U;
}

__device__ inline bool has_bit(std::uint64_t bits, unsigned place) { return ((bits >> place) & 1U) != 0; }

// Numbers of pairs whose bit is not set become `value`. bits(query) has one per key; x is (query, key), or (key, query).
template <typename E, typename Bits>
__device__ __forceinline__ void replace(typename E::Scores& x, float value, Bits bits) {
#pragma unroll
  for (unsigned i = 0; i < E::rows; ++i) {
    const std::uint64_t own = bits(E::first_row() + E::row_step(i)) >> E::first_column();
#pragma unroll
    for (unsigned j = 0; j < E::columns; ++j) {
      if (!has_bit(own, E::column_step(j))) x.at(i, j) = value;
    }
  }
}
template <typename E, typename Bits>
__device__ __forceinline__ void replace_transposed(typename E::Scores& x, float value, Bits bits) {
#pragma unroll
  for (unsigned j = 0; j < E::columns; ++j) {
    const std::uint64_t own = bits(E::first_column() + E::column_step(j)) >> E::first_row();
#pragma unroll
    for (unsigned i = 0; i < E::rows; ++i) {
      if (!has_bit(own, E::row_step(i))) x.at(i, j) = value;
    }
  }
}

// Calls work(stage, block) for every block that the mask has in block `i` of `map`. start(stage, block) starts copies for it,
// one ahead if there are two stages; draw(block) is called before the barrier after which work() sees all of that. prepare() is
// called once what was started before this call is there.
template <typename Start, typename Prepare, typename Draw, typename Work>
__device__ __forceinline__ void for_each_block(const MaskMap& map, unsigned i, unsigned stages, Start start, Prepare prepare,
                                               Draw draw, Work work) {
  const unsigned first = map.first[i], end = map.first[i + 1];
  commit_copies();
  if (stages == 2 && first < end) start(0U, map.blocks[first]);
  commit_copies();
  wait_for_copies<1>();
  __syncthreads();
  prepare();
#pragma unroll 1
  for (unsigned e = first; e < end; ++e) {
    const unsigned stage = stages == 2 ? (e - first) % 2 : 0;
    const MaskBlock block = map.blocks[e];
    if (stages == 2) {
      if (e + 1 < end) start(1 - stage, map.blocks[e + 1]);
      commit_copies();
      wait_for_copies<1>();
    } else {
      start(0U, block);
      commit_copies();
      wait_for_copies<0>();
    }
    draw(block);
    __syncthreads();
    work(stage, block);
    __syncthreads();
  }
}

}  // namespace bitloom::nn::cuda
