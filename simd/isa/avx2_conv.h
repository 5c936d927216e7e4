// The AVX2 convolution. There is no vector popcount, but for four input bits x the sixteen values popcount(x xor w) fit
// the table of a vpshufb, so xor and popcount are one lookup: the table is chosen by x, the lanes' indices are the weights'
// nibbles, 32 channels by 4 bits per instruction (lookups as arithmetic: Mula, Kurz, Lemire: Faster population counts using
// AVX2 instructions, 2018). For ternary weights popcount((x xor sign) and nonzero) = popcount(x and plus) +
// popcount(not x and minus), with plus = nonzero and not sign, minus = nonzero and sign: two lookups.
//
// Words that meet the same weights are looked up in pairs, in tables for two nibbles of the input.
//
// Per call: input words become byte offsets of tables, one per nibble; per tile of 64 channels (one output word) weights
// become nibbles, 64 bytes per nibble of the patch, byte 2c of the first vector for channel c and byte 2c + 1 for channel
// 16 + c, the second vector the same from channel 32; so even and odd bytes widen to channels in order.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "simd/tables.h"

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

// Adds a table's values at 64 weight nibbles to byte sums. The empty asm keeps the compiler from interleaving pixels: it
// would run out of the sixteen registers.
inline __attribute__((always_inline)) void look_up(const unsigned char* table, const unsigned char* weights, __m256i sum[2]) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  sum[0] = _mm256_add_epi8(sum[0], _mm256_shuffle_epi8(t, load(weights)));
  sum[1] = _mm256_add_epi8(sum[1], _mm256_shuffle_epi8(t, load(weights + 32)));
  asm volatile("" : "+x"(sum[0]), "+x"(sum[1]));
}

// Adds the disagreements in `nibbles` (a multiple of 8, so few that no byte overflows) nibbles, or pairs of them, of `pixels`
// neighbouring patches to counts[pixel][channel]. The patches' offsets are `pixel_step` apart. Not inlined, so that it has the
// general registers for itself.
template <std::size_t pixels, bool ternary, typename Offset>
__attribute__((noinline)) void count_nibbles(const Offset* offsets, std::size_t pixel_step, std::size_t nibbles,
                                             const unsigned char* weights, std::uint16_t (*counts)[64]) {
  constexpr std::size_t step = ternary ? 128 : 64;
  const Offset* x[pixels];
  __m256i sum[pixels][2];
  for (std::size_t p = 0; p < pixels; ++p) {
    x[p] = offsets + p * pixel_step;
    sum[p][0] = sum[p][1] = _mm256_setzero_si256();
  }
  for (std::size_t n = 0; n < nibbles; n += 8) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < 8; ++k) {
      for (std::size_t p = 0; p < pixels; ++p) {
        look_up((ternary ? tables.both[0] : tables.differ[0]) + x[p][n + k], weights + k * step, sum[p]);
      }
      if constexpr (ternary) {
        for (std::size_t p = 0; p < pixels; ++p) look_up(tables.second[0] + x[p][n + k], weights + k * step + 64, sum[p]);
      }
    }
    weights += 8 * step;
  }
  const __m256i even = _mm256_set1_epi16(0x00ff);
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t v = 0; v < 2; ++v) {
      std::uint16_t* to = &counts[p][32 * v];
      store(to, _mm256_add_epi16(load(to), _mm256_and_si256(sum[p][v], even)));
      store(to + 16, _mm256_add_epi16(load(to + 16), _mm256_srli_epi16(sum[p][v], 8)));
    }
  }
}

