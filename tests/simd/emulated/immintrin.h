// The intrinsics of AVX-512 that files of simd/isa use, in plain code by the definitions of Intel's manual, so that every
// machine can test these files (tests/CMakeLists.txt). Found in place of the compiler's header, which it includes.
#pragma once
#pragma GCC system_header  // for include_next

#include_next <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace bitloom::test::emulated {

template <std::size_t bytes>
struct Vector {
  unsigned char byte[bytes];
};
using Vector512 = Vector<64>;
using Vector256 = Vector<32>;

template <typename T, typename V>
T get(const V& v, std::size_t lane) {
  T x;
  std::memcpy(&x, reinterpret_cast<const unsigned char*>(&v) + lane * sizeof(T), sizeof x);
  return x;
}
template <typename T, typename V>
void set(V& v, std::size_t lane, T x) {
  std::memcpy(reinterpret_cast<unsigned char*>(&v) + lane * sizeof(T), &x, sizeof x);
}

// A vector of f(lane) in lanes of type T.
template <typename T, typename F>
Vector512 make(const F& f) {
  Vector512 v;
  for (std::size_t lane = 0; lane < 64 / sizeof(T); ++lane) set<T>(v, lane, static_cast<T>(f(lane)));
  return v;
}
template <typename T, typename F>
Vector512 of_two(const Vector512& a, const Vector512& b, const F& f) {
  return make<T>([&](std::size_t lane) { return f(get<T>(a, lane), get<T>(b, lane)); });
}
// Bit `lane` of the result is f(lane of a, lane of b).
template <typename T, typename F>
std::uint64_t compare(const Vector512& a, const Vector512& b, const F& f) {
  std::uint64_t mask = 0;
  for (std::size_t lane = 0; lane < 64 / sizeof(T); ++lane) {
    mask |= std::uint64_t{f(get<T>(a, lane), get<T>(b, lane))} << lane;
  }
  return mask;
}
// The lanes 0 to n - 1 of a narrower vector in wider ones.
template <typename From, typename To, typename V>
Vector512 widen(const V& v) {
  return make<To>([&](std::size_t lane) { return get<From>(v, lane); });
}
// Lanes of each 128-bit quarter of a and b in turn, from the quarter's lane `first` on.
template <typename T>
Vector512 interleave(const Vector512& a, const Vector512& b, bool high) {
  constexpr std::size_t quarter = 16 / sizeof(T);
  return make<T>([&](std::size_t lane) {
    const std::size_t from = lane / quarter * quarter + lane % quarter / 2 + (high ? quarter / 2 : 0);
    return get<T>(lane % 2 == 0 ? a : b, from);
  });
}
template <typename Part>
Part part(const Vector512& v, std::size_t number) {
  Part p;
  std::memcpy(&p, v.byte + number * sizeof p, sizeof p);
  return p;
}

inline Vector512 load(const void* from) { return part<Vector512>(*static_cast<const Vector512*>(from), 0); }
inline void store(void* to, const Vector512& v) { std::memcpy(to, &v, sizeof v); }
template <typename T>
Vector512 all(T x) {
  return make<T>([&](std::size_t) { return x; });
}
template <typename T, typename... Lanes>
Vector512 lanes(Lanes... x) {
  const T values[] = {static_cast<T>(x)...};
  return load(values);
}

// Lanes of a where the mask has a bit, else those of b.
template <typename T>
Vector512 choose(std::uint64_t mask, const Vector512& a, const Vector512& b) {
  return make<T>([&](std::size_t lane) { return get<T>((mask >> lane & 1U) != 0 ? a : b, lane); });
}
inline Vector512 repeat(__m128i a) {
  return make<std::uint32_t>([&](std::size_t lane) { return get<std::uint32_t>(a, lane % 4); });
}

