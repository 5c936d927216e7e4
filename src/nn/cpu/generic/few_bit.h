// An activation's input as few-bit training keeps it: the number of its interval, packed into few bits (nn/bit_pack.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/activations.h"
#include "nn/cpu/generic/elements.h"

namespace bitloom::nn {
namespace {

// Numbers that are packed at once. They pass through memory from vectors to words to bytes; enough that what is read in
// another width than it was written in has reached the cache by then.
inline constexpr std::size_t few_bit_block = 512;
typedef std::uint64_t EightWords __attribute__((vector_size(64)));

// Packs each word's eight numbers below 2^bits, one per byte, into its low 8 bits bits, in order: neighbours move together,
// then pairs, then fours.
BITLOOM_INLINE void squeeze(EightWords& x, unsigned bits) {
  constexpr std::uint64_t bytes = 0x00FF00FF00FF00FFU, pairs = 0x0000FFFF0000FFFFU, fours = 0x00000000FFFFFFFFU;
  x = (x & bytes) | ((x & ~bytes) >> (8 - bits));
  x = (x & pairs) | ((x & ~pairs) >> (16 - 2 * bits));
  x = (x & fours) | ((x & ~fours) >> (32 - 4 * bits));
}
BITLOOM_INLINE void spread(EightWords& x, unsigned bits) {
  const std::uint64_t one = (std::uint64_t{1} << bits) - 1;
  const std::uint64_t two = (std::uint64_t{1} << (2 * bits)) - 1;
  const std::uint64_t four = (std::uint64_t{1} << (4 * bits)) - 1;
  x = (x & four) | (((x >> (4 * bits)) & four) << 32U);
  const std::uint64_t low_pairs = two | (two << 32U);
  x = (x & low_pairs) | (((x >> (2 * bits)) & low_pairs) << 16U);
  const std::uint64_t low_ones = one * 0x0001000100010001U;
  x = (x & low_ones) | (((x >> bits) & low_ones) << 8U);
}

// The number of boundaries below each of four vectors, in floats; `places` holds them for lookup().
template <typename Isa>
BITLOOM_INLINE void count_boundaries(const typename Isa::Float* value, typename Isa::Float* below, const float* boundaries,
                                     const float* places, unsigned bits) {
  using Float = typename Isa::Float;
  constexpr std::size_t vectors = 4;
  const Float zero = Isa::splat(0);
  if (Isa::fast_lookup && bits >= 3 && bits <= 4) {
    // Bisection: whether the boundary in the middle of those that are left is below x is a bit of the number.
    typename Isa::Word index[vectors];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < vectors; ++k) index[k] = Isa::word_splat(0);
    for (unsigned step = 1U << (bits - 1); step != 0; step /= 2) {
      const auto advance = Isa::as_float(Isa::word_splat(step));
#pragma GCC unroll 4
      for (std::size_t k = 0; k < vectors; ++k) {
        const Float boundary = Isa::lookup(places, index[k] + Isa::word_splat(step - 1));
        index[k] = index[k] + Isa::as_word(Isa::select(Isa::less(boundary, value[k]), advance, zero));
      }
    }
#pragma GCC unroll 4
    for (std::size_t k = 0; k < vectors; ++k) below[k] = Isa::to_float(index[k]);
    return;
  }
#pragma GCC unroll 4
  for (std::size_t k = 0; k < vectors; ++k) below[k] = zero;
  for (std::size_t b = 0; b + 1 < std::size_t{1} << bits; ++b) {
    const Float boundary = Isa::splat(boundaries[b]);
#pragma GCC unroll 4
    for (std::size_t k = 0; k < vectors; ++k) {
      below[k] = below[k] + Isa::select(Isa::less(boundary, value[k]), Isa::splat(1), zero);
    }
  }
}

// The same for few bits where masks of lanes are bits of a register: every bit of the numbers of 16 elements is one comparison,
// with the boundary in the middle of those that are left, and the masks are interleaved.
template <typename Isa, unsigned kBits>
BITLOOM_INLINE std::uint64_t interleaved_indices(typename Isa::Float value, const typename Isa::Float* boundary,
                                                 std::uint32_t lanes) {
  using Float = typename Isa::Float;
  constexpr std::uint64_t every[] = {0, 0xFFFF, 0x55555555, 0x249249249249, 0x1111111111111111};
  typename Isa::Mask above[kBits];
  std::uint64_t result = 0;
#pragma GCC unroll 4
  for (unsigned level = 0; level < kBits; ++level) {
    const unsigned step = 1U << (kBits - 1 - level);
    Float middle[1U << (kBits - 1)];
#pragma GCC unroll 8
    for (unsigned i = 0; i < 1U << level; ++i) middle[i] = boundary[(2 * i + 1) * step - 1];
#pragma GCC unroll 4
    for (unsigned upper = level; upper > 0; --upper) {
#pragma GCC unroll 8
      for (unsigned i = 0; i < 1U << (upper - 1); ++i) {
        middle[i] = Isa::select(above[upper - 1], middle[2 * i + 1], middle[2 * i]);
      }
    }
    above[level] = Isa::less(middle[0], value);
    result |= Isa::deposit(Isa::lanes_of(above[level]) & lanes, every[kBits] << (kBits - 1 - level));
  }
  return result;
}

template <typename Isa, typename V, typename Function, unsigned kBits>
void activate_few_bit_by_lanes(const V* x, V* y, std::size_t n, const float* boundaries, bool even, std::uint8_t* stash) {
  using Float = typename Isa::Float;
  static_assert(Isa::width == 16);
  Float boundary[(1U << kBits) - 1];
#pragma GCC unroll 16
  for (std::size_t b = 0; b < (1U << kBits) - 1; ++b) boundary[b] = Isa::splat(boundaries[b]);
  for_vectors<Isa>(
      n, [ =, &boundary ](std::size_t i, auto part) __attribute__((always_inline)) {
        const Float value = part.load(x + i);
        std::uint32_t lanes = 0xFFFF;
        if constexpr (!decltype(part)::is_whole) lanes = (1U << part.n) - 1;
        const std::uint64_t packed = interleaved_indices<Isa, kBits>(even ? Isa::abs(value) : value, boundary, lanes);
        part.store(y + i, Function::value(value));
        std::uint8_t* to = stash + i / 8 * kBits;
        // Bytes that a store of 8 writes beyond its own are overwritten next, but for the last vectors.
        const std::size_t left = n - i;
        __builtin_memcpy(to, &packed, left >= 4 * Isa::width ? sizeof packed : ((left < 16 ? left : 16) * kBits + 7) / 8);
      });
}

// The same where vectors have 8 lanes, which one instruction permutes: the numbers of four vectors by bisection, in a table per
// bit, and packed together. Numbers are negative meanwhile, since comparisons give -1.
template <typename Isa, unsigned kBits>
class NumberPacker {
 public:
  using Float = typename Isa::Float;
  static constexpr std::size_t vectors = 4, block = vectors * Isa::width, bytes = block / 8 * kBits;
  static constexpr std::size_t written = 16;  // bytes from `to` on that pack() may write

