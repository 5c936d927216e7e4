// Column sums of lists of bit rows: carry-save counters in bit planes, one vector of 512 columns at a time.
// Private to simd/isa; see avx512_common.h.
#pragma once

#include "simd/isa/avx512_common.h"

namespace bitloom::simd {
namespace {

inline constexpr int ternary_carry_of_complements = 0x17;  // a == c ? ~a : ~b
inline constexpr int ternary_not = 0x55;                   // ~c
inline constexpr int ternary_select = 0xCA;                // a ? b : c

inline constexpr int max_planes = 16;                // columns count up to 2^16 - 1 before they are expanded
inline constexpr std::uint32_t max_weight = 0xFFFF;  // the same
inline constexpr int max_entry_plane = 8;            // scales 2^0 .. 2^8 share one counter

// Counts 512 columns of bits in planes: plane j holds bit j of every column's count.
class ColumnCounter {
 public:
  void clear() { planes_ = 0; }
  int planes() const { return planes_; }

  // Makes room for counts of up to `planes` bits.
  void grow(int planes) {
    const __m512i zero = keep(_mm512_setzero_si512());  // or else GCC calls memset for these few vectors
    while (planes_ < planes) plane_[planes_++] = zero;
  }

  // Adds the runs at base + offset (words, those of `mask`) for `count` offsets, each with weight 2^j; grow() has made room
  // for the sum. With kNegative it adds their complement instead: -2^j x = 2^j (1 - x) - 2^j, so that rows of both signs
  // share the planes and the caller subtracts a constant. Rows are added in blocks; returns how many empty ones were added
  // to fill the last block.
  template <bool kNegative, bool kMasked>
  std::size_t add_rows(const std::uint64_t* base, __mmask8 mask, const std::uint32_t* offsets, std::size_t count, int j) {
    const Rows<kMasked> rows{base, mask, offsets};
    __m512i* const plane = plane_ + j;
    __m512i ones = plane[0], twos = plane[1], fours = plane[2];
    std::size_t r = 0;
    if (count >= 32) {
      __m512i eights = plane[3], sixteens = plane[4];
      do {
        __m512i c[2];
#pragma GCC unroll 2
        for (std::size_t half = 0; half < 2; ++half) {
          const __m512i a = add_8<kNegative>(rows, r + 16 * half, ones, twos, fours);
          const __m512i b = add_8<kNegative>(rows, r + 16 * half + 8, ones, twos, fours);
          c[half] = full_add(eights, a, b);
        }
        carry(j + 5, full_add(sixteens, c[0], c[1]));
        r += 32;
      } while (r + 32 <= count);
      plane[3] = eights, plane[4] = sixteens;
    }
    for (; r + 8 <= count; r += 8) carry(j + 3, add_8<kNegative>(rows, r, ones, twos, fours));
    std::size_t empty = 0;
    if (const std::size_t left = count - r; left > 4) {
      empty = 8 - left;
      carry(j + 3, add_8<kNegative>(LastRows(mask, base, offsets + r, left), 0, ones, twos, fours));
    } else if (left > 0) {
      empty = 4 - left;
      const __m512i c = add_4<kNegative>(LastRows(mask, base, offsets + r, left), 0, ones, twos);
      const __m512i sum = _mm512_xor_si512(fours, c);
      carry(j + 3, _mm512_and_si512(fours, c));
      fours = sum;
    }
    plane[0] = ones, plane[1] = twos, plane[2] = fours;
    return empty;
  }