template <typename T>
Vector512 add(const Vector512& a, const Vector512& b) {
  return of_two<T>(a, b, [](T x, T y) { return x + y; });
}
inline Vector512 multiply_pairs(const Vector512& a, const Vector512& b) {
  return make<std::uint32_t>([&](std::size_t lane) {
    const auto product = [&](std::size_t i) { return std::int32_t{get<std::int16_t>(a, i)} * get<std::int16_t>(b, i); };
    return static_cast<std::uint32_t>(product(2 * lane)) + static_cast<std::uint32_t>(product(2 * lane + 1));
  });
}
inline Vector512 multiply_pairs_of_bytes(const Vector512& a, const Vector512& b) {
  return make<std::int16_t>([&](std::size_t lane) {
    const auto product = [&](std::size_t i) { return std::int32_t{get<std::uint8_t>(a, i)} * get<std::int8_t>(b, i); };
    const std::int32_t sum = product(2 * lane) + product(2 * lane + 1);
    return sum > INT16_MAX ? INT16_MAX : sum < INT16_MIN ? INT16_MIN : sum;
  });
}
inline Vector512 shuffle(const Vector512& v, const Vector512& places) {
  return make<std::uint8_t>([&](std::size_t i) {
    const std::uint8_t place = places.byte[i];
    return (place & 0x80U) != 0 ? 0 : v.byte[i / 16 * 16 + place % 16];
  });
}
// Bit r of the table is the result where a, b and c are the bits of r, a the highest.
inline Vector512 ternary_logic(const Vector512& a, const Vector512& b, const Vector512& c, int table) {
  return make<std::uint64_t>([&](std::size_t i) {
    const auto a_word = get<std::uint64_t>(a, i), b_word = get<std::uint64_t>(b, i), c_word = get<std::uint64_t>(c, i);
    std::uint64_t word = 0;
    for (unsigned r = 0; r < 8; ++r) {
      if ((static_cast<unsigned>(table) >> r & 1U) == 0) continue;
      word |= ((r & 4U) != 0 ? a_word : ~a_word) & ((r & 2U) != 0 ? b_word : ~b_word) & ((r & 1U) != 0 ? c_word : ~c_word);
    }
    return word;
  });
}
inline void store_words(void* to, unsigned mask, const Vector512& v) {
  for (std::size_t i = 0; i < 8; ++i) {
    if ((mask >> i & 1U) != 0) std::memcpy(static_cast<unsigned char*>(to) + 8 * i, v.byte + 8 * i, 8);
  }
}
// Words that the mask leaves out are not read.
inline Vector512 load_words(unsigned mask, const void* from) {
  return make<std::uint64_t>([&](std::size_t i) {
    std::uint64_t word = 0;
    if ((mask >> i & 1U) != 0) std::memcpy(&word, static_cast<const unsigned char*>(from) + 8 * i, 8);
    return word;
  });
}

}  // namespace bitloom::test::emulated

#define BITLOOM_E bitloom::test::emulated
#define __m512i BITLOOM_E::Vector512
#define _mm512_add_epi8(a, b) BITLOOM_E::add<std::uint8_t>(a, b)
#define _mm512_add_epi16(a, b) BITLOOM_E::add<std::uint16_t>(a, b)
#define _mm512_add_epi32(a, b) BITLOOM_E::add<std::uint32_t>(a, b)
#define _mm512_add_epi64(a, b) BITLOOM_E::add<std::uint64_t>(a, b)
#define _mm512_sub_epi32(a, b) BITLOOM_E::of_two<std::uint32_t>(a, b, [](auto x, auto y) { return x - y; })
#define _mm512_mullo_epi32(a, b) BITLOOM_E::of_two<std::uint32_t>(a, b, [](auto x, auto y) { return x * y; })
#define _mm512_mul_epi32(a, b) \
  BITLOOM_E::of_two<std::int64_t>(a, b, [](auto x, auto y) { return std::int64_t{std::int32_t(x)} * std::int32_t(y); })
#define _mm512_madd_epi16(a, b) BITLOOM_E::multiply_pairs(a, b)
#define _mm512_maddubs_epi16(a, b) BITLOOM_E::multiply_pairs_of_bytes(a, b)
#define _mm512_and_si512(a, b) BITLOOM_E::of_two<std::uint64_t>(a, b, [](auto x, auto y) { return x & y; })
#define _mm512_xor_si512(a, b) BITLOOM_E::of_two<std::uint64_t>(a, b, [](auto x, auto y) { return x ^ y; })
#define _mm512_ternarylogic_epi32(a, b, c, table) BITLOOM_E::ternary_logic(a, b, c, table)
#define _mm512_slli_epi16(a, n) BITLOOM_E::of_two<std::uint16_t>(a, a, [&](auto x, auto) { return x << (n); })
#define _mm512_slli_epi32(a, n) BITLOOM_E::of_two<std::uint32_t>(a, a, [&](auto x, auto) { return x << (n); })
#define _mm512_slli_epi64(a, n) BITLOOM_E::of_two<std::uint64_t>(a, a, [&](auto x, auto) { return x << (n); })
#define _mm512_srli_epi16(a, n) BITLOOM_E::of_two<std::uint16_t>(a, a, [&](auto x, auto) { return x >> (n); })
#define _mm512_srli_epi64(a, n) BITLOOM_E::of_two<std::uint64_t>(a, a, [&](auto x, auto) { return x >> (n); })
#define _mm512_popcnt_epi32(a) BITLOOM_E::of_two<std::uint32_t>(a, a, [](auto x, auto) { return std::popcount(x); })
#define _mm512_shuffle_epi8(a, places) BITLOOM_E::shuffle(a, places)
#define _mm512_permutexvar_epi32(places, a) \
  BITLOOM_E::of_two<std::uint32_t>(places, a, [&](auto place, auto) { return BITLOOM_E::get<std::uint32_t>(a, place % 16); })
