// Needed first by all files of the AVX-512 tables. Private to simd/isa.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own headers make "undefined" vectors in a way that it then warns about (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "core/bits.h"
#include "simd/kernels.h"

// For the pieces of unrolled loops, which must not become calls: a call would spill every vector register.
#define BITLOOM_INLINE inline __attribute__((always_inline))

namespace bitloom::simd {
namespace {

// 16 lanes of 32 bits: one half of a patch for one block of channels.
inline constexpr std::size_t lanes = weight_lanes;
static_assert(lanes * sizeof(std::uint32_t) == sizeof(__m512i));

// Immediates of the ternary-logic instruction.
inline constexpr int ternary_xor = 0x96;      // a ^ b ^ c
inline constexpr int ternary_carry = 0xB2;    // a == c ? a : ~b
inline constexpr int ternary_xor_and = 0x28;  // (a ^ b) & c

// A full adder of planes of bits: plane + a + b; the sum's low bit stays in `plane`, the carry is returned. The carry is
// derived from the sum, a == b ? a : not sum, because the instruction overwrites its first operand: this way nothing has to
// be copied first (copies of 512-bit registers take an execution port as often as not).
BITLOOM_INLINE __m512i full_add(__m512i& plane, __m512i a, __m512i b) {
  plane = _mm512_ternarylogic_epi32(plane, a, b, ternary_xor);
  return _mm512_ternarylogic_epi32(a, plane, b, ternary_carry);
}

#ifdef BITLOOM_EMULATED_AVX512  // tests/simd/emulated: vectors are no registers
BITLOOM_INLINE __m512i keep(__m512i vector) { return vector; }
BITLOOM_INLINE void use(__m512i) {}
BITLOOM_INLINE __m512i zeroed() { return _mm512_setzero_si512(); }
#else
// A vector that the compiler neither loads again for every use nor works out in another way.
BITLOOM_INLINE __m512i keep(__m512i vector) {
  asm("" : "+v"(vector));
  return vector;
}
// For the loops that measure peaks: what is computed is not left out.
BITLOOM_INLINE void use(__m512i vector) { asm volatile("" : : "v"(vector)); }
// A register zeroed anew: the compiler would zero one and copy that.
BITLOOM_INLINE __m512i zeroed() {
  __m512i vector;
  asm volatile("vpxor %x0, %x0, %x0" : "=x"(vector));
  return vector;
}
#endif

// Aligned scratch memory. Not an object with a destructor: nothing between the two calls throws, and a landing pad would
// bring a weak symbol (the personality routine's) into the object file.
inline std::uint64_t* new_words(std::size_t words) {
  return static_cast<std::uint64_t*>(::operator new(words * sizeof(std::uint64_t), std::align_val_t(sizeof(__m512i))));
}
inline void delete_words(std::uint64_t* words) { ::operator delete(words, std::align_val_t(sizeof(__m512i))); }

}  // namespace
}  // namespace bitloom::simd
