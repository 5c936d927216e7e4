// Lookups of the AVX2 convolution: its tables, and an image's words and weights as it reads them (avx2_conv.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "simd/kernels.h"

namespace bitloom::simd {
namespace {

// Memory that a thread keeps between calls: no allocation in the training step.
struct Scratch {
  unsigned char* data = nullptr;
  std::size_t size = 0;
  ~Scratch() {
    if (data != nullptr) ::operator delete(data, std::align_val_t(64));
  }
  unsigned char* take(std::size_t bytes) {
    if (bytes > size) {
      if (data != nullptr) ::operator delete(data, std::align_val_t(64));
      data = nullptr;
      size = 0;
      data = static_cast<unsigned char*>(::operator new(bytes, std::align_val_t(64)));
      size = bytes;
    }
    return data;
  }
};

thread_local Scratch scratch;

constexpr unsigned char nibble_popcount(unsigned x) {
  return static_cast<unsigned char>((x & 1) + (x >> 1 & 1) + (x >> 2 & 1) + (x >> 3 & 1));
}

// For a nibble x of the input table x, [w]: how many bits count against the weights' nibble w. For a pair of nibbles x and y
// that meet the same weights table 16 + x + 16 y: the sum of both.
struct LookupTables {
  static constexpr unsigned size = 16 + 256;
  alignas(64) unsigned char differ[size][16];  // popcount(x xor w)
  alignas(64) unsigned char both[size][16];    // popcount(x and w)
  alignas(64) unsigned char second[size][16];  // popcount(not x and w)
};

constexpr LookupTables make_lookup_tables() {
  LookupTables t{};
  for (unsigned x = 0; x < 16; ++x) {
    for (unsigned w = 0; w < 16; ++w) {
      t.differ[x][w] = nibble_popcount(x ^ w);
      t.both[x][w] = nibble_popcount(x & w);
      t.second[x][w] = nibble_popcount(~x & w & 15U);
    }
  }
  for (unsigned pair = 0; pair < 256; ++pair) {
    const unsigned x = pair & 15U;
    const unsigned y = pair >> 4U;
    for (unsigned w = 0; w < 16; ++w) {
      t.differ[16 + pair][w] = static_cast<unsigned char>(t.differ[x][w] + t.differ[y][w]);
      t.both[16 + pair][w] = static_cast<unsigned char>(t.both[x][w] + t.both[y][w]);
      t.second[16 + pair][w] = static_cast<unsigned char>(t.second[x][w] + t.second[y][w]);
    }
  }
  return t;
}

constexpr LookupTables tables = make_lookup_tables();

inline __attribute__((always_inline)) __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __attribute__((always_inline)) void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// 16 * (nibble n of a word), n = 0..15, a byte each.
inline __attribute__((always_inline)) __m128i nibble_offsets(std::uint64_t word) {
  const __m128i high = _mm_set1_epi8(static_cast<char>(0xf0));
  const __m128i x = _mm_cvtsi64_si128(static_cast<long long>(word));
  return _mm_unpacklo_epi8(_mm_and_si128(_mm_slli_epi16(x, 4), high), _mm_and_si128(x, high));
}

// The tables of the nibbles of words, as byte offsets.
void expand_input(const std::uint64_t* input, std::size_t words, std::uint8_t* offsets) {
  for (std::size_t w = 0; w < words; ++w)
    _mm_store_si128(reinterpret_cast<__m128i*>(offsets + 16 * w), nibble_offsets(input[w]));
}

// The same of words of one pixel after the other and, where a word has a twin, of both; the second one of a pair is left out.
void expand_pairs(const std::uint64_t* input, std::size_t words, const ConvShape& shape, std::uint16_t* offsets) {
  for (const std::uint64_t* pixel = input; pixel < input + words; pixel += shape.pixel_words) {
    for (std::size_t w = 0; w < shape.pixel_words; ++w) {
      if (shape.twin[w] < w) continue;
      __m256i both = _mm256_cvtepu8_epi16(nibble_offsets(pixel[w]));
      if (shape.twin[w] > w) {
        const __m256i second = _mm256_cvtepu8_epi16(nibble_offsets(pixel[shape.twin[w]]));
        both = _mm256_add_epi16(_mm256_add_epi16(both, _mm256_slli_epi16(second, 4)), _mm256_set1_epi16(16 * 16));
      }
      store(offsets, both);
      offsets += 16;
    }
  }
}

// The nibbles of one half of 32 channels: 8 rows of 32 bytes, `step` bytes apart. lo, hi: channels 0..15 and 16..31.
inline __attribute__((always_inline)) void expand_half(const __m256i lo[2], const __m256i hi[2], unsigned char* rows,
                                                       std::size_t step) {
  const __m256i low_nibbles = _mm256_set1_epi8(15);
  // Bytes of four lanes side by side: b0 b0 b0 b0 b1 b1 b1 b1 ... within each 128-bit lane.
  const __m256i by_byte = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6,
                                           10, 14, 3, 7, 11, 15);
  // Dwords: lane 0 holds byte 0..3 of channels 0..3, lane 1 of 4..7. Pair the byte rows of both sources.
  const __m256i l0 = _mm256_shuffle_epi8(lo[0], by_byte);
  const __m256i l1 = _mm256_shuffle_epi8(lo[1], by_byte);
  const __m256i h0 = _mm256_shuffle_epi8(hi[0], by_byte);
  const __m256i h1 = _mm256_shuffle_epi8(hi[1], by_byte);
  // a: bytes 0 and 1 of channels 0..3 (and 4..7) interleaved with 16 more; b: bytes 2 and 3.
  const __m256i a0 = _mm256_unpacklo_epi8(l0, h0);
  const __m256i b0 = _mm256_unpackhi_epi8(l0, h0);
  const __m256i a1 = _mm256_unpacklo_epi8(l1, h1);
  const __m256i b1 = _mm256_unpackhi_epi8(l1, h1);
  // 64-bit pieces of a0: byte 0 of 0..3, byte 1 of 0..3 | byte 0 of 4..7, byte 1 of 4..7.
  const __m256i bytes[4] = {_mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a0, a1), 0xd8),
                            _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a0, a1), 0xd8),
                            _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(b0, b1), 0xd8),
                            _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(b0, b1), 0xd8)};
  for (std::size_t byte = 0; byte < 4; ++byte) {
    store(rows + 2 * byte * step, _mm256_and_si256(bytes[byte], low_nibbles));
    store(rows + (2 * byte + 1) * step, _mm256_and_si256(_mm256_srli_epi16(bytes[byte], 4), low_nibbles));
  }
}