// d of `pixels` neighbouring patches against a tile: counts[pixel][channel]. `offsets` is the first patch's; its rows are
// `pitch` offsets apart and `run` nibbles long.
template <std::size_t pixels, bool ternary, typename Offset>
inline __attribute__((always_inline)) void count_tile(const Offset* offsets, std::size_t pixel_step, std::size_t rows,
                                                      std::size_t run, std::size_t pitch, const unsigned char* weights,
                                                      std::uint16_t (*counts)[64]) {
  constexpr std::size_t most = sizeof(Offset) == 1 ? 48 : 24;  // a nibble counts 4 at most, a pair 8
  static_assert(most % 8 == 0);
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t v = 0; v < 4; ++v) store(&counts[p][16 * v], _mm256_setzero_si256());
  }
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t begin = 0; begin < run; begin += most) {
      const std::size_t nibbles = run - begin < most ? run - begin : most;
      count_nibbles<pixels, ternary, Offset>(offsets + row * pitch + begin, pixel_step, nibbles, weights, counts);
      weights += nibbles * (ternary ? 128 : 64);
    }
  }
}

// Calls emit(i, j, counts of 64 channels) for every output pixel and every tile of the first `channels` channels, tile by tile
// in pixel order. Offset: std::uint16_t where words have twins.
template <bool ternary, typename Offset, typename Begin, typename Emit, typename End>
inline __attribute__((always_inline)) void for_each_count_of(const ConvShape& shape, std::size_t channels,
                                                             const std::uint64_t* input, const ConvWeights& weights,
                                                             Begin begin, Emit emit, End end) {
  constexpr bool paired = sizeof(Offset) > 1;
  std::size_t looked_up = shape.pixel_words;  // of the words of a pixel, those that are not second ones of pairs
  if constexpr (paired) {
    for (std::size_t w = 0; w < shape.pixel_words; ++w) looked_up -= shape.twin[w] < w ? 1 : 0;
  }
  // Words of the input to offsets.
  const auto offsets_of = [&](std::size_t words) { return 16 * (paired ? words / shape.pixel_words * looked_up : words); };
  const std::size_t blocks = (channels + weight_lanes - 1) / weight_lanes;
  const std::size_t span = (shape.out_height - 1) * shape.row_step + (shape.out_width - 1) * shape.column_step +
                           (shape.patch_rows - 1) * shape.pitch + shape.run_words;
  const std::size_t offset_bytes = (offsets_of(span) * sizeof(Offset) + 63) / 64 * 64;
  unsigned char* memory = scratch.take(offset_bytes + offsets_of(shape.patch_words()) * (ternary ? 128 : 64));
  Offset* offsets = reinterpret_cast<Offset*>(memory);
  unsigned char* nibbles = memory + offset_bytes;
  if constexpr (paired) {
    expand_pairs(input, span, shape, offsets);
  } else {
    expand_input(input, span, offsets);
  }
  const std::size_t pixel_step = offsets_of(shape.column_step);
  const std::size_t row_step = offsets_of(shape.row_step);
  const std::size_t run = offsets_of(shape.run_words);
  const std::size_t pitch = offsets_of(shape.pitch);
  alignas(64) std::uint16_t counts[4][64];
  for (std::size_t block = 0; block < blocks; block += 4) {
    const std::size_t tile_blocks = blocks - block < 4 ? blocks - block : 4;
    expand_weights<ternary>(shape, weights, block, tile_blocks, nibbles);
    begin(block, tile_blocks);
    for (std::size_t i = 0; i < shape.out_height; ++i) {
      const Offset* row = offsets + i * row_step;
      std::size_t j = 0;
      for (; j + 4 <= shape.out_width; j += 4) {
        count_tile<4, ternary>(row + j * pixel_step, pixel_step, shape.patch_rows, run, pitch, nibbles, counts);
        for (std::size_t p = 0; p < 4; ++p) emit(i, j + p, counts[p]);
      }
      if (j + 2 <= shape.out_width) {
        count_tile<2, ternary>(row + j * pixel_step, pixel_step, shape.patch_rows, run, pitch, nibbles, counts);
        for (std::size_t p = 0; p < 2; ++p) emit(i, j + p, counts[p]);
        j += 2;
      }
      if (j < shape.out_width) {
        count_tile<1, ternary>(row + j * pixel_step, pixel_step, shape.patch_rows, run, pitch, nibbles, counts);
        emit(i, j, counts[0]);
      }
    }
    end();
  }
}

