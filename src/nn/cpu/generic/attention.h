// Attention without the matrix of all pairs (Dao, Fu, Ermon, Rudra, Ré: FlashAttention, 2022, algorithm 1; Rabe, Staats 2021):
// blocks of 64 queries by 64 keys, a softmax that is corrected as blocks arrive (Milakov, Gimelshein 2018).
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/attention_few.h"
#include "nn/cpu/generic/attention_tiles.h"
#include "nn/cpu/generic/math.h"

namespace bitloom::nn {
namespace {

// State that a block of queries carries from block to block of keys; vectors go along the queries.
template <typename Element>
struct QueryState {
  std::size_t rows = 0;  // queries
  std::uint32_t entry = 0, end = 0;
  bool is_first = true;
  Element* q = nullptr;   // turned
  float* out = nullptr;   // (D, 64), not yet divided by the sum
  float* most = nullptr;  // (64) the largest score
  float* sum = nullptr;   // (64) of exp2(c (score - most))
};

// Scores (keys, queries) into what exp gives of them, and the state after that. c = scale log2(e): exp(scale x) = 2^(c x).
template <typename Isa, typename P, bool kDropout>
BITLOOM_INLINE void absorb_scores(const float* scores, std::size_t keys, float c, const BlockMasks& masks,
                                  QueryState<typename P::Element>& state, std::size_t head_size, typename P::Element* weights) {
  using Float = typename Isa::Float;
  const std::size_t columns = (state.rows + Isa::width - 1) / Isa::width * Isa::width;
  const Float factor = Isa::splat(c);
  for (std::size_t i = 0; i < columns; i += Isa::width) {
    const float* column = scores + i;
    const Float before = Isa::load(state.most + i);
    Float top[2] = {before, before};
    std::size_t j = 0;
    for (; j + 2 <= keys; j += 2) {
      top[0] = Isa::max(top[0], Isa::load(column + j * attention_block));
      top[1] = Isa::max(top[1], Isa::load(column + (j + 1) * attention_block));
    }
    if (j < keys) top[0] = Isa::max(top[0], Isa::load(column + j * attention_block));
    const Float most = Isa::max(top[0], top[1]);
    const Float shift = most * factor;
    const Float shrink = exp2<Isa>(Isa::fma(before, factor, Isa::splat(0) - shift));
    Float sum = Isa::load(state.sum + i) * shrink;
    for (j = 0; j < keys; j += 2) {
      const bool is_pair = j + 1 < keys;
      Float even = exp2<Isa>(Isa::fma(Isa::load(column + j * attention_block), factor, Isa::splat(0) - shift));
      Float odd = is_pair ? exp2<Isa>(Isa::fma(Isa::load(column + (j + 1) * attention_block), factor, Isa::splat(0) - shift))
                          : Isa::splat(0);
      sum = sum + (even + odd);
      if constexpr (kDropout) {
        even = Isa::select(lanes_of<Isa>(masks.kept[j], i), even, Isa::splat(0));
        odd = Isa::select(lanes_of<Isa>(masks.kept[(j + 1) % attention_block], i), odd, Isa::splat(0));
      }
      Packing<Isa, P>::put_across(weights, j, i, even, odd);
    }
    Isa::store(state.most + i, most);
    Isa::store(state.sum + i, sum);
    // Where no maximum rose, nothing shrinks.
    if (!state.is_first && !(Isa::largest(most - before) <= 0)) {
      for (std::size_t d = 0; d < head_size; ++d) {
        float* out = state.out + d * attention_block + i;
        Isa::store(out, Isa::load(out) * shrink);
      }
    }
  }
}

template <typename Isa, typename V>
BITLOOM_INLINE void finish_queries(const AttentionForward<V>& task, std::size_t block,
                                   const QueryState<typename Isa::template Product<V>::Element>& state, float* rows) {
  using Float = typename Isa::Float;
  alignas(64) float lse[attention_block];
  const Float kept_factor = Isa::splat(task.dropout.threshold == 0 ? 1.0F : task.dropout.factor);
  for (std::size_t i = 0; i < state.rows; i += Isa::width) {
    const Float sum = Isa::load(state.sum + i);
    Isa::store(lse + i, Isa::fma(Isa::load(state.most + i), Isa::splat(task.scale), log<Isa>(sum)));
    const Float factor = kept_factor / sum;
    for (std::size_t d = 0; d < task.head_size; ++d) {
      float* out = state.out + d * attention_block + i;
      Isa::store(out, Isa::load(out) * factor);
    }
  }
  __builtin_memcpy(task.lse + block * attention_block, lse, state.rows * sizeof(float));
  transpose(state.out, attention_block, task.head_size, state.rows, rows, padded_head(task.head_size));
  unpack_rows<Isa>(rows, state.rows, task.head_size, 1.0F, rows_from(task.out, block));
}

// A group of blocks of queries shares the packing of each block of keys.
template <typename Isa, typename V>
void attention_of_group(const AttentionForward<V>& task, std::size_t first_block, std::size_t blocks) {
  using P = typename Isa::template Product<V>;
  using Element = typename P::Element;
  using Pack = Packing<Isa, P>;
  const std::size_t head_size = task.head_size;
  const std::size_t across_pitch = padded_head(head_size), along_pitch = across_pitch / P::depth;
  const std::size_t tile = attention_block * across_pitch;
  const std::size_t depth = (head_size + P::depth - 1) / P::depth;
  const float c = task.scale * log2_e;

  Scratch scratch{task.scratch};
  auto* k_along = scratch.template take<Element>(tile);
  auto* v_across = scratch.template take<Element>(tile);
  auto* q_along = scratch.template take<Element>(tile);
  float* rows = scratch.take(tile);
  float* scores = scratch.take(attention_block * attention_block);
  auto* weights = scratch.template take<Element>(attention_block * attention_block);
  QueryState<Element> states[attention_group];
  for (std::size_t n = 0; n < blocks; ++n) {
    QueryState<Element>& state = states[n];
    const std::size_t block = first_block + n;
    state.rows = rows_in_block(block, task.queries);
    state.entry = task.first_entry[block];
    state.end = task.first_entry[block + 1];
    state.q = scratch.template take<Element>(tile);
    state.out = scratch.take(tile);
    state.most = scratch.take(attention_block);
    state.sum = scratch.take(attention_block);
    Pack::pack_along(rows_from(task.q, block), state.rows, head_size, q_along);
    transpose(q_along, along_pitch, attention_block, depth, state.q, attention_block);
    for (std::size_t i = 0; i < attention_block; i += Isa::width) {
      Isa::store(state.most + i, Isa::splat(-1e30F));  // finite: it can be subtracted from -infinity
      Isa::store(state.sum + i, Isa::splat(0));
    }
  }

  BlockMasks masks;
  for (;;) {
    std::uint32_t keys_block = ~std::uint32_t{0};
    for (std::size_t n = 0; n < blocks; ++n) {
      if (states[n].entry == states[n].end) continue;
      const std::uint32_t next = task.entries[states[n].entry].keys;
      keys_block = next < keys_block ? next : keys_block;
    }
    if (keys_block == ~std::uint32_t{0}) break;
    const std::size_t keys = rows_in_block(keys_block, task.keys);
    Pack::pack_along(rows_from(task.k, keys_block), keys, head_size, k_along);
    Pack::pack_across(rows_from(task.v, keys_block), keys, head_size, v_across);
    const Element* v_left = left_of<Isa, P>(v_across, across_pitch, q_along);  // q_along is no longer needed
    for (std::size_t n = 0; n < blocks; ++n) {
      QueryState<Element>& state = states[n];
      if (state.entry == state.end || task.entries[state.entry].keys != keys_block) continue;
      const std::size_t vectors = (state.rows + Isa::width - 1) / Isa::width;
      product<Isa, P, Stored::by_rows>(keys, vectors, depth, k_along, along_pitch, state.q, attention_block, scores,
                                       attention_block, false);
      find_masks<Isa>(task, first_block + n, state.rows, task.entries[state.entry], masks);
      if (!masks.all_seen) {
        const auto never = Isa::splat(-__builtin_inff());
        for (std::size_t j = 0; j < keys; ++j) {
          for (std::size_t i = 0; i < vectors * Isa::width; i += Isa::width) {
            float* score = scores + j * attention_block + i;
            Isa::store(score, Isa::select(lanes_of<Isa>(masks.seen[j], i), Isa::load(score), never));
          }
        }
      }
      if (masks.all_kept) {
        absorb_scores<Isa, P, false>(scores, keys, c, masks, state, head_size, weights);
      } else {
        absorb_scores<Isa, P, true>(scores, keys, c, masks, state, head_size, weights);
      }
      product<Isa, P, Pack::left>(head_size, vectors, (keys + P::depth - 1) / P::depth, v_left,
                                  left_pitch<Isa, P>(across_pitch), weights, attention_block, state.out, attention_block,
                                  !state.is_first);
      state.is_first = false;
      ++state.entry;
    }
  }
  for (std::size_t n = 0; n < blocks; ++n) finish_queries<Isa>(task, first_block + n, states[n], rows);
}

template <typename Isa, typename V>
void attention(const AttentionForward<V>& task) {
  if (task.queries <= few_queries && task.dropout.threshold == 0) {
    for (std::size_t query = 0; query < task.queries; ++query) attention_of_query<Isa>(task, query);
    return;
  }
  for (std::size_t block = task.first_block; block < task.end_block; block += attention_group) {
    const std::size_t left = task.end_block - block;
    attention_of_group<Isa, V>(task, block, left < attention_group ? left : attention_group);
  }
}

}  // namespace
}  // namespace bitloom::nn
