// Positional popcount: for rows of bits, how many have bit k set, for every k at once. Rows are added into bit planes
// (plane p holds bit p of every column's count) by carry-save adders, 16 rows at a time (Harley and Seal's tree, Warren,
// Hacker's Delight, section 5-1, turned into columns as in Klarqvist, Mula, Lemire: Efficient computation of positional
// population counts using SIMD instructions, 2019); the planes become integers once, at the end.
//
// Included by files of isa/ only. `Isa` is a struct of the including file:
//   Batch                    an xsimd batch of std::uint64_t whose architecture tag has internal linkage (local_arch.h), so
//                            that nothing made from these templates is visible outside the including file;
//   splat(x)                 a batch of copies of x (xsimd 8.1 cannot make one on aarch64 for a tag of ours);
//   load_part(from, words)   the first `words` words at `from`, fewer than a batch holds; the rest of the batch is 0;
//   add_bytes(to, low, high, shift, bias)   to[i] += ((low[i] + 256 high[i]) << shift) + bias for i = 0..7, modulo 2^32;
//   put_bytes(to, low, high) to[i] = low[i] + 256 high[i] for i = 0..7, modulo 2^16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/kernels.h"

namespace bitloom::simd {
namespace {

#define BITLOOM_INLINE inline __attribute__((always_inline))

template <typename Isa>
struct BitPlanes {
  using Batch = typename Isa::Batch;
  static constexpr std::size_t words = sizeof(Batch) / sizeof(std::uint64_t);
  static constexpr unsigned most = 32;  // sums are modulo 2^32

  Batch plane[most + 4];
  unsigned used = 0;        // planes that hold something
  std::uint64_t bound = 0;  // upper bound of a column's count

  BITLOOM_INLINE static Batch zero() { return Isa::splat(0); }

  // Full adder: `sum` keeps its weight, the carry is returned.
  BITLOOM_INLINE static Batch add2(Batch& sum, Batch a, Batch b) {
    const Batch half = sum ^ a;
    const Batch carry = (sum & a) | (half & b);
    sum = half ^ b;
    return carry;
  }

  BITLOOM_INLINE void reserve(unsigned level, std::uint64_t rows) {
    bound += rows << level;
    unsigned needed = 64 - static_cast<unsigned>(__builtin_clzll(bound | 1));
    needed = needed > most ? most : needed;
    needed = needed < level + 4 ? level + 4 : needed;
    while (used < needed) {
      plane[used++] = zero();
      asm volatile("");  // keeps this from becoming a call of memset
    }
  }

  BITLOOM_INLINE void ripple(unsigned level, Batch carry) {
    for (; level < used; ++level) {
      const Batch sum = plane[level] ^ carry;
      carry = plane[level] & carry;
      plane[level] = sum;
    }
  }

  // Adds rows load(0) .. load(rows - 1), each with weight 2^level.
  template <typename Load>
  BITLOOM_INLINE void add_rows(unsigned level, std::size_t rows, Load load) {
    reserve(level, rows);
    Batch ones = plane[level];
    Batch twos = plane[level + 1];
    Batch fours = plane[level + 2];
    Batch eights = plane[level + 3];
    const auto add4 = [&](auto get, std::size_t i) __attribute__((always_inline)) {
      const Batch a = add2(ones, get(i), get(i + 1));
      const Batch b = add2(ones, get(i + 2), get(i + 3));
      return add2(twos, a, b);
    };
    const auto add8 = [&](auto get, std::size_t i) __attribute__((always_inline)) {
      const Batch a = add4(get, i);
      const Batch b = add4(get, i + 4);
      return add2(fours, a, b);
    };
    const auto carry_into = [](Batch & sum, Batch a) __attribute__((always_inline)) {
      const Batch carry = sum & a;
      sum = sum ^ a;
      return carry;
    };
    std::size_t i = 0;
    for (; i + 16 <= rows; i += 16) {
      const Batch a = add8(load, i);
      const Batch b = add8(load, i + 8);
      ripple(level + 4, add2(eights, a, b));
    }
    if (i + 8 <= rows) {
      ripple(level + 4, carry_into(eights, add8(load, i)));
      i += 8;
    }
    if (i + 4 <= rows) {
      ripple(level + 4, carry_into(eights, carry_into(fours, add4(load, i))));
      i += 4;
    }
    if (i < rows) {
      const auto padded = [&](std::size_t k) __attribute__((always_inline)) { return k < rows ? load(k) : zero(); };
      ripple(level + 4, carry_into(eights, carry_into(fours, add4(padded, i))));
    }
    plane[level] = ones;
    plane[level + 1] = twos;
    plane[level + 2] = fours;
    plane[level + 3] = eights;
  }