  // sums[0 .. columns) += multiplier * (count - bias).
  void expand(std::size_t columns, std::int32_t multiplier, std::int32_t bias, std::int32_t* sums) const {
    alignas(64) std::uint8_t low[512];
    alignas(64) std::uint8_t high[512];
    to_bytes(0, low);
    const bool wide = planes_ > 8;
    if (wide) to_bytes(8, high);
    const __m512i factor = _mm512_set1_epi32(multiplier);
    const __m512i minus = _mm512_set1_epi32(bias);
    for (std::size_t k = 0; k < columns; k += lanes) {
      __m512i value = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(low + k)));
      if (wide) {
        const __m512i upper = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(high + k)));
        value = _mm512_add_epi32(value, _mm512_slli_epi32(upper, 8));
      }
      value = _mm512_sub_epi32(value, minus);
      if (multiplier != 1) value = _mm512_mullo_epi32(value, factor);
      _mm512_storeu_si512(sums + k, _mm512_add_epi32(_mm512_loadu_si512(sums + k), value));
    }
  }

 private:
  // Row r of a list.
  template <bool kMasked>
  struct Rows {
    const std::uint64_t* base;
    __mmask8 mask;
    const std::uint32_t* offsets;
    BITLOOM_INLINE __m512i load(std::size_t r) const {
      if constexpr (kMasked) {
        return _mm512_maskz_loadu_epi64(mask, base + offsets[r]);
      } else {
        return _mm512_loadu_si512(base + offsets[r]);
      }
    }
  };

  // The last rows of a list, followed by empty ones.
  struct LastRows {
    LastRows(__mmask8 mask, const std::uint64_t* base, const std::uint32_t* offsets, std::size_t count) {
      for (std::size_t r = 0; r < 8; ++r) {
        row[r] = base + offsets[r < count ? r : 0];
        masks[r] = r < count ? mask : static_cast<__mmask8>(0);
      }
    }
    BITLOOM_INLINE __m512i load(std::size_t r) const { return _mm512_maskz_loadu_epi64(masks[r], row[r]); }
    const std::uint64_t* row[8];
    __mmask8 masks[8];
  };

  // The add_<n> add n rows from row r on and return the carry of weight n. Complementing two rows leaves their sum as it is.
  template <bool kNegative, class Rows>
  static BITLOOM_INLINE __m512i add_2(const Rows& rows, std::size_t r, __m512i& ones) {
    const __m512i a = rows.load(r);
    const __m512i b = rows.load(r + 1);
    ones = _mm512_ternarylogic_epi32(ones, a, b, ternary_xor);
    return _mm512_ternarylogic_epi32(a, ones, b, kNegative ? ternary_carry_of_complements : ternary_carry);
  }
  template <bool kNegative, class Rows>
  static BITLOOM_INLINE __m512i add_4(const Rows& rows, std::size_t r, __m512i& ones, __m512i& twos) {
    const __m512i a = add_2<kNegative>(rows, r, ones);
    const __m512i b = add_2<kNegative>(rows, r + 2, ones);
    return full_add(twos, a, b);
  }
  template <bool kNegative, class Rows>
  static BITLOOM_INLINE __m512i add_8(const Rows& rows, std::size_t r, __m512i& ones, __m512i& twos, __m512i& fours) {
    const __m512i a = add_4<kNegative>(rows, r, ones, twos);
    const __m512i b = add_4<kNegative>(rows, r + 4, ones, twos);
    return full_add(fours, a, b);
  }

  // Ripples a carry through the planes from j on; none leaves the last one.
  BITLOOM_INLINE void carry(int j, __m512i c) {
#pragma GCC unroll 1
    for (; j < planes_; ++j) {
      const __m512i sum = _mm512_xor_si512(plane_[j], c);
      c = _mm512_and_si512(plane_[j], c);
      plane_[j] = sum;
    }
  }

  // Planes first .. first + 7 as one byte per column, in order: an 8 x 8 transposition of bits
  // across the vectors (Warren, Hacker's Delight, section 7-3), after which vector i holds the columns 8 k + i in its bytes
  // k, and an interleaving of bytes.
  void to_bytes(int first, std::uint8_t* bytes) const {
    __m512i v[8], u[8];
    for (int j = 0; j < 8; ++j) v[j] = first + j < planes_ ? plane_[first + j] : _mm512_setzero_si512();
    const __m512i mask4 = _mm512_set1_epi8(0x0F), mask2 = _mm512_set1_epi8(0x33), mask1 = _mm512_set1_epi8(0x55);
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) {
      u[j] = select(mask4, v[j], _mm512_slli_epi64(v[j + 4], 4));
      u[j + 4] = select(mask4, _mm512_srli_epi64(v[j], 4), v[j + 4]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) {
      const int i = j / 2 * 4 + j % 2;
      v[i] = select(mask2, u[i], _mm512_slli_epi64(u[i + 2], 2));
      v[i + 2] = select(mask2, _mm512_srli_epi64(u[i], 2), u[i + 2]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) {
      const int i = 2 * j;
      u[i] = select(mask1, v[i], _mm512_slli_epi64(v[i + 1], 1));
      u[i + 1] = select(mask1, _mm512_srli_epi64(v[i], 1), v[i + 1]);
    }
    // Bytes of vectors i and i + 4 side by side, then pairs, then fours: each 128-bit quarter q of the result m holds the
    // columns of bytes 16 q + 2 m and 16 q + 2 m + 1 of the planes.
    __m512i w[8];
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm512_unpacklo_epi8(u[2 * i], u[2 * i + 1]);
      w[i + 4] = _mm512_unpackhi_epi8(u[2 * i], u[2 * i + 1]);
    }
#pragma GCC unroll 8
    for (int half = 0; half < 2; ++half) {
      const __m512i* x = w + 4 * half;
      const __m512i a = _mm512_unpacklo_epi16(x[0], x[1]), b = _mm512_unpacklo_epi16(x[2], x[3]);
      const __m512i c = _mm512_unpackhi_epi16(x[0], x[1]), d = _mm512_unpackhi_epi16(x[2], x[3]);
      store_quarters(bytes, 4 * half, _mm512_unpacklo_epi32(a, b));
      store_quarters(bytes, 4 * half + 1, _mm512_unpackhi_epi32(a, b));
      store_quarters(bytes, 4 * half + 2, _mm512_unpacklo_epi32(c, d));
      store_quarters(bytes, 4 * half + 3, _mm512_unpackhi_epi32(c, d));
    }
  }
  static BITLOOM_INLINE __m512i select(__m512i mask, __m512i set, __m512i unset) {
    return _mm512_ternarylogic_epi32(mask, set, unset, ternary_select);
  }
  static BITLOOM_INLINE void store_quarters(std::uint8_t* bytes, int m, __m512i vector) {
    __m128i* to = reinterpret_cast<__m128i*>(bytes + 16 * m);
    _mm_store_si128(to, _mm512_castsi512_si128(vector));
    _mm_store_si128(to + 8, _mm512_extracti32x4_epi32(vector, 1));
    _mm_store_si128(to + 16, _mm512_extracti32x4_epi32(vector, 2));
    _mm_store_si128(to + 24, _mm512_extracti32x4_epi32(vector, 3));
  }

  __m512i plane_[max_planes];
  int planes_ = 0;
};