// Weights of the `blocks` (1..4) blocks of 16 channels from `block` on as nibble rows of 64 bytes, or of 64 bytes for
// plus and 64 for minus. Missing blocks are 0, the second words of pairs are left out.
template <bool ternary>
void expand_weights(const ConvShape& shape, const ConvWeights& weights, std::size_t block, std::size_t blocks,
                    unsigned char* out) {
  constexpr std::size_t step = ternary ? 128 : 64;
  const std::size_t halves = 2 * shape.patch_words();
  for (std::size_t half = 0; half < halves; ++half) {
    if (shape.twin != nullptr && shape.twin[half / 2 % shape.pixel_words] < half / 2 % shape.pixel_words) continue;
    __m256i plus[4][2];
    __m256i minus[4][2];
    for (std::size_t b = 0; b < 4; ++b) {
      for (std::size_t v = 0; v < 2; ++v) {
        plus[b][v] = minus[b][v] = _mm256_setzero_si256();
        if (b >= blocks) continue;
        const std::size_t at = ((block + b) * halves + half) * weight_lanes + 8 * v;
        plus[b][v] = load(weights.sign + at);
        if constexpr (ternary) {
          const __m256i nonzero = load(weights.nonzero + at);
          minus[b][v] = _mm256_and_si256(nonzero, plus[b][v]);
          plus[b][v] = _mm256_andnot_si256(plus[b][v], nonzero);
        }
      }
    }
    expand_half(plus[0], plus[1], out, step);
    expand_half(plus[2], plus[3], out + 32, step);
    if constexpr (ternary) {
      expand_half(minus[0], minus[1], out + 64, step);
      expand_half(minus[2], minus[3], out + 96, step);
    }
    out += 8 * step;
  }
}

}  // namespace
}  // namespace bitloom::simd
