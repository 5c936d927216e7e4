// Shared by attention's forward and backward passes: tiles packed from the rows of a head, transposition, masks of a block.
//
// A tile has 64 rows (tokens; those beyond the last are 0) of padded_head(D) columns (beyond D 0). Scores are formed
// transposed, S^T (keys, queries) = K Q^T: then the maximum and the sum of a softmax go over rows of vectors, no vector is ever
// summed across its lanes, and for every D all vectors are full. The operands of products (matrix_product.h) are therefore
//   along    (tokens, D / depth): A of products over D
//   across   (tokens / depth, D): A, transposed, or B of products over tokens
//   left     (D, tokens / depth): A of products over tokens, where these want it by rows (Packing::left)
//   turned   (D / depth, tokens): B of products over D
// and along = across where depth is 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/matrix_product.h"
#include "nn/cpu/generic/random_bits.h"

namespace bitloom::nn {
namespace {

inline constexpr float log2_e = 1.442695041F;

// Every product's own: how values become its elements, and vectors of a block its operands.
template <typename Isa, typename P>
struct Packing;

template <typename Isa>
struct Packing<Isa, FloatProduct<Isa>> {
  static constexpr bool one_format = true;            // along and across
  static constexpr Stored left = Stored::by_columns;  // of A in products over tokens: by columns, it is as across

  template <typename V>
  static void pack_along(HeadRows<const V> from, std::size_t rows, std::size_t head_size, float* to) {
    const std::size_t pitch = padded_head(head_size);
    for (std::size_t row = 0; row < rows; ++row) {
      const V* x = from.data + row * from.pitch;
      float* y = to + row * pitch;
      for_vectors<Isa>(
          head_size, [=](std::size_t i, auto part) __attribute__((always_inline)) { Isa::store(y + i, part.load(x + i)); });
      const std::size_t written = (head_size + Isa::width - 1) / Isa::width * Isa::width;
      if (written < pitch) __builtin_memset(y + written, 0, (pitch - written) * sizeof(float));
    }
    if (rows < attention_block) __builtin_memset(to + rows * pitch, 0, (attention_block - rows) * pitch * sizeof(float));
  }
  template <typename V>
  static void pack_across(HeadRows<const V> from, std::size_t rows, std::size_t head_size, float* to) {
    pack_along(from, rows, head_size, to);
  }

