// The backward pass of attention (Dao 2023, algorithm 2). Nothing is added by atomics: a block of threads per tile of keys
// gives dK and dV, another per tile of queries dQ, and both compute the probabilities again from lse.
#include "nn/cuda/attention_engines.cuh"

namespace bitloom::nn::cuda {
namespace {

constexpr unsigned sum_threads = 256;

// delta (B,H,Q) = sums of rows of out dout, which are the sums over keys of a probability times its gradient. One warp per row.
template <typename T>
__global__ void __launch_bounds__(sum_threads) sum_products(const AttentionTask task, const AttentionGradients g) {
  const std::size_t rows = task.sequences * task.heads * task.mask.queries;
  for (std::size_t row = first_piece() / 32; row < rows; row += piece_stride() / 32) {
    const std::size_t query = row % task.mask.queries, head = row / task.mask.queries;
    const std::size_t token = head / task.heads * task.mask.queries + query;
    const std::size_t column = head % task.heads * task.head_size;
    const T* out = static_cast<const T*>(g.out.first) + token * g.out.stride + column;
    const T* dout = static_cast<const T*>(g.dout.first) + token * g.dout.stride + column;
    float sum = 0;
    for (std::size_t d = threadIdx.x % 32; d < task.head_size; d += 32) sum += to_float(out[d]) * to_float(dout[d]);
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, lanes);
    if (threadIdx.x % 32 == 0) g.delta[row] = sum;
  }
}

template <typename E>
__global__ void __launch_bounds__(E::threads, E::keys_blocks)
    backward_keys(const AttentionTask task, const AttentionGradients g, unsigned stages) {
  using T = typename E::Element;
  const DeviceMask& mask = task.mask;
  const unsigned tiles = tiles_of(mask.keys);
  const std::size_t head = blockIdx.x / tiles;
  const unsigned tile = blockIdx.x % tiles;  // the first keys of causal masks are seen most
  auto& shared = *reinterpret_cast<AttentionShared*>(dynamic_shared());
  E engine(dynamic_shared() + sizeof(AttentionShared), 2);

  engine.keep(0, tile_rows<const T>(task, task.k, mask.keys, head, tile));
  engine.keep(1, tile_rows<const T>(task, task.v, mask.keys, head, tile));
  typename E::template Held<32> keys, values;
  typename E::Wide dk = {}, dv = {};
  const float factor = task.scale * log2_e;
  const auto start = [&](unsigned stage, const MaskBlock& block) {
    engine.start(stage, tile_rows<const T>(task, task.q, mask.queries, head, block.block),
                 tile_rows<const T>(task, g.dout, mask.queries, head, block.block));
    TileNumbers& numbers = shared.stage[stage];
    start_seen(numbers, block, mask);
    start_numbers(numbers.lse, g.lse, mask, head, block.block);
    start_numbers(numbers.delta, g.delta, mask, head, block.block);
  };
  const auto prepare = [&] {
    engine.hold(0, keys);
    engine.hold(1, values);
  };
  const auto draw = [&](const MaskBlock& block) { draw_kept(shared, task, head, block.block, tile); };
  // p and ds are (key, query): probabilities, and gradients of scores from dP, the products of rows of dout and v.
  const auto work = [&](unsigned stage, const MaskBlock& block) {
    const TileNumbers& numbers = shared.stage[stage];
    const Seen seen(numbers, block, mask, tile);
    const bool drops = task.drops.threshold != 0;
    const auto kept = [&](unsigned query) { return kept_by(shared, query); };
    typename E::Scores p = engine.product(keys, engine.first(stage));
    if (seen.is_tested()) replace_transposed<E>(p, -INFINITY, [&](unsigned query) { return seen.by(query); });
#pragma unroll
    for (unsigned j = 0; j < E::columns; ++j) {
      const float base = numbers.lse[E::first_column() + E::column_step(j)] * log2_e;
#pragma unroll
      for (unsigned i = 0; i < E::rows; ++i) p.at(i, j) = exp2_approx(p.at(i, j) * factor - base);
    }
    typename E::Scores ds = engine.product(values, engine.second(stage));
    if (drops) replace_transposed<E>(ds, 0, kept);
#pragma unroll
    for (unsigned j = 0; j < E::columns; ++j) {
      const float delta = numbers.delta[E::first_column() + E::column_step(j)];
#pragma unroll
      for (unsigned i = 0; i < E::rows; ++i) ds.at(i, j) = p.at(i, j) * (task.drops.factor * ds.at(i, j) - delta);
    }
    if (drops) replace_transposed<E>(p, 0, kept);
    engine.add_product(dv, p, engine.second(stage));
    engine.add_product(dk, ds, engine.first(stage));
  };
  for_each_block(mask.queries_of_keys, tile, stages, start, prepare, draw, work);

  float factors[E::rows];
#pragma unroll
  for (float& x : factors) x = task.scale;
  engine.store(dk, factors, 0, tile_rows<T>(task, g.dk, mask.keys, head, tile));
#pragma unroll
  for (float& x : factors) x = task.drops.factor;
  engine.store(dv, factors, 1, tile_rows<T>(task, g.dv, mask.keys, head, tile));
}

template <typename E>
__global__ void __launch_bounds__(E::threads, E::queries_blocks)
    backward_queries(const AttentionTask task, const AttentionGradients g, unsigned stages) {
  using T = typename E::Element;
  const DeviceMask& mask = task.mask;
  const unsigned tiles = tiles_of(mask.queries);
  const std::size_t head = blockIdx.x / tiles;
  const unsigned tile = tiles - 1 - blockIdx.x % tiles;
  auto& shared = *reinterpret_cast<AttentionShared*>(dynamic_shared());
  E engine(dynamic_shared() + sizeof(AttentionShared), 2);

  engine.keep(0, tile_rows<const T>(task, task.q, mask.queries, head, tile));
  engine.keep(1, tile_rows<const T>(task, g.dout, mask.queries, head, tile));
  typename E::template Held<96> queries, gradients;
  typename E::Wide dq = {};
  const TileRows<T> to = tile_rows<T>(task, g.dq, mask.queries, head, tile);
  const float factor = task.scale * log2_e;
  float base[E::rows], delta[E::rows];
#pragma unroll
  for (unsigned i = 0; i < E::rows; ++i) {
    const unsigned row = E::first_row() + E::row_step(i);
    const std::size_t place = head * mask.queries + static_cast<std::size_t>(tile) * tile_size + row;
    base[i] = row < to.rows ? g.lse[place] * log2_e : 0.0F;
    delta[i] = row < to.rows ? g.delta[place] : 0.0F;
  }
  const auto start = [&](unsigned stage, const MaskBlock& block) {
    engine.start(stage, tile_rows<const T>(task, task.k, mask.keys, head, block.block),
                 tile_rows<const T>(task, task.v, mask.keys, head, block.block));
    start_seen(shared.stage[stage], block, mask);
  };
  const auto prepare = [&] {
    engine.hold(0, queries);
    engine.hold(1, gradients);
  };
  const auto draw = [&](const MaskBlock& block) { draw_kept(shared, task, head, tile, block.block); };
  const auto work = [&](unsigned stage, const MaskBlock& block) {
    const Seen seen(shared.stage[stage], block, mask, block.block);
    typename E::Scores p = engine.product(queries, engine.first(stage));
    if (seen.is_tested()) replace<E>(p, -INFINITY, [&](unsigned query) { return seen.by(query); });
    typename E::Scores ds = engine.product(gradients, engine.second(stage));
    if (task.drops.threshold != 0) replace<E>(ds, 0, [&](unsigned query) { return kept_by(shared, query); });
#pragma unroll
    for (unsigned i = 0; i < E::rows; ++i) {
#pragma unroll
      for (unsigned j = 0; j < E::columns; ++j) {
        const float probability = exp2_approx(p.at(i, j) * factor - base[i]);
        ds.at(i, j) = probability * (task.drops.factor * ds.at(i, j) - delta[i]);
      }
    }
    engine.add_product(dq, ds, engine.first(stage));
  };
  for_each_block(mask.keys_of_queries, tile, stages, start, prepare, draw, work);

  float factors[E::rows];
#pragma unroll
  for (float& x : factors) x = task.scale;
  engine.store(dq, factors, 0, to);
}

}  // namespace

void attention_backward(Stream stream, const AttentionTask& task, const AttentionGradients& gradients) {
  if (task.sequences * task.heads == 0) return;
  const std::size_t rows = task.sequences * task.heads * task.mask.queries;
  if (rows > 0) {
    with_number(task.number, [&](auto type) {
      using T = typename decltype(type)::type;
      launch(stream, "attention_backward", {blocks_for(rows * 32, sum_threads), sum_threads}, sum_products<T>, task, gradients);
    });
  }
  with_engine(task, [&](auto type) {
    using E = typename decltype(type)::type;
    constexpr unsigned kept_tiles = 2;
    const unsigned stages = stages_of<E>(task, kept_tiles);
    if (task.mask.keys > 0) {
      launch(stream, "attention_backward", shape_of<E>(task, task.mask.keys, kept_tiles, stages), backward_keys<E>, task,
             gradients, stages);
    }
    if (rows > 0) {
      launch(stream, "attention_backward", shape_of<E>(task, task.mask.queries, kept_tiles, stages), backward_queries<E>, task,
             gradients, stages);
    }
  });
}

}  // namespace bitloom::nn::cuda
