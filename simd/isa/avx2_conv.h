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

#include "simd/isa/avx2_lookup.h"
#include "simd/tables.h"

namespace bitloom::simd {
namespace {

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
