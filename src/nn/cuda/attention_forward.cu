// The forward pass of attention: a block of threads per tile of 64 queries, which goes through the tiles of keys that they see
// with the softmax of what it has seen so far (Dao 2023, algorithm 1).
#include "nn/cuda/attention_engines.cuh"

namespace bitloom::nn::cuda {
namespace {

// For the rows of a thread, scores in units of log2(e): the largest and, over its columns, the sum of 2^(score - largest).
template <typename E>
struct Softmax {
  float largest[E::rows], sum[E::rows];

  __device__ Softmax() {
#pragma unroll
    for (unsigned i = 0; i < E::rows; ++i) {
      largest[i] = -INFINITY;
      sum[i] = 0;
    }
  }

  // Turns products of queries and keys into 2^(factor product - largest), also of what was summed until now.
  __device__ void add(typename E::Scores& x, float factor, typename E::Wide& sums) {
#pragma unroll
    for (unsigned i = 0; i < E::rows; ++i) {
      float now = -INFINITY;
#pragma unroll
      for (unsigned j = 0; j < E::columns; ++j) now = fmaxf(now, x.at(i, j));
#pragma unroll
      for (unsigned lanes = 1; lanes < E::row_lanes; lanes *= 2) {
        now = fmaxf(now, __shfl_xor_sync(0xFFFFFFFFU, now, static_cast<int>(lanes)));
      }
      now = fmaxf(largest[i], now * factor);
      const float base = now == -INFINITY ? 0.0F : now;  // nothing is seen yet
      const float shrink = exp2_approx(largest[i] - base);
      largest[i] = now;
      float added = 0;
#pragma unroll
      for (unsigned j = 0; j < E::columns; ++j) {
        x.at(i, j) = exp2_approx(x.at(i, j) * factor - base);
        added += x.at(i, j);
      }
      sum[i] = sum[i] * shrink + added;
#pragma unroll
      for (unsigned j = 0; j < E::Wide::columns; ++j) sums.at(i, j) *= shrink;
    }
  }

  // All columns' sums.
  __device__ void finish() {
#pragma unroll
    for (unsigned i = 0; i < E::rows; ++i) {
#pragma unroll
      for (unsigned lanes = 1; lanes < E::row_lanes; lanes *= 2) {
        sum[i] += __shfl_xor_sync(0xFFFFFFFFU, sum[i], static_cast<int>(lanes));
      }
    }
  }
};

template <typename E>
__global__ void __launch_bounds__(E::threads, E::forward_blocks)
    forward(const AttentionTask task, const AttentionRows<void> out, float* lse_bhq, unsigned stages) {
  using T = typename E::Element;
  const DeviceMask& mask = task.mask;
  const unsigned tiles = tiles_of(mask.queries);
  const std::size_t head = blockIdx.x / tiles;
  const unsigned tile = tiles - 1 - blockIdx.x % tiles;  // the longest first: causal masks grow
  auto& shared = *reinterpret_cast<AttentionShared*>(dynamic_shared());
  E engine(dynamic_shared() + sizeof(AttentionShared), 1);

  engine.keep(0, tile_rows<const T>(task, task.q, mask.queries, head, tile));
  typename E::template Held<128> queries;
  Softmax<E> softmax;
  typename E::Wide sums = {};
  const auto start = [&](unsigned stage, const MaskBlock& block) {
    engine.start(stage, tile_rows<const T>(task, task.k, mask.keys, head, block.block),
                 tile_rows<const T>(task, task.v, mask.keys, head, block.block));
    start_seen(shared.stage[stage], block, mask);
  };
  const auto prepare = [&] { engine.hold(0, queries); };
  const auto draw = [&](const MaskBlock& block) { draw_kept(shared, task, head, tile, block.block); };
  const auto work = [&](unsigned stage, const MaskBlock& block) {
    typename E::Scores scores = engine.product(queries, engine.first(stage));
    const Seen seen(shared.stage[stage], block, mask, block.block);
    if (seen.is_tested()) replace<E>(scores, -INFINITY, [&](unsigned query) { return seen.by(query); });
    softmax.add(scores, task.scale * log2_e, sums);
    if (task.drops.threshold != 0) replace<E>(scores, 0, [&](unsigned query) { return kept_by(shared, query); });
    engine.add_product(sums, scores, engine.second(stage));
  };
  for_each_block(mask.keys_of_queries, tile, stages, start, prepare, draw, work);

  softmax.finish();
  const TileRows<T> to = tile_rows<T>(task, out, mask.queries, head, tile);
  float factors[E::rows];
#pragma unroll
  for (unsigned i = 0; i < E::rows; ++i) {
    factors[i] = softmax.sum[i] == 0 ? 0.0F : task.drops.factor / softmax.sum[i];  // 0: a row that is not there
    const unsigned row = E::first_row() + E::row_step(i);
    if (threadIdx.x % E::row_lanes != 0 || row >= to.rows) continue;
    lse_bhq[head * mask.queries + static_cast<std::size_t>(tile) * tile_size + row] =
        (softmax.largest[i] + log2f(softmax.sum[i])) * ln_2;
  }
  engine.store(sums, factors, 0, to);
}

}  // namespace

void attention(Stream stream, const AttentionTask& task, const AttentionRows<void>& out, float* lse) {
  if (task.sequences * task.heads * task.mask.queries == 0) return;
  with_engine(task, [&](auto type) {
    using E = typename decltype(type)::type;
    constexpr unsigned kept_tiles = 1;
    const unsigned stages = stages_of<E>(task, kept_tiles);
    launch(stream, "attention", shape_of<E>(task, task.mask.queries, kept_tiles, stages), forward<E>, task, out, lse, stages);
  });
}

}  // namespace bitloom::nn::cuda
