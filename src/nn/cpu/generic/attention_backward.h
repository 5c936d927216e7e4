// The backward pass of attention (Dao et al. 2022, algorithm 4): with P = softmax(S), S = scale Q K^T, out = P V,
//   dV = P^T dout,  dP = dout V^T,  dS = P (dP - D), D = rows' sums of dout out,  dQ = scale dS K,  dK = scale dS^T Q;
// P is recomputed from S and lse. With dropout P^T dout takes the weights that were kept, and dP the factor of these.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/attention_tiles.h"
#include "nn/cpu/generic/math.h"
#include "nn/cpu/generic/norm.h"

namespace bitloom::nn {
namespace {

template <typename Element>
struct KeyState {
  std::size_t rows = 0;  // keys
  Element *k_along = nullptr, *v_along = nullptr;
  const Element* k_left = nullptr;
  float *dk = nullptr, *dv = nullptr;  // (64, D) sums
};

template <typename Element>
struct QueryTiles {
  std::size_t rows = 0;  // queries
  Element *along = nullptr, *q_across = nullptr, *q_turned = nullptr, *dout_across = nullptr, *dout_turned = nullptr;
  float *lse = nullptr, *delta = nullptr;  // (64) lse in powers of 2; D
};

template <typename Isa, typename V, typename P>
BITLOOM_INLINE void pack_queries(const AttentionBackward<V>& task, std::size_t block, QueryTiles<typename P::Element>& tiles) {
  using Pack = Packing<Isa, P>;
  const std::size_t head_size = task.head_size, along_pitch = padded_head(head_size) / P::depth;
  const std::size_t depth = (head_size + P::depth - 1) / P::depth;
  tiles.rows = rows_in_block(block, task.queries);
  const auto pack = [&](HeadRows<const V> from, typename P::Element* across, typename P::Element* turned) {
    Pack::pack_across(from, tiles.rows, head_size, across);
    if constexpr (Pack::one_format) {
      transpose(across, along_pitch, attention_block, depth, turned, attention_block);
    } else {
      Pack::pack_along(from, tiles.rows, head_size, tiles.along);
      transpose(tiles.along, along_pitch, attention_block, depth, turned, attention_block);
    }
  };
  pack(rows_from(task.q, block), tiles.q_across, tiles.q_turned);
  pack(rows_from(task.dout, block), tiles.dout_across, tiles.dout_turned);
  for (std::size_t i = 0; i < attention_block; ++i) tiles.lse[i] = tiles.delta[i] = 0;
  const HeadRows<const V> out = rows_from(task.out, block), dout = rows_from(task.dout, block);
  for (std::size_t i = 0; i < tiles.rows; ++i) {
    const V* a = out.data + i * out.pitch;
    const V* b = dout.data + i * dout.pitch;
    tiles.lse[i] = task.lse[block * attention_block + i] * log2_e;
    tiles.delta[i] = sum_over<Isa>(
        head_size, [=](std::size_t k, auto part)
                       __attribute__((always_inline)) { return part.load(a + k) * part.load(b + k); });
  }
}

// Scores and dP (keys, queries) into the weights and dS.
template <typename Isa, typename P, bool kDropout>
BITLOOM_INLINE void differentiate_scores(const float* scores, const float* dweights, std::size_t keys, float c, float factor,
                                         const BlockMasks& masks, const QueryTiles<typename P::Element>& queries,
                                         typename P::Element* weights_along, typename P::Element* ds_along,
                                         typename P::Element* ds_across) {
  using Float = typename Isa::Float;
  using Pack = Packing<Isa, P>;
  for (std::size_t i = 0; i < queries.rows; i += Isa::width) {
    const Float lse = Isa::load(queries.lse + i), delta = Isa::load(queries.delta + i);
    for (std::size_t j = 0; j < keys; j += 2) {
      Float ds[2] = {Isa::splat(0), Isa::splat(0)};
#pragma GCC unroll 2
      for (std::size_t k = 0; k < 2; ++k) {
        if (j + k >= keys) continue;
        const std::size_t at = (j + k) * attention_block + i;
        Float p = exp2<Isa>(Isa::fma(Isa::load(scores + at), Isa::splat(c), Isa::splat(0) - lse));
        Float dp = Isa::load(dweights + at);
        if (!masks.all_seen) p = Isa::select(lanes_of<Isa>(masks.seen[j + k], i), p, Isa::splat(0));
        Float kept = p;
        if constexpr (kDropout) {
          const auto lanes = lanes_of<Isa>(masks.kept[j + k], i);
          kept = Isa::select(lanes, p, Isa::splat(0));
          dp = Isa::select(lanes, dp * Isa::splat(factor), Isa::splat(0));
        }
        ds[k] = p * (dp - delta);
        Pack::put_along(weights_along, j + k, i, kept);
        if constexpr (!Pack::one_format) Pack::put_along(ds_along, j + k, i, ds[k]);
      }
      Pack::put_across(ds_across, j, i, ds[0], ds[1]);
    }
  }
}

// The entry of a block, or null: no query of it sees these keys.
template <typename V>
BITLOOM_INLINE const AttentionEntry* find_entry(const AttentionHead<V>& head, std::size_t query_block, std::size_t key_block) {
  for (std::size_t e = head.first_entry[query_block]; e < head.first_entry[query_block + 1]; ++e) {
    if (head.entries[e].keys == key_block) return head.entries + e;
  }
  return nullptr;
}

// A group of blocks of keys shares the packing of each block of queries.
template <typename Isa, typename V>
void attention_backward_of_group(const AttentionBackward<V>& task, std::size_t first_keys, std::size_t blocks, float* dq,
                                 Scratch scratch) {
  using P = typename Isa::template Product<V>;
  using Element = typename P::Element;
  using Pack = Packing<Isa, P>;
  const std::size_t head_size = task.head_size;
  const std::size_t across_pitch = padded_head(head_size), along_pitch = across_pitch / P::depth;
  const std::size_t tile = attention_block * across_pitch, square = attention_block * attention_block;
  const std::size_t depth = (head_size + P::depth - 1) / P::depth;
  const std::size_t head_vectors = (head_size + Isa::width - 1) / Isa::width;
  const std::size_t weights_pitch = attention_block / P::depth;

  QueryTiles<Element> queries;
  queries.along = scratch.template take<Element>(tile);
  queries.q_across = scratch.template take<Element>(tile);
  queries.q_turned = scratch.template take<Element>(tile);
  queries.dout_across = scratch.template take<Element>(tile);
  queries.dout_turned = scratch.template take<Element>(tile);
  queries.lse = scratch.take(attention_block);
  queries.delta = scratch.take(attention_block);
  float* scores = scratch.take(square);
  float* dweights = scratch.take(square);
  auto* weights_along = Pack::one_format ? reinterpret_cast<Element*>(scores) : scratch.template take<Element>(square);
  auto* ds_across = Pack::one_format ? reinterpret_cast<Element*>(dweights) : scratch.template take<Element>(square);
  auto* ds_along = Pack::one_format ? ds_across : scratch.template take<Element>(square);
  KeyState<Element> keys[attention_group];
  for (std::size_t n = 0; n < blocks; ++n) {
    KeyState<Element>& state = keys[n];
    const std::size_t block = first_keys + n;
    state.rows = rows_in_block(block, task.keys);
    state.k_along = scratch.template take<Element>(tile);
    Element* k_left = Pack::one_format ? state.k_along : scratch.template take<Element>(tile);
    state.v_along = scratch.template take<Element>(tile);
    Pack::pack_along(rows_from(task.k, block), state.rows, head_size, state.k_along);
    if constexpr (!Pack::one_format) {
      Element* k_across = Pack::left == Stored::by_columns ? k_left : queries.along;  // which is free as yet
      Pack::pack_across(rows_from(task.k, block), state.rows, head_size, k_across);
      left_of<Isa, P>(k_across, across_pitch, k_left);
    }
    state.k_left = k_left;
    Pack::pack_along(rows_from(task.v, block), state.rows, head_size, state.v_along);
    state.dk = scratch.take(tile);
    state.dv = scratch.take(tile);
    clear(state.dk, tile);
    clear(state.dv, tile);
  }

  BlockMasks masks;
  for (std::size_t block = task.first_block; block < task.end_block; ++block) {
    bool is_packed = false;
    for (std::size_t n = 0; n < blocks; ++n) {
      const AttentionEntry* entry = find_entry(task, block, first_keys + n);
      if (entry == nullptr) continue;
      if (!is_packed) pack_queries<Isa, V, P>(task, block, queries);
      is_packed = true;
      const KeyState<Element>& state = keys[n];
      const std::size_t vectors = (queries.rows + Isa::width - 1) / Isa::width;
      product<Isa, P, Stored::by_rows>(state.rows, vectors, depth, state.k_along, along_pitch, queries.q_turned,
                                       attention_block, scores, attention_block, false);
      product<Isa, P, Stored::by_rows>(state.rows, vectors, depth, state.v_along, along_pitch, queries.dout_turned,
                                       attention_block, dweights, attention_block, false);
      find_masks<Isa>(task, block, queries.rows, *entry, masks);
      const float c = task.scale * log2_e;
      if (masks.all_kept) {
        differentiate_scores<Isa, P, false>(scores, dweights, state.rows, c, 1.0F, masks, queries, weights_along, ds_along,
                                            ds_across);
      } else {
        differentiate_scores<Isa, P, true>(scores, dweights, state.rows, c, task.dropout.factor, masks, queries, weights_along,
                                           ds_along, ds_across);
      }
      if (task.gives_dkv) {
        const std::size_t query_depth = (queries.rows + P::depth - 1) / P::depth;
        product<Isa, P, Stored::by_rows>(state.rows, head_vectors, query_depth, weights_along, weights_pitch,
                                         queries.dout_across, across_pitch, state.dv, across_pitch, true);
        product<Isa, P, Stored::by_rows>(state.rows, head_vectors, query_depth, ds_along, weights_pitch, queries.q_across,
                                         across_pitch, state.dk, across_pitch, true);
      }
      if (task.gives_dq) {
        product<Isa, P, Pack::left>(head_size, vectors, (state.rows + P::depth - 1) / P::depth, state.k_left,
                                    left_pitch<Isa, P>(across_pitch), ds_across, attention_block,
                                    dq + (block - task.first_block) * tile, attention_block, true);
      }
    }
  }
  if (!task.gives_dkv) return;
  const float kept_factor = task.dropout.threshold == 0 ? 1.0F : task.dropout.factor;
  for (std::size_t n = 0; n < blocks; ++n) {
    unpack_rows<Isa>(keys[n].dk, keys[n].rows, head_size, task.scale, rows_from(task.dk, first_keys + n));
    unpack_rows<Isa>(keys[n].dv, keys[n].rows, head_size, kept_factor, rows_from(task.dv, first_keys + n));
  }
}

template <typename Isa, typename V>
void attention_backward(const AttentionBackward<V>& task) {
  const std::size_t tile = attention_block * padded_head(task.head_size);
  const std::size_t query_blocks = task.end_block - task.first_block;
  Scratch scratch{task.scratch};
  float* dq = scratch.take(query_blocks * tile);  // turned: (D, 64) per block
  float* rows = scratch.take(tile);
  if (task.gives_dq) clear(dq, query_blocks * tile);
  for (std::size_t block = task.first_key_block; block < task.end_key_block; block += attention_group) {
    const std::size_t left = task.end_key_block - block;
    attention_backward_of_group<Isa, V>(task, block, left < attention_group ? left : attention_group, dq, scratch);
  }
  if (!task.gives_dq) return;
  for (std::size_t block = task.first_block; block < task.end_block; ++block) {
    const std::size_t queries = rows_in_block(block, task.queries);
    transpose(dq + (block - task.first_block) * tile, attention_block, task.head_size, queries, rows,
              padded_head(task.head_size));
    unpack_rows<Isa>(rows, queries, task.head_size, task.scale, rows_from(task.dq, block));
  }
}

}  // namespace
}  // namespace bitloom::nn
