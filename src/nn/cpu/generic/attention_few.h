// Attention of few queries, as a step with a cache of keys and values has them: keys and values are read where they are, once,
// with no tile to pack. Scores of a block of keys, and a softmax that is corrected as blocks arrive (Milakov, Gimelshein 2018).
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/attention_tiles.h"
#include "nn/cpu/generic/math.h"

namespace bitloom::nn {
namespace {

// Queries up to which packing keys and values costs more than it saves.
inline constexpr std::size_t few_queries = 4;

// The products of a query with `count` keys, which lie `pitch` apart.
template <typename Isa, std::size_t count, typename V>
BITLOOM_INLINE void products_with_keys(const V* q, const V* keys, std::size_t pitch, std::size_t head_size, float* scores) {
  typename Isa::Float sums[count];
  for (auto& sum : sums) sum = Isa::splat(0);
  for_vectors<Isa>(
      head_size, [&](std::size_t i, auto part) __attribute__((always_inline)) {
        const auto x = part.load(q + i);
#pragma GCC unroll 4
        for (std::size_t n = 0; n < count; ++n) sums[n] = Isa::fma(x, part.load(keys + n * pitch + i), sums[n]);
      });
#pragma GCC unroll 4
  for (std::size_t n = 0; n < count; ++n) scores[n] = Isa::sum(sums[n]);
}

// out += the sum of weights[n] values[n].
template <typename Isa, std::size_t count, typename V>
BITLOOM_INLINE void add_weighted(const float* weights, const V* values, std::size_t pitch, std::size_t head_size, float* out) {
  for_vectors<Isa>(
      head_size, [=](std::size_t i, auto part) __attribute__((always_inline)) {
        auto sum = part.load(out + i);
#pragma GCC unroll 4
        for (std::size_t n = 0; n < count; ++n) sum = Isa::fma(Isa::splat(weights[n]), part.load(values + n * pitch + i), sum);
        part.store(out + i, sum);
      });
}

// A weight as blocks of queries multiply by it, in bf16 where their products are of bf16: steps with a cache then give what a
// pass over all tokens gives.
template <typename Isa, typename V>
BITLOOM_INLINE typename Isa::Float as_factor(typename Isa::Float weight) {
  if constexpr (Isa::template Product<V>::depth == 1) {
    return weight;
  } else {
    V rounded[Isa::width];
    Isa::store(rounded, weight);
    return Isa::load(rounded);
  }
}

// Calls four(j) for each four neighbouring bits from j on that are all set, and one(j) for the others that are.
template <typename Four, typename One>
BITLOOM_INLINE void for_fours(std::uint64_t bits, Four four, One one) {
  while (bits != 0) {
    const auto j = static_cast<std::size_t>(__builtin_ctzll(bits));
    if (((bits >> j) & 0xF) == 0xF) {
      four(j);
      bits &= ~(std::uint64_t{0xF} << j);
    } else {
      one(j);
      bits &= bits - 1;
    }
  }
}

template <typename Isa, typename V>
void attention_of_query(const AttentionForward<V>& task, std::size_t query) {
  using Float = typename Isa::Float;
  const V* q = task.q.data + query * task.q.pitch;
  float* out = task.scratch;
  alignas(64) float scores[attention_block];
  const float c = task.scale * log2_e;
  const Float factor = Isa::splat(c);
  __builtin_memset(out, 0, padded_head(task.head_size) * sizeof(float));
  float most = -1e30F, sum = 0;  // finite: it can be subtracted from -infinity
  const std::size_t block = query / attention_block;
  for (std::uint32_t e = task.first_entry[block]; e < task.first_entry[block + 1]; ++e) {
    const AttentionEntry& entry = task.entries[e];
    const std::size_t keys = rows_in_block(entry.keys, task.keys);
    std::uint64_t seen = entry.bits == nullptr ? ~std::uint64_t{0} : entry.bits[query % attention_block];
    if (keys < attention_block) seen &= (std::uint64_t{1} << keys) - 1;
    if (seen == 0) continue;
    const V* k = task.k.data + entry.keys * attention_block * task.k.pitch;
    const V* v = task.v.data + entry.keys * attention_block * task.v.pitch;
    // Keys that are seen come in runs: four at a time.
    for (std::size_t i = 0; i < attention_block; i += Isa::width) Isa::store(scores + i, Isa::splat(-__builtin_inff()));
    for_fours(
        seen,
        [&](std::size_t j) __attribute__((always_inline)) {
          products_with_keys<Isa, 4>(q, k + j * task.k.pitch, task.k.pitch, task.head_size, scores + j);
        },
        [&](std::size_t j) __attribute__((always_inline)) {
          products_with_keys<Isa, 1>(q, k + j * task.k.pitch, task.k.pitch, task.head_size, scores + j);
        });
    Float top = Isa::splat(most);
    for (std::size_t i = 0; i < attention_block; i += Isa::width) top = Isa::max(top, Isa::load(scores + i));
    const float risen = Isa::largest(top);
    const Float shift = Isa::splat(risen) * factor;
    Float sums = Isa::splat(0);
    for (std::size_t i = 0; i < attention_block; i += Isa::width) {
      const Float weight = exp2<Isa>(Isa::fma(Isa::load(scores + i), factor, Isa::splat(0) - shift));
      sums = sums + weight;
      Isa::store(scores + i, as_factor<Isa, V>(weight));
    }
    if (risen > most && sum != 0) {
      alignas(64) float shrink[Isa::width];
      Isa::store(shrink, exp2<Isa>(Isa::fma(Isa::splat(most), factor, Isa::splat(0) - shift)));
      sum *= shrink[0];
      const Float by = Isa::splat(shrink[0]);
      for_vectors<Isa>(
          task.head_size, [=](std::size_t i, auto part)
                              __attribute__((always_inline)) { part.store(out + i, part.load(out + i) * by); });
    }
    most = risen;
    sum += Isa::sum(sums);
    for_fours(
        seen,
        [&](std::size_t j) __attribute__((always_inline)) {
          add_weighted<Isa, 4>(scores + j, v + j * task.v.pitch, task.v.pitch, task.head_size, out);
        },
        [&](std::size_t j) __attribute__((always_inline)) {
          add_weighted<Isa, 1>(scores + j, v + j * task.v.pitch, task.v.pitch, task.head_size, out);
        });
  }
  alignas(64) float lse[Isa::width];
  Isa::store(lse, Isa::fma(Isa::splat(most), Isa::splat(task.scale), log<Isa>(Isa::splat(sum))));
  task.lse[query] = lse[0];
  V* to = task.out.data + query * task.out.pitch;
  const Float by = Isa::splat(1.0F) / Isa::splat(sum);
  for_vectors<Isa>(
      task.head_size, [=](std::size_t i, auto part)
                          __attribute__((always_inline)) { part.store(to + i, part.load(out + i) * by); });
}

}  // namespace
}  // namespace bitloom::nn