#define _mm512_permutex2var_epi64(a, places, b) \
  BITLOOM_E::of_two<std::uint64_t>(             \
      places, places, [&](auto place, auto) { return BITLOOM_E::get<std::uint64_t>((place & 8U) != 0 ? b : a, place % 8); })
#define _mm512_unpacklo_epi8(a, b) BITLOOM_E::interleave<std::uint8_t>(a, b, false)
#define _mm512_unpackhi_epi8(a, b) BITLOOM_E::interleave<std::uint8_t>(a, b, true)
#define _mm512_unpacklo_epi16(a, b) BITLOOM_E::interleave<std::uint16_t>(a, b, false)
#define _mm512_unpackhi_epi16(a, b) BITLOOM_E::interleave<std::uint16_t>(a, b, true)
#define _mm512_unpacklo_epi32(a, b) BITLOOM_E::interleave<std::uint32_t>(a, b, false)
#define _mm512_unpackhi_epi32(a, b) BITLOOM_E::interleave<std::uint32_t>(a, b, true)
#define _mm512_setzero_si512() \
  BITLOOM_E::Vector512 {}
#define _mm512_set1_epi8(x) BITLOOM_E::all(static_cast<std::int8_t>(x))
#define _mm512_set1_epi16(x) BITLOOM_E::all(static_cast<std::int16_t>(x))
#define _mm512_set1_epi32(x) BITLOOM_E::all(static_cast<std::int32_t>(x))
#define _mm512_setr_epi32(...) BITLOOM_E::lanes<std::int32_t>(__VA_ARGS__)
#define _mm512_setr_epi64(...) BITLOOM_E::lanes<std::int64_t>(__VA_ARGS__)
#define _mm512_broadcast_i32x4(a) BITLOOM_E::repeat(a)
#define _mm512_loadu_si512(from) BITLOOM_E::load(from)
#define _mm512_storeu_si512(to, a) BITLOOM_E::store(to, a)
#define _mm512_maskz_loadu_epi64(mask, from) BITLOOM_E::load_words(mask, from)
#define _mm512_mask_storeu_epi64(to, mask, a) BITLOOM_E::store_words(to, mask, a)
#define _mm512_maskz_mov_epi16(mask, a) BITLOOM_E::choose<std::uint16_t>(mask, a, BITLOOM_E::Vector512{})
#define _mm512_mask_add_epi64(other, mask, a, b) BITLOOM_E::choose<std::uint64_t>(mask, _mm512_add_epi64(a, b), other)
#define _mm512_mask_sub_epi8(other, mask, a, b) \
  BITLOOM_E::choose<std::uint8_t>(mask, BITLOOM_E::of_two<std::uint8_t>(a, b, [](auto x, auto y) { return x - y; }), other)
// GCC's are macros.
#undef _mm512_mask_cmpge_epi32_mask
#undef _mm512_mask_cmple_epi32_mask
#define _mm512_mask_cmpge_epi32_mask(mask, a, b) \
  static_cast<__mmask16>((mask)&BITLOOM_E::compare<std::int32_t>(a, b, [](auto x, auto y) { return x >= y; }))
#define _mm512_mask_cmple_epi32_mask(mask, a, b) \
  static_cast<__mmask16>((mask)&BITLOOM_E::compare<std::int32_t>(a, b, [](auto x, auto y) { return x <= y; }))
#define _mm512_castsi512_si128(a) BITLOOM_E::part<__m128i>(a, 0)
#define _mm512_castsi512_si256(a) BITLOOM_E::part<BITLOOM_E::Vector256>(a, 0)
#undef _mm512_extracti32x4_epi32
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti32x4_epi32(a, number) BITLOOM_E::part<__m128i>(a, number)
#define _mm512_extracti64x4_epi64(a, number) BITLOOM_E::part<BITLOOM_E::Vector256>(a, number)
#define _mm512_cvtepu8_epi16(a) BITLOOM_E::widen<std::uint8_t, std::uint16_t>(a)
#define _mm512_cvtepu8_epi32(a) BITLOOM_E::widen<std::uint8_t, std::uint32_t>(a)
#define _mm512_cvtepi32_epi64(a) BITLOOM_E::widen<std::int32_t, std::int64_t>(a)
#define _mm512_cvtepu32_epi64(a) BITLOOM_E::widen<std::uint32_t, std::uint64_t>(a)