template <bool ternary, typename Begin, typename Emit, typename End>
inline __attribute__((always_inline)) void for_each_count(const ConvShape& shape, std::size_t channels,
                                                          const std::uint64_t* input, const ConvWeights& weights, Begin begin,
                                                          Emit emit, End end) {
  if (shape.twin != nullptr)
    return for_each_count_of<ternary, std::uint16_t>(shape, channels, input, weights, begin, emit, end);
  for_each_count_of<ternary, std::uint8_t>(shape, channels, input, weights, begin, emit, end);
}

// Counts are 16-bit: patches beyond 65472 bits (none of our nets) are left to ref.
inline bool fits(const ConvShape& shape) { return shape.patch_rows * shape.run_words < 1024; }

// Sums of e and e * e of a tile in 32-bit lanes, emptied into the caller's 64-bit sums before they can overflow.
struct TileStatistics {
  alignas(64) std::int32_t sum[64];
  alignas(64) std::uint32_t squares[64];
  std::size_t pixels = 0;

  void clear() {
    for (std::size_t v = 0; v < 64; v += 8) {
      store(sum + v, _mm256_setzero_si256());
      store(squares + v, _mm256_setzero_si256());
    }
    pixels = 0;
  }
  // The same for each of `planes` planes of channels, `rows` apart.
  void empty_into(std::int64_t* sums, std::int64_t* sums_of_squares, std::size_t channels, std::size_t planes,
                  std::size_t rows) {
    for (std::size_t plane = 0; plane < planes; ++plane) {
      for (std::size_t o = 0; o < channels; ++o) {
        sums[plane * rows + o] += sum[o];
        sums_of_squares[plane * rows + o] += squares[o];
      }
    }
    clear();
  }
};

template <bool ternary, bool with_window, bool with_statistics>
void conv_with(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, const ConvThresholds& thresholds,
               const ConvOutput& output) {
  const std::size_t out_words = (shape.out_channels + 63) / 64;
  const std::size_t rows = shape.out_channels / shape.planes;
  const std::int32_t half_of_patch = static_cast<std::int32_t>(32 * shape.patch_rows * shape.run_words);
  const std::size_t square = static_cast<std::size_t>(half_of_patch) * static_cast<std::size_t>(half_of_patch);
  const std::size_t most_pixels = 0xffffffffU / square;
  TileStatistics statistics;
  std::size_t first = 0;     // channel
  std::size_t channels = 0;  // channels of the tile
  std::size_t vectors = 0;
  std::uint64_t valid = 0;
  const auto begin = [&](std::size_t block, std::size_t blocks) {
    first = block * weight_lanes;
    channels = rows - first < 64 ? rows - first : 64;
    vectors = 2 * blocks;
    valid = channels == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << channels) - 1;
    if (with_statistics) statistics.clear();
  };
  const auto emit = [&](std::size_t i, std::size_t j, const std::uint16_t* counts) __attribute__((always_inline)) {
    for (std::size_t plane = 0; plane < shape.planes; ++plane) {
      const std::size_t channel = first + plane * rows;
      std::uint64_t off = 0;      // d > threshold
      std::uint64_t outside = 0;  // d < low or d > high
      for (std::size_t v = 0; v < vectors; ++v) {
        const __m256i d = _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(counts + 8 * v)));
        const auto mask = [&](__m256i lanes) __attribute__((always_inline)) {
          return static_cast<std::uint64_t>(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)))) << (8 * v);
        };
        off |= mask(_mm256_cmpgt_epi32(d, load(thresholds.threshold + channel + 8 * v)));
        if constexpr (with_window) {
          const __m256i below = _mm256_cmpgt_epi32(load(thresholds.low + channel + 8 * v), d);
          const __m256i above = _mm256_cmpgt_epi32(d, load(thresholds.high + channel + 8 * v));
          outside |= mask(_mm256_or_si256(below, above));
        }
        if constexpr (with_statistics) {
          if (plane == 0) {
            const __m256i e = _mm256_sub_epi32(d, _mm256_set1_epi32(half_of_patch));
            store(statistics.sum + 8 * v, _mm256_add_epi32(load(statistics.sum + 8 * v), e));
            store(statistics.squares + 8 * v, _mm256_add_epi32(load(statistics.squares + 8 * v), _mm256_mullo_epi32(e, e)));
          }
        }
      }
      const std::size_t word = channel / 64;
      output.bits[i * output.bits_pitch + j * out_words + word] = ~off & valid;
      if constexpr (with_window) output.window[(i * shape.out_width + j) * out_words + word] = ~outside & valid;
    }
    if constexpr (with_statistics) {
      if (++statistics.pixels == most_pixels) {
        statistics.empty_into(output.sum + first, output.sum_of_squares + first, channels, shape.planes, rows);
      }
    }
  };
  const auto end = [&] {
    if (with_statistics) statistics.empty_into(output.sum + first, output.sum_of_squares + first, channels, shape.planes, rows);
  };
  for_each_count<ternary>(shape, rows, input, weights, begin, emit, end);
}

