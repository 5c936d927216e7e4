// The bit convention of all of Bitloom. Nothing else may assume one.
//
//   sign    an unset bit is +1, a set bit is -1 (the essay "Distributed training": "store a +1 as an unset bit and a -1 as a
//   set bit"):
//           value(a) = 1 - 2a for a bit a.
//   order   channel c of a pixel is bit c % 64 of word c / 64, least significant bit first.
//   tail    the bits of the last word at and beyond the channel count are 0, in maps and in weights alike,
//           so that they never contribute to popcount(x xor w).
//   border  the padding around a map is 0.
//
// For K bits, with d = popcount(x xor w) the number of disagreements, the dot product is derived as
//   sum_k value(x_k) value(w_k) = (K - d) - d = K - 2d.
// A binary layer sets its output bit where the filter matches: y = 1 iff d <= T. So a set output bit (value -1) means
// "the pattern is here", sparse maps are mostly 0, the zero border means "nothing here", and down-sampling by OR keeps
// what was found. (Which sign stands for a match is free: the weights of the next layer absorb it.)
//
// A ternary weight is two words: `sign` as above and `nonzero`; where nonzero is 0 the sign bit is 0 too, and
//   d = popcount((x xor sign) and nonzero),  dot = popcount(nonzero) - 2d.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bitloom {

static_assert(std::endian::native == std::endian::little, "packed maps are read as 32- and 16-bit pieces of 64-bit words");

inline constexpr std::size_t word_bits = 64;

// Words that hold `bits` bits.
constexpr std::size_t words_for(std::size_t bits) { return (bits + word_bits - 1) / word_bits; }

// The valid bits of the last word of a row of `bits` bits (all ones when the row fills it).
constexpr std::uint64_t tail_mask(std::size_t bits) {
  const std::size_t used = bits % word_bits;
  return used == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << used) - 1;
}

inline bool get_bit(const std::uint64_t* words, std::size_t i) { return (words[i / word_bits] >> (i % word_bits)) & 1U; }

inline void set_bit(std::uint64_t* words, std::size_t i, bool value) {
  const std::uint64_t mask = std::uint64_t{1} << (i % word_bits);
  words[i / word_bits] = value ? words[i / word_bits] | mask : words[i / word_bits] & ~mask;
}

// The number that a bit stands for.
constexpr int bit_value(bool bit) { return bit ? -1 : 1; }
// The same of trit i, which is 0 unless its bit in `nonzero` is set.
inline int trit_value(const std::uint64_t* sign, const std::uint64_t* nonzero, std::size_t i) {
  return get_bit(nonzero, i) ? bit_value(get_bit(sign, i)) : 0;
}

// Reads the 32-bit half `i` of an array of words without breaking the aliasing rules.
inline std::uint32_t load_half(const std::uint64_t* words, std::size_t i) {
  std::uint32_t half;
  std::memcpy(&half, reinterpret_cast<const unsigned char*>(words) + i * sizeof half, sizeof half);
  return half;
}

}  // namespace bitloom