  // Exchanges the bits `mask << shift` of a with the bits `mask` of b.
  BITLOOM_INLINE static void exchange(Batch& a, Batch& b, int shift, Batch mask) {
    const Batch moved = ((a >> shift) ^ b) & mask;
    b = b ^ moved;
    a = a ^ (moved << shift);
  }

  // Bits 8 group .. 8 group + 7 of every column's count. With r the number of a plane in the group, and a column's number
  // 64 q + 8 j + i (word q, byte j, bit i), three rounds exchange r with i, three more i with j: the column's byte is at
  // byte_of(q, j) + i.
  BITLOOM_INLINE static std::size_t byte_of(std::size_t q, std::size_t j) { return 8 * (words * j + q); }
  BITLOOM_INLINE void columns(unsigned group, std::uint8_t* bytes) const {
    if (8 * group >= used) {
      __builtin_memset(bytes, 0, sizeof(Batch) * 8);
      return;
    }
    Batch r[8];
    for (unsigned p = 0; p < 8; ++p) r[p] = 8 * group + p < used ? plane[8 * group + p] : zero();
    const Batch masks[6] = {Isa::splat(0x5555555555555555U), Isa::splat(0x3333333333333333U), Isa::splat(0x0f0f0f0f0f0f0f0fU),
                            Isa::splat(0x00ff00ff00ff00ffU), Isa::splat(0x0000ffff0000ffffU), Isa::splat(0x00000000ffffffffU)};
#pragma GCC unroll 6
    for (unsigned round = 0; round < 6; ++round) {
      const unsigned distance = 1U << (round % 3);
#pragma GCC unroll 8
      for (unsigned p = 0; p < 8; ++p) {
        if ((p & distance) == 0) exchange(r[p], r[p + distance], 1 << round, masks[round]);
      }
    }
    for (unsigned j = 0; j < 8; ++j) r[j].store_unaligned(reinterpret_cast<std::uint64_t*>(bytes) + words * j);
  }
};

// The columns of one chunk of one list into its sums, for Kernels::accumulate_rows. `first` is the chunk's first word,
// relative to a row's offset. A row with a negative scale -s counts as s * (1 - bit) - s: its complement goes in with
// weight s, and `bias` takes the constants. A scale that is no power of two goes in once per set bit.
template <typename Isa, bool whole>
BITLOOM_INLINE void accumulate_chunk(const RowLists& rows, std::size_t list, const std::uint64_t* first, std::size_t words,
                                     std::int32_t* sums) {
  using Batch = typename Isa::Batch;
  BitPlanes<Isa> planes;
  std::uint32_t bias = 0;
  for (std::size_t s = 0; s < rows.scales; ++s) {
    const std::uint32_t* offsets = rows.offsets + rows.begin[list * rows.scales + s];
    const std::size_t count = rows.begin[list * rows.scales + s + 1] - rows.begin[list * rows.scales + s];
    if (count == 0) continue;
    const bool negative = rows.scale[s] < 0;
    const std::uint32_t scale = static_cast<std::uint32_t>(rows.scale[s]);
    const Batch complement = Isa::splat(negative ? ~std::uint64_t{0} : 0);
    if (negative) bias += scale * static_cast<std::uint32_t>(count);
    for (std::uint32_t magnitude = negative ? 0 - scale : scale; magnitude != 0; magnitude &= magnitude - 1) {
      planes.add_rows(
          static_cast<unsigned>(__builtin_ctz(magnitude)), count, [&](std::size_t i) __attribute__((always_inline)) {
            const std::uint64_t* row = first + offsets[i];
            return (whole ? Batch::load_unaligned(row) : Isa::load_part(row, words)) ^ complement;
          });
    }
  }
  if (planes.used == 0) return;
  alignas(64) std::uint8_t low[64 * BitPlanes<Isa>::words];
  alignas(64) std::uint8_t high[64 * BitPlanes<Isa>::words];
  for (unsigned group = 0; 8 * group < planes.used; group += 2) {
    planes.columns(group, low);
    planes.columns(group + 1, high);
    for (std::size_t q = 0; q < (whole ? BitPlanes<Isa>::words : words); ++q) {
      for (std::size_t j = 0; j < 8; ++j) {
        const std::size_t at = BitPlanes<Isa>::byte_of(q, j);
        Isa::add_bytes(sums + 64 * q + 8 * j, low + at, high + at, 8 * group, group == 0 ? bias : 0);
      }
    }
  }
}

template <typename Isa>
BITLOOM_INLINE void accumulate_rows_with(const RowLists& rows, std::int32_t* sums) {
  constexpr std::size_t step = BitPlanes<Isa>::words;
  for (std::size_t l = 0; l < rows.lists; ++l) {
    for (std::size_t run = 0; run < rows.runs; ++run) {
      const std::uint64_t* first = rows.base + run * rows.pitch;
      std::int32_t* run_sums = sums + (l * rows.runs + run) * rows.run_words * 64;
      std::size_t word = 0;
      for (; word + step <= rows.run_words; word += step) {
        accumulate_chunk<Isa, true>(rows, l, first + word, step, run_sums + word * 64);
      }
      if (word < rows.run_words) {
        accumulate_chunk<Isa, false>(rows, l, first + word, rows.run_words - word, run_sums + word * 64);
      }
    }
  }
}

// Kernels::pool_counts: the rows are a cell's pixels.
template <typename Isa>
BITLOOM_INLINE void pool_counts_with(const std::uint64_t* bits, std::size_t height, std::size_t width, std::size_t words,
                                     std::size_t pitch, std::size_t grid, std::int16_t* counts) {
  using Batch = typename Isa::Batch;
  constexpr std::size_t step = BitPlanes<Isa>::words;
  for (std::size_t a = 0; a < grid; ++a) {
    for (std::size_t b = 0; b < grid; ++b) {
      const std::size_t left = b * width / grid;
      const std::size_t columns = (b + 1) * width / grid - left;
      for (std::size_t word = 0; word < words; word += step) {
        const std::size_t valid = words - word < step ? words - word : step;
        BitPlanes<Isa> planes;
        for (std::size_t i = a * height / grid; i < (a + 1) * height / grid; ++i) {
          const std::uint64_t* row = bits + i * pitch + left * words + word;
          planes.add_rows(
              0, columns, [&](std::size_t j) __attribute__((always_inline)) {
                const std::uint64_t* pixel = row + j * words;
                return valid == step ? Batch::load_unaligned(pixel) : Isa::load_part(pixel, valid);
              });
        }
        alignas(64) std::uint8_t low[64 * step];
        alignas(64) std::uint8_t high[64 * step];
        planes.columns(0, low);
        planes.columns(1, high);
        std::int16_t* cell = counts + ((a * grid + b) * words + word) * 64;
        for (std::size_t q = 0; q < valid; ++q) {
          for (std::size_t j = 0; j < 8; ++j) {
            const std::size_t at = BitPlanes<Isa>::byte_of(q, j);
            Isa::put_bytes(cell + 64 * q + 8 * j, low + at, high + at);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace bitloom::simd