template <bool ternary>
void conv_of(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, const ConvThresholds& thresholds,
             const ConvOutput& output) {
  if (output.window != nullptr) {
    if (output.sum != nullptr) return conv_with<ternary, true, true>(shape, input, weights, thresholds, output);
    return conv_with<ternary, true, false>(shape, input, weights, thresholds, output);
  }
  if (output.sum != nullptr) return conv_with<ternary, false, true>(shape, input, weights, thresholds, output);
  return conv_with<ternary, false, false>(shape, input, weights, thresholds, output);
}

void conv(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, const ConvThresholds& thresholds,
          const ConvOutput& output) {
  if (!fits(shape)) return ref_kernels.conv(shape, input, weights, thresholds, output);
  if (weights.nonzero != nullptr) return conv_of<true>(shape, input, weights, thresholds, output);
  return conv_of<false>(shape, input, weights, thresholds, output);
}

template <bool ternary>
void conv_counts_of(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, std::int32_t* counts) {
  const std::size_t padded = (shape.out_channels + weight_lanes - 1) / weight_lanes * weight_lanes;
  std::size_t first = 0;
  std::size_t vectors = 0;
  const auto begin = [&](std::size_t block, std::size_t blocks) {
    first = block * weight_lanes;
    vectors = 2 * blocks;
  };
  const auto emit = [&](std::size_t i, std::size_t j, const std::uint16_t* tile) __attribute__((always_inline)) {
    std::int32_t* pixel = counts + (i * shape.out_width + j) * padded + first;
    for (std::size_t v = 0; v < vectors; ++v) {
      store(pixel + 8 * v, _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(tile + 8 * v))));
    }
  };
  for_each_count<ternary>(shape, shape.out_channels, input, weights, begin, emit, [] {});
}

void conv_counts(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, std::int32_t* counts) {
  if (!fits(shape)) return ref_kernels.conv_counts(shape, input, weights, counts);
  if (weights.nonzero != nullptr) return conv_counts_of<true>(shape, input, weights, counts);
  return conv_counts_of<false>(shape, input, weights, counts);
}

// Eight chains of lookup and add, as in count_tile<4>.
std::uint64_t peak_loop(std::uint64_t iterations) {
  __m256i sum[8];
  __m256i table[4];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (std::size_t p = 0; p < 4; ++p) {
    table[p] = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(tables.differ[p])));
  }
  __m256i w0 = _mm256_set1_epi8(3);
  __m256i w1 = _mm256_set1_epi8(5);
  for (std::uint64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+x"(w0), "+x"(w1));  // new weights as far as the compiler can tell
    for (std::size_t p = 0; p < 4; ++p) {
      sum[2 * p] = _mm256_add_epi8(sum[2 * p], _mm256_shuffle_epi8(table[p], w0));
      sum[2 * p + 1] = _mm256_add_epi8(sum[2 * p + 1], _mm256_shuffle_epi8(table[p], w1));
    }
  }
  for (__m256i& s : sum) asm volatile("" : : "x"(s));
  return iterations * 8 * 32 * 4;
}

}  // namespace
}  // namespace bitloom::simd