  NumberPacker(const float* boundaries, bool even) : sign_(Isa::as_float(Isa::word_splat(even ? 0x7FFFFFFF : 0xFFFFFFFF))) {
    for (unsigned level = 0; level < kBits; ++level) {
      const unsigned step = 1U << (kBits - 1 - level);
      for (unsigned i = 0; i < 1U << level; ++i) middle_[level][-i % 8] = boundaries[(2 * i + 1) * step - 1];
    }
  }

  BITLOOM_INLINE void pack(const Float* value, std::uint8_t* to) const {
    Float place[vectors];
    typename Isa::Word number[vectors];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < vectors; ++k) place[k] = value[k] & sign_;
#pragma GCC unroll 4
    for (std::size_t k = 0; k < vectors; ++k) number[k] = Isa::ones_where_less(Isa::splat(middle_[0][0]), place[k]);
#pragma GCC unroll 4
    for (unsigned level = 1; level < kBits; ++level) {
#pragma GCC unroll 4
      for (std::size_t k = 0; k < vectors; ++k) {
        const Float boundary = Isa::lookup_eight(middle_[level], number[k]);
        number[k] = number[k] + number[k] + Isa::ones_where_less(boundary, place[k]);
      }
    }
#pragma GCC unroll 4
    for (std::size_t k = 0; k < vectors; ++k) number[k] = Isa::word_splat(0) - number[k];
    Isa::template pack_numbers<kBits>(to, number);
  }