  // Rows `row` and row + 1 of a block, the 64 columns along vectors.
  static BITLOOM_INLINE void put_across(float* to, std::size_t row, std::size_t column, typename Isa::Float even,
                                        typename Isa::Float odd) {
    Isa::store(to + row * attention_block + column, even);
    Isa::store(to + (row + 1) * attention_block + column, odd);
  }
  static BITLOOM_INLINE void put_along(float* to, std::size_t row, std::size_t column, typename Isa::Float x) {
    Isa::store(to + row * attention_block + column, x);
  }
};

typedef std::int32_t FourWords __attribute__((vector_size(16)));

template <typename Element>
BITLOOM_INLINE FourWords load_four(const Element* from) {
  FourWords x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

// to (columns, rows) = from (rows, columns), elements of 32 bits; both lengths are rounded up to multiples of 4.
template <typename Element>
__attribute__((noinline)) void transpose(const Element* from, std::size_t from_pitch, std::size_t rows, std::size_t columns,
                                         Element* to, std::size_t to_pitch) {
  for (std::size_t c = 0; c < columns; c += 4) {
    for (std::size_t r = 0; r < rows; r += 4) {
      const Element* in = from + r * from_pitch + c;
      const FourWords a = load_four(in), b = load_four(in + from_pitch);
      const FourWords d = load_four(in + 2 * from_pitch), e = load_four(in + 3 * from_pitch);
      const FourWords ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const FourWords de_low = __builtin_shufflevector(d, e, 0, 4, 1, 5), de_high = __builtin_shufflevector(d, e, 2, 6, 3, 7);
      const FourWords column[4] = {
          __builtin_shufflevector(ab_low, de_low, 0, 1, 4, 5), __builtin_shufflevector(ab_low, de_low, 2, 3, 6, 7),
          __builtin_shufflevector(ab_high, de_high, 0, 1, 4, 5), __builtin_shufflevector(ab_high, de_high, 2, 3, 6, 7)};
      Element* out = to + c * to_pitch + r;
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) __builtin_memcpy(out + i * to_pitch, &column[i], sizeof column[i]);
    }
  }
}

// A of products over tokens, of a tile across: that itself, or in `left`.
template <typename Isa, typename P>
BITLOOM_INLINE const typename P::Element* left_of(const typename P::Element* across, std::size_t pitch,
                                                  typename P::Element* left) {
  if constexpr (Packing<Isa, P>::left == Stored::by_columns) {
    return across;
  } else {
    transpose(across, pitch, attention_block / P::depth, pitch, left, attention_block / P::depth);
    return left;
  }
}
template <typename Isa, typename P>
constexpr std::size_t left_pitch(std::size_t across_pitch) {
  return Packing<Isa, P>::left == Stored::by_columns ? across_pitch : attention_block / P::depth;
}

// Bit j of word i becomes bit i of word j (Warren, Hacker's Delight, section 7-3).
BITLOOM_INLINE void transpose_bits(std::uint64_t* words) {
  std::uint64_t low = 0x00000000FFFFFFFFU;
  for (unsigned step = 32; step != 0; step /= 2, low ^= low << step) {
    for (unsigned k = 0; k < 64; k = ((k | step) + 1) & ~step) {
      const std::uint64_t moved = ((words[k] >> step) ^ words[k | step]) & low;
      words[k] ^= moved << step;
      words[k | step] ^= moved;
    }
  }
}

// Masks of a block, per key a word whose bit i says something of query i.
struct BlockMasks {
  bool all_seen = true;
  bool all_kept = true;
  std::uint64_t seen[attention_block];
  std::uint64_t kept[attention_block];
};

template <typename Isa, typename V>
__attribute__((noinline)) void find_masks(const AttentionHead<V>& head, std::size_t query_block, std::size_t rows,
                                          const AttentionEntry& entry, BlockMasks& masks) {
  masks.all_seen = entry.bits == nullptr;
  if (!masks.all_seen) {
    __builtin_memcpy(masks.seen, entry.bits, sizeof masks.seen);
    transpose_bits(masks.seen);
  }
  masks.all_kept = head.dropout.threshold == 0;
  if (masks.all_kept) return;
  // The 64 keys of a query touch nine groups of eight elements where they do not begin with one.
  constexpr std::size_t per_query = attention_block / 8 + 1;
  std::uint64_t groups[attention_block * per_query];
  std::uint8_t bits[attention_block * per_query + 8];
  const std::uint64_t first = head.first_element + query_block * attention_block * head.keys + entry.keys * attention_block;
  for (std::size_t q = 0; q < rows; ++q) {
    const std::uint64_t group = (first + q * head.keys) / 8;
    for (std::size_t i = 0; i < per_query; ++i) groups[q * per_query + i] = group + i;
  }
  const std::size_t used = rows * per_query;
  for (std::size_t i = used; i < (used + random_at_once - 1) / random_at_once * random_at_once; ++i) groups[i] = 0;
  keep_bits<Isa>(head.dropout, groups, used, bits);
  for (std::size_t q = 0; q < attention_block; ++q) {
    masks.kept[q] = 0;
    if (q >= rows) continue;
    const std::uint64_t shift = (first + q * head.keys) % 8;
    std::uint64_t word;
    __builtin_memcpy(&word, bits + q * per_query, sizeof word);
    masks.kept[q] = word >> shift;
    if (shift != 0) masks.kept[q] |= std::uint64_t{bits[q * per_query + 8]} << (64 - shift);
  }
  transpose_bits(masks.kept);
}

template <typename Isa>
BITLOOM_INLINE typename Isa::Mask lanes_of(std::uint64_t word, std::size_t column) {
  return Isa::mask_of(static_cast<std::uint32_t>(word >> column));
}

// The rows of a tile of floats times `factor` into a head.
template <typename Isa, typename V>
BITLOOM_INLINE void unpack_rows(const float* from, std::size_t rows, std::size_t head_size, float factor, HeadRows<V> to) {
  const std::size_t pitch = padded_head(head_size);
  const auto scale = Isa::splat(factor);
  for (std::size_t row = 0; row < rows; ++row) {
    const float* x = from + row * pitch;
    V* y = to.data + row * to.pitch;
    for_vectors<Isa>(
        head_size, [=](std::size_t i, auto part)
                       __attribute__((always_inline)) { part.store(y + i, Isa::load(x + i) * scale); });
  }
}

template <typename T>
BITLOOM_INLINE HeadRows<T> rows_from(HeadRows<T> rows, std::size_t block) {
  rows.data += block * attention_block * rows.pitch;
  return rows;
}

// How many tokens the block has.
BITLOOM_INLINE std::size_t rows_in_block(std::size_t block, std::size_t tokens) {
  const std::size_t left = tokens - block * attention_block;
  return left < attention_block ? left : attention_block;
}

// Hands out pieces of a task's scratch memory; every piece is a multiple of 64 bytes.
struct Scratch {
  float* next;
  template <typename Element = float>
  BITLOOM_INLINE Element* take(std::size_t floats) {
    float* piece = next;
    next += floats;
    return reinterpret_cast<Element*>(piece);
  }
};

}  // namespace
}  // namespace bitloom::nn