// The plane at which rows of this scale enter a counter, or -1 if it is no power of two of either sign within reach.
inline int entry_plane(std::int32_t scale) {
  const std::uint32_t size = scale < 0 ? 0U - static_cast<std::uint32_t>(scale) : static_cast<std::uint32_t>(scale);
  if (size == 0 || (size & (size - 1)) != 0) return -1;
  const int j = __builtin_ctz(size);
  return j <= max_entry_plane ? j : -1;
}

// The sums of one run's chunk of up to 8 words over the rows of one list.
template <bool kMasked>
class ChunkSums {
 public:
  ChunkSums(const std::uint64_t* base, std::size_t words, std::int32_t* sums) : base_(base), words_(words), sums_(sums) {}

  // Rows of scale +-2^j.
  template <bool kNegative>
  void add(const std::uint32_t* offsets, std::size_t count, int j) {
    const __mmask8 mask = static_cast<__mmask8>((1U << words_) - 1);
    while (count != 0) {
      // With the empty rows of the last block.
      const std::size_t room = ((max_weight - weight_) >> j) / 8 * 8;
      const std::size_t filled = count <= room ? (count + 7) / 8 * 8 : room;
      if (filled == 0) {
        flush(1);
        continue;
      }
      const std::size_t part = count < filled ? count : filled;
      counter_.grow(32 - __builtin_clz(weight_ + static_cast<std::uint32_t>(filled << j)));
      const std::size_t empty = counter_.template add_rows<kNegative, kMasked>(base_, mask, offsets, part, j);
      weight_ += static_cast<std::uint32_t>(part + (kNegative ? empty : 0)) << j;
      bias_ += kNegative ? static_cast<std::uint32_t>(part + empty) << j : 0;
      offsets += part;
      count -= part;
    }
  }

  // Rows of any scale: a counter of their own, multiplied at the end.
  void add_scaled(const std::uint32_t* offsets, std::size_t count, std::int32_t scale) {
    flush(1);
    while (count != 0) {
      const std::size_t part = count < max_weight / 8 * 8 ? count : max_weight / 8 * 8;
      add<false>(offsets, part, 0);
      flush(scale);
      offsets += part;
      count -= part;
    }
  }

  void flush(std::int32_t multiplier) {
    if (weight_ != 0) counter_.expand(words_ * word_bits, multiplier, static_cast<std::int32_t>(bias_), sums_);
    counter_.clear();
    weight_ = bias_ = 0;
  }

 private:
  const std::uint64_t* base_;
  std::size_t words_;
  std::int32_t* sums_;
  std::uint32_t weight_ = 0, bias_ = 0;
  ColumnCounter counter_;
};

template <bool kMasked>
void accumulate_chunk(const RowLists& rows, const std::uint32_t* begin, const std::uint64_t* base, std::size_t words,
                      std::int32_t* sums) {
  ChunkSums<kMasked> chunk(base, words, sums);
  for (std::size_t s = 0; s < rows.scales; ++s) {
    const std::size_t count = begin[s + 1] - begin[s];
    if (count == 0) continue;
    const std::uint32_t* offsets = rows.offsets + begin[s];
    const int j = entry_plane(rows.scale[s]);
    if (j < 0) {
      chunk.add_scaled(offsets, count, rows.scale[s]);
    } else if (rows.scale[s] < 0) {
      chunk.template add<true>(offsets, count, j);
    } else {
      chunk.template add<false>(offsets, count, j);
    }
  }
  chunk.flush(1);
}

inline void accumulate_rows(const RowLists& rows, std::int32_t* sums) {
  constexpr std::size_t chunk = sizeof(__m512i) / sizeof(std::uint64_t);
  for (std::size_t l = 0; l < rows.lists; ++l) {
    const std::uint32_t* begin = rows.begin + l * rows.scales;
    if (begin[0] == begin[rows.scales]) {
      sums += rows.runs * rows.run_words * word_bits;
      continue;
    }
    for (std::size_t run = 0; run < rows.runs; ++run) {
      const std::uint64_t* base = rows.base + run * rows.pitch;
      std::size_t word = 0;
      for (; word + chunk <= rows.run_words; word += chunk, sums += chunk * word_bits)
        accumulate_chunk<false>(rows, begin, base + word, chunk, sums);
      const std::size_t tail = rows.run_words - word;
      if (tail != 0) accumulate_chunk<true>(rows, begin, base + word, tail, sums);
      sums += tail * word_bits;
    }
  }
}

}  // namespace
}  // namespace bitloom::simd