 private:
  alignas(64) float middle_[kBits][8] = {};  // boundaries in the middle of what is left, by minus the bits that are known
  Float sign_;                               // the bits that count
};

template <typename Isa, typename V, typename Function, unsigned kBits>
void activate_few_bit_by_vectors(const V* x, V* y, std::size_t n, const float* boundaries, bool even, std::uint8_t* stash) {
  using Float = typename Isa::Float;
  using Packer = NumberPacker<Isa, kBits>;
  const Packer packer(boundaries, even);
  std::size_t i = 0;
  // Bytes written beyond a block's own are overwritten next. y may be x.
  for (; n - i >= Packer::block && (n - i) / 8 * kBits >= Packer::written; i += Packer::block, stash += Packer::bytes) {
    Float value[Packer::vectors];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Packer::vectors; ++k) value[k] = Isa::load(x + i + k * Isa::width);
    packer.pack(value, stash);
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Packer::vectors; ++k) {
      const std::size_t at = i + k * Isa::width;
      Isa::store(y + at, Function::value(Isa::load(x + at)));
    }
  }
  for (; i < n; i += Packer::block, stash += Packer::bytes) {
    const std::size_t here = n - i < Packer::block ? n - i : Packer::block;
    float last[Packer::block];
    std::uint8_t packed[Packer::written];
    for (float& each : last) each = __builtin_nanf("");  // below all boundaries: bits beyond the last number are 0
    Float value[Packer::vectors];
    for_vectors<Isa>(
        here, [&](std::size_t k, auto part) __attribute__((always_inline)) { part.store(last + k, part.load(x + i + k)); });
    for (std::size_t k = 0; k < Packer::vectors; ++k) value[k] = Isa::load(last + k * Isa::width);
    packer.pack(value, packed);
    __builtin_memcpy(stash, packed, (here * kBits + 7) / 8);
    activate<Isa, V, Function>(x + i, y + i, here);
  }
}

template <typename Isa, typename V>
void few_bit_indices(const V* x, std::size_t n, const float* boundaries, unsigned bits, bool even, std::uint8_t* stash) {
  using Float = typename Isa::Float;
  constexpr std::size_t vectors = 4, group = 8, words = sizeof(EightWords);
  alignas(64) float places[16] = {};
  for (std::size_t b = 0; bits <= 4 && b + 1 < std::size_t{1} << bits; ++b) places[b] = boundaries[b];
  alignas(64) std::uint8_t numbers[few_bit_block];
  for (std::size_t begin = 0; begin < n; begin += few_bit_block) {
    const std::size_t here = n - begin < few_bit_block ? n - begin : few_bit_block;
    for (std::size_t first = 0; first < here; first += vectors * Isa::width) {
      Float value[vectors], below[vectors];
#pragma GCC unroll 4
      for (std::size_t k = 0; k < vectors; ++k) {
        const std::size_t at = first + k * Isa::width;
        value[k] = at + Isa::width <= here ? Isa::load(x + begin + at)
                   : at < here             ? Isa::load_part(x + begin + at, here - at)
                                           : Isa::splat(0);
        if (even) value[k] = Isa::abs(value[k]);
      }
      count_boundaries<Isa>(value, below, boundaries, places, bits);
#pragma GCC unroll 4
      for (std::size_t k = 0; k < vectors; ++k) {
        Isa::store_bytes(numbers + first + k * Isa::width, small_words<Isa>(below[k]));
      }
    }
    for (std::size_t i = here; i < (here + words - 1) / words * words; ++i) numbers[i] = 0;
    for (std::size_t i = 0; i < here; i += words) {
      EightWords eight;
      __builtin_memcpy(&eight, numbers + i, sizeof eight);
      squeeze(eight, bits);
      __builtin_memcpy(numbers + i, &eight, sizeof eight);
    }
    if (begin + few_bit_block + words <= n) {
      // Whole words: what they write beyond their bytes is overwritten next.
      for (std::size_t i = 0; i < few_bit_block; i += group, stash += bits) __builtin_memcpy(stash, numbers + i, group);
      continue;
    }
    for (std::size_t i = 0; i < here; i += group) {
      const std::size_t left = here - i < group ? ((here - i) * bits + 7) / 8 : bits;
      for (std::size_t byte = 0; byte < left; ++byte) *stash++ = numbers[i + byte];
    }
  }
}

