// What few-bit training keeps of an activation's input: the number of its interval, packed into few bits (nn/bit_pack.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/elements.h"

namespace bitloom::nn {
namespace {

// Eight numbers below 2^bits, one per byte, into the low 8 bits bits, in order: neighbours are moved together, then pairs, then
// fours.
BITLOOM_INLINE std::uint64_t squeeze(std::uint64_t x, unsigned bits) {
  constexpr std::uint64_t bytes = 0x00FF00FF00FF00FFU, pairs = 0x0000FFFF0000FFFFU, fours = 0x00000000FFFFFFFFU;
  x = (x & bytes) | ((x & ~bytes) >> (8 - bits));
  x = (x & pairs) | ((x & ~pairs) >> (16 - 2 * bits));
  return (x & fours) | ((x & ~fours) >> (32 - 4 * bits));
}
BITLOOM_INLINE std::uint64_t spread(std::uint64_t x, unsigned bits) {
  const std::uint64_t one = (std::uint64_t{1} << bits) - 1;
  const std::uint64_t two = (std::uint64_t{1} << (2 * bits)) - 1;
  const std::uint64_t four = (std::uint64_t{1} << (4 * bits)) - 1;
  x = (x & four) | (((x >> (4 * bits)) & four) << 32U);
  const std::uint64_t low_pairs = two | (two << 32U);
  x = (x & low_pairs) | (((x >> (2 * bits)) & low_pairs) << 16U);
  const std::uint64_t low_ones = one * 0x0001000100010001U;
  return (x & low_ones) | (((x >> bits) & low_ones) << 8U);
}

// The number of boundaries below x: all are compared, four vectors of x at a time.
template <typename Isa, typename V>
void few_bit_indices(const V* x, std::size_t n, const float* boundaries, unsigned bits, bool even, std::uint8_t* stash) {
  using Float = typename Isa::Float;
  constexpr std::size_t at_once = 64, vectors = 4, group = 8;
  const std::size_t count = (std::size_t{1} << bits) - 1;
  const auto one = Isa::splat(1);
  const auto zero = Isa::splat(0);
  alignas(64) std::uint8_t numbers[at_once];
  for (std::size_t begin = 0; begin < n; begin += at_once) {
    const std::size_t here = n - begin < at_once ? n - begin : at_once;
    for (std::size_t first = 0; first < at_once; first += vectors * Isa::width) {
      Float value[vectors], below[vectors];
#pragma GCC unroll 4
      for (std::size_t k = 0; k < vectors; ++k) {
        const std::size_t at = first + k * Isa::width;
        value[k] = at + Isa::width <= here ? Isa::load(x + begin + at)
                   : at < here             ? Isa::load_part(x + begin + at, here - at)
                                           : zero;
        if (even) value[k] = Isa::abs(value[k]);
        below[k] = zero;
      }
      for (std::size_t b = 0; b < count; ++b) {
        const Float boundary = Isa::splat(boundaries[b]);
#pragma GCC unroll 4
        for (std::size_t k = 0; k < vectors; ++k) {
          below[k] = below[k] + Isa::select(Isa::less(boundary, value[k]), one, zero);
        }
      }
#pragma GCC unroll 4
      for (std::size_t k = 0; k < vectors; ++k) {
        // 2^23 + index has the index in its low bits.
        const auto word = Isa::as_word(below[k] + Isa::splat(8388608)) & Isa::word_splat(0xFF);
        Isa::store_bytes(numbers + first + k * Isa::width, word);
      }
    }
    for (std::size_t i = here; i < at_once; ++i) numbers[i] = 0;
    for (std::size_t i = 0; i < here; i += group) {
      std::uint64_t eight;
      __builtin_memcpy(&eight, numbers + i, sizeof eight);
      const std::uint64_t packed = squeeze(eight, bits);
      const std::size_t left = here - i < group ? ((here - i) * bits + 7) / 8 : bits;
      for (std::size_t byte = 0; byte < left; ++byte) *stash++ = static_cast<std::uint8_t>(packed >> (8 * byte));
    }
  }
}

template <typename Isa, typename V>
void few_bit_backward(const std::uint8_t* stash, const float* levels, unsigned bits, const V* dy, V* dx, std::size_t n) {
  constexpr std::size_t at_once = 64, group = 8;
  const std::size_t bytes = n / group * bits + (n % group * bits + 7) / 8;
  alignas(64) std::uint32_t numbers[at_once];
  for (std::size_t begin = 0; begin < n; begin += at_once) {
    const std::size_t here = n - begin < at_once ? n - begin : at_once;
    for (std::size_t i = 0; i < here; i += group) {
      const std::size_t at = (begin + i) / group * bits;
      std::uint64_t packed = 0;
      if (at + sizeof packed <= bytes) {
        __builtin_memcpy(&packed, stash + at, sizeof packed);
      } else {
        for (std::size_t byte = 0; at + byte < bytes; ++byte) packed |= std::uint64_t{stash[at + byte]} << (8 * byte);
      }
      const std::uint64_t eight = spread(packed, bits);
#pragma GCC unroll 8
      for (std::size_t k = 0; k < group; ++k) numbers[i + k] = static_cast<std::uint32_t>(eight >> (8 * k)) & 0xFFU;
    }
    for_vectors<Isa>(
        here, [ =, &numbers ](std::size_t i, auto part) __attribute__((always_inline)) {
          typename Isa::Float slope;
          if (bits <= 4) {
            slope = Isa::lookup(levels, Isa::load_words(numbers + i));
          } else {
            alignas(64) float found[Isa::width];
            for (std::size_t k = 0; k < Isa::width; ++k) found[k] = levels[numbers[i + k] & 0xFFU];
            slope = Isa::load(found);
          }
          part.store(dx + begin + i, slope * part.load(dy + begin + i));
        });
  }
}

}  // namespace
}  // namespace bitloom::nn