template <typename Isa, typename V, typename Function>
void activate_few_bit(const V* x, V* y, std::size_t n, const float* boundaries, unsigned bits, bool even, std::uint8_t* stash) {
  if constexpr (Isa::has_lane_bits) {
    switch (bits) {
      case 1: return activate_few_bit_by_lanes<Isa, V, Function, 1>(x, y, n, boundaries, even, stash);
      case 2: return activate_few_bit_by_lanes<Isa, V, Function, 2>(x, y, n, boundaries, even, stash);
      case 3: return activate_few_bit_by_lanes<Isa, V, Function, 3>(x, y, n, boundaries, even, stash);
      case 4: return activate_few_bit_by_lanes<Isa, V, Function, 4>(x, y, n, boundaries, even, stash);
      default: break;
    }
  }
  if constexpr (Isa::packs_numbers) {
    switch (bits) {
      case 1: return activate_few_bit_by_vectors<Isa, V, Function, 1>(x, y, n, boundaries, even, stash);
      case 2: return activate_few_bit_by_vectors<Isa, V, Function, 2>(x, y, n, boundaries, even, stash);
      case 3: return activate_few_bit_by_vectors<Isa, V, Function, 3>(x, y, n, boundaries, even, stash);
      case 4: return activate_few_bit_by_vectors<Isa, V, Function, 4>(x, y, n, boundaries, even, stash);
      default: break;
    }
  }
  // Numbers first: y may be x. The second reading finds the piece in the cache.
  few_bit_indices<Isa, V>(x, n, boundaries, bits, even, stash);
  activate<Isa, V, Function>(x, y, n);
}

template <typename Isa, typename V>
void few_bit_backward(const std::uint8_t* stash, const float* levels, unsigned bits, const V* dy, V* dx, std::size_t n) {
  constexpr std::size_t group = 8, words = sizeof(EightWords);
  const std::size_t bytes = n / group * bits + (n % group * bits + 7) / 8;
  alignas(64) std::uint8_t numbers[few_bit_block];
  for (std::size_t begin = 0; begin < n; begin += few_bit_block) {
    const std::size_t here = n - begin < few_bit_block ? n - begin : few_bit_block;
    const std::size_t padded = (here + words - 1) / words * words;
    const std::uint8_t* from = stash + begin / group * bits;
    if (begin + few_bit_block + words <= n) {
      for (std::size_t i = 0; i < few_bit_block; i += group, from += bits) __builtin_memcpy(numbers + i, from, group);
    } else {
      const std::uint8_t* const end = stash + bytes;
      for (std::size_t i = 0; i < padded; i += group) {
        for (std::size_t byte = 0; byte < group; ++byte)
          numbers[i + byte] = byte < bits && from < end ? *from++ : std::uint8_t{0};
      }
    }
    for (std::size_t i = 0; i < padded; i += words) {
      EightWords eight;
      __builtin_memcpy(&eight, numbers + i, sizeof eight);
      spread(eight, bits);
      __builtin_memcpy(numbers + i, &eight, sizeof eight);
    }
    for_vectors<Isa>(
        here, [ =, &numbers ](std::size_t i, auto part) __attribute__((always_inline)) {
          typename Isa::Float slope;
          if (Isa::fast_lookup && bits <= 4) {
            slope = Isa::lookup(levels, Isa::load_bytes(numbers + i));
          } else {
            alignas(64) float found[Isa::width];
            for (std::size_t k = 0; k < Isa::width; ++k) found[k] = levels[numbers[i + k]];
            slope = Isa::load(found);
          }
          part.store(dx + begin + i, slope * part.load(dy + begin + i));
        });
  }
}

}  // namespace
}  // namespace bitloom::nn
