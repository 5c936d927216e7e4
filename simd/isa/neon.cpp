// The Advanced SIMD table (every aarch64): exclusive or, count per byte, add per byte, on 4 pixels by 16 channels.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "simd/generic/elementwise.h"
#include "simd/generic/local_arch.h"
#include "simd/generic/positional_count.h"
#include "simd/tables.h"

BITLOOM_LOCAL_ARCH(neon64)

namespace bitloom::simd {
namespace {

struct Isa {
  using Batch = xsimd::batch<std::uint64_t, LocalArch>;

  static BITLOOM_INLINE Batch splat(std::uint64_t x) { return Batch(vdupq_n_u64(x)); }
  static BITLOOM_INLINE Batch load_part(const std::uint64_t* from, std::size_t) {
    return Batch(vcombine_u64(vld1_u64(from), vdup_n_u64(0)));
  }

  static BITLOOM_INLINE uint16x8_t join_bytes(const std::uint8_t* low, const std::uint8_t* high) {
    return vorrq_u16(vmovl_u8(vld1_u8(low)), vshll_n_u8(vld1_u8(high), 8));
  }
  static BITLOOM_INLINE void add_bytes(std::int32_t* to, const std::uint8_t* low, const std::uint8_t* high, unsigned shift,
                                       std::uint32_t bias) {
    const uint16x8_t count = join_bytes(low, high);
    const int32x4_t by = vdupq_n_s32(static_cast<std::int32_t>(shift));
    const uint32x4_t first = vaddq_u32(vshlq_u32(vmovl_u16(vget_low_u16(count)), by), vdupq_n_u32(bias));
    const uint32x4_t second = vaddq_u32(vshlq_u32(vmovl_high_u16(count), by), vdupq_n_u32(bias));
    vst1q_s32(to, vaddq_s32(vld1q_s32(to), vreinterpretq_s32_u32(first)));
    vst1q_s32(to + 4, vaddq_s32(vld1q_s32(to + 4), vreinterpretq_s32_u32(second)));
  }
  static BITLOOM_INLINE void put_bytes(std::int16_t* to, const std::uint8_t* low, const std::uint8_t* high) {
    vst1q_s16(to, vreinterpretq_s16_u16(join_bytes(low, high)));
  }
};

void accumulate_rows(const RowLists& rows, std::int32_t* sums) { accumulate_rows_with<Isa>(rows, sums); }

void pool_counts(const std::uint64_t* bits, std::size_t height, std::size_t width, std::size_t words, std::size_t pitch,
                 std::size_t grid, std::int16_t* counts) {
  pool_counts_with<Isa>(bits, height, width, words, pitch, grid, counts);
}

BITLOOM_INLINE uint8x16_t disagreements(uint32x4_t x, uint32x4_t sign) {
  return vcntq_u8(vreinterpretq_u8_u32(veorq_u32(x, sign)));
}

BITLOOM_INLINE uint8x16_t disagreements(uint32x4_t x, uint32x4_t sign, uint32x4_t nonzero) {
  return vcntq_u8(vreinterpretq_u8_u32(vandq_u32(veorq_u32(x, sign), nonzero)));
}

// d of `pixels` neighbouring patches against the 16 channels of a block: counts[pixel][channel].
template <std::size_t pixels, bool ternary>
BITLOOM_INLINE void count_block(const ConvShape& shape, const std::uint64_t* patch, const std::uint32_t* sign,
                                const std::uint32_t* nonzero, uint32x4_t (*counts)[4]) {
  constexpr std::size_t most = 30;  // halves until a byte could overflow: at most 31
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t v = 0; v < 4; ++v) counts[p][v] = vdupq_n_u32(0);
  }
  const std::size_t run = 2 * shape.run_words;
  for (std::size_t row = 0; row < shape.patch_rows; ++row) {
    for (std::size_t begin = 0; begin < run; begin += most) {
      const std::size_t end = run - begin < most ? run : begin + most;
      const std::uint64_t* words = patch + row * shape.pitch;
      uint8x16_t sum[pixels][4];
      for (std::size_t p = 0; p < pixels; ++p) {
        for (std::size_t v = 0; v < 4; ++v) sum[p][v] = vdupq_n_u8(0);
      }
      for (std::size_t half = begin; half < end; ++half) {
        uint32x4_t x[pixels];
        for (std::size_t p = 0; p < pixels; ++p) {
          std::uint32_t bits;
          __builtin_memcpy(&bits, reinterpret_cast<const unsigned char*>(words + p * shape.column_step) + 4 * half,
                           sizeof bits);
          x[p] = vdupq_n_u32(bits);
        }
        for (std::size_t v = 0; v < 4; ++v) {
          const uint32x4_t s = vld1q_u32(sign + 4 * v);
          if constexpr (ternary) {
            const uint32x4_t n = vld1q_u32(nonzero + 4 * v);
            for (std::size_t p = 0; p < pixels; ++p) sum[p][v] = vaddq_u8(sum[p][v], disagreements(x[p], s, n));
          } else {
            for (std::size_t p = 0; p < pixels; ++p) sum[p][v] = vaddq_u8(sum[p][v], disagreements(x[p], s));
          }
        }
        sign += weight_lanes;
        if constexpr (ternary) nonzero += weight_lanes;
      }
      for (std::size_t p = 0; p < pixels; ++p) {
        for (std::size_t v = 0; v < 4; ++v) counts[p][v] = vpadalq_u16(counts[p][v], vpaddlq_u8(sum[p][v]));
      }
    }
  }
}

// Calls emit(i, j, d of the block's 16 channels) for every output pixel of a block.
template <bool ternary, typename Emit>
BITLOOM_INLINE void for_each_count(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights,
                                   std::size_t block, Emit emit) {
  const std::size_t at = block * 2 * shape.patch_rows * shape.run_words * weight_lanes;
  const std::uint32_t* sign = weights.sign + at;
  const std::uint32_t* nonzero = ternary ? weights.nonzero + at : nullptr;
  uint32x4_t counts[4][4];
  for (std::size_t i = 0; i < shape.out_height; ++i) {
    const std::uint64_t* row = input + i * shape.row_step;
    std::size_t j = 0;
    for (; j + 4 <= shape.out_width; j += 4) {
      count_block<4, ternary>(shape, row + j * shape.column_step, sign, nonzero, counts);
      for (std::size_t p = 0; p < 4; ++p) emit(i, j + p, counts[p]);
    }
    for (; j < shape.out_width; ++j) {
      count_block<1, ternary>(shape, row + j * shape.column_step, sign, nonzero, counts);
      emit(i, j, counts[0]);
    }
  }
}

// Lane v of four masks as bit 4 * vector + v.
BITLOOM_INLINE unsigned gather_bits(const uint32x4_t masks[4]) {
  const uint32x4_t weight = {1, 2, 4, 8};
  unsigned bits = 0;
  for (unsigned v = 0; v < 4; ++v) bits |= vaddvq_u32(vandq_u32(masks[v], weight)) << (4 * v);
  return bits;
}

template <bool ternary, bool with_window, bool with_statistics>
void conv_with(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, const ConvThresholds& thresholds,
               const ConvOutput& output) {
  const std::size_t out_words = (shape.out_channels + 63) / 64;
  const std::size_t rows = shape.out_channels / shape.planes;
  const std::size_t blocks = (rows + weight_lanes - 1) / weight_lanes;
  const int32x4_t half_of_patch = vdupq_n_s32(static_cast<std::int32_t>(32 * shape.patch_rows * shape.run_words));
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * weight_lanes;
    const std::size_t channels = rows - first < weight_lanes ? rows - first : weight_lanes;
    const unsigned valid = (1U << channels) - 1;
    // The last block also clears the rest of its word: with one plane, for rows of several fill theirs.
    const std::size_t pieces = block + 1 == blocks && shape.planes == 1 ? 4 * out_words - block : 1;
    int64x2_t sum[8];
    int64x2_t squares[8];
    for (std::size_t v = 0; v < 8; ++v) sum[v] = squares[v] = vdupq_n_s64(0);
    // A block is a 16-bit piece of an output word.
    const auto put = [&](std::uint64_t * pixel, std::size_t channel, unsigned bits) __attribute__((always_inline)) {
      const std::uint16_t word[4] = {static_cast<std::uint16_t>(bits & valid), 0, 0, 0};
      __builtin_memcpy(reinterpret_cast<unsigned char*>(pixel) + channel / 8, word, 2 * pieces);
    };
    for_each_count<ternary>(
        shape, input, weights,
        block, [&](std::size_t i, std::size_t j, const uint32x4_t* counts) __attribute__((always_inline)) {
          for (std::size_t channel = first; channel < shape.out_channels; channel += rows) {
            uint32x4_t fired[4];
            uint32x4_t inside[4];
            for (std::size_t v = 0; v < 4; ++v) {
              const int32x4_t d = vreinterpretq_s32_u32(counts[v]);
              fired[v] = vcleq_s32(d, vld1q_s32(thresholds.threshold + channel + 4 * v));
              if constexpr (with_window) {
                inside[v] = vandq_u32(vcleq_s32(vld1q_s32(thresholds.low + channel + 4 * v), d),
                                      vcleq_s32(d, vld1q_s32(thresholds.high + channel + 4 * v)));
              }
            }
            put(output.bits + i * output.bits_pitch + j * out_words, channel, gather_bits(fired));
            if constexpr (with_window) put(output.window + (i * shape.out_width + j) * out_words, channel, gather_bits(inside));
          }
          if constexpr (with_statistics) {
            for (std::size_t v = 0; v < 4; ++v) {
              const int32x4_t d = vreinterpretq_s32_u32(counts[v]);
              const int32x4_t e = vsubq_s32(d, half_of_patch);
              sum[2 * v] = vaddw_s32(sum[2 * v], vget_low_s32(e));
              sum[2 * v + 1] = vaddw_high_s32(sum[2 * v + 1], e);
              squares[2 * v] = vmlal_s32(squares[2 * v], vget_low_s32(e), vget_low_s32(e));
              squares[2 * v + 1] = vmlal_high_s32(squares[2 * v + 1], e, e);
            }
          }
        });
    if constexpr (with_statistics) {
      for (std::size_t plane = first; plane < shape.out_channels; plane += rows) {
        for (std::size_t o = 0; o < channels; ++o) {
          output.sum[plane + o] += sum[o / 2][o % 2];
          output.sum_of_squares[plane + o] += squares[o / 2][o % 2];
        }
      }
    }
  }
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
  if (weights.nonzero != nullptr) return conv_of<true>(shape, input, weights, thresholds, output);
  return conv_of<false>(shape, input, weights, thresholds, output);
}

void conv_counts(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, std::int32_t* counts) {
  const std::size_t blocks = (shape.out_channels + weight_lanes - 1) / weight_lanes;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto put = [&](std::size_t i, std::size_t j, const uint32x4_t* d) {
      std::int32_t* to = counts + ((i * shape.out_width + j) * blocks + block) * weight_lanes;
      for (std::size_t v = 0; v < 4; ++v) vst1q_s32(to + 4 * v, vreinterpretq_s32_u32(d[v]));
    };
    if (weights.nonzero != nullptr) {
      for_each_count<true>(shape, input, weights, block, put);
    } else {
      for_each_count<false>(shape, input, weights, block, put);
    }
  }
}

// A tile of `rows` x 16 of C stays in registers over all of K.
template <std::size_t rows>
BITLOOM_INLINE void gemm_tile(std::size_t n, std::size_t k, const std::int16_t* a, std::size_t a_pitch,
                              const std::int16_t* b_pairs, std::int32_t* c, std::size_t c_pitch) {
  int32x4_t sum[rows][4];
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t v = 0; v < 4; ++v) sum[r][v] = vld1q_s32(c + r * c_pitch + 4 * v);
  }
  for (std::size_t i = 0; i < k; i += 2) {
    const int16x8x2_t low = vld2q_s16(b_pairs + i * n);
    const int16x8x2_t high = vld2q_s16(b_pairs + i * n + 16);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t pair = 0; pair < 2; ++pair) {
        const std::int16_t x = a[r * a_pitch + i + pair];
        sum[r][0] = vmlal_n_s16(sum[r][0], vget_low_s16(low.val[pair]), x);
        sum[r][1] = vmlal_high_n_s16(sum[r][1], low.val[pair], x);
        sum[r][2] = vmlal_n_s16(sum[r][2], vget_low_s16(high.val[pair]), x);
        sum[r][3] = vmlal_high_n_s16(sum[r][3], high.val[pair], x);
      }
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t v = 0; v < 4; ++v) vst1q_s32(c + r * c_pitch + 4 * v, sum[r][v]);
  }
}

void gemm_s16(std::size_t m, std::size_t n, std::size_t k, const std::int16_t* a, std::size_t a_pitch,
              const std::int16_t* b_pairs, std::int32_t* c, std::size_t c_pitch) {
  for (std::size_t column = 0; column < n; column += 16) {
    const std::int16_t* b = b_pairs + 2 * column;
    std::size_t row = 0;
    for (; row + 4 <= m; row += 4) gemm_tile<4>(n, k, a + row * a_pitch, a_pitch, b, c + row * c_pitch + column, c_pitch);
    for (; row < m; ++row) gemm_tile<1>(n, k, a + row * a_pitch, a_pitch, b, c + row * c_pitch + column, c_pitch);
  }
}

void threshold_pack(const std::int32_t* values, std::size_t pixels, std::size_t features, const std::int32_t* thresholds,
                    std::uint64_t* bits) {
  const std::size_t words = (2 * features + 63) / 64;
  const uint32x4_t even = {1, 4, 16, 64};
  const uint32x4_t odd = {2, 8, 32, 128};
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t word = 0; word < words; ++word) {
      std::uint64_t packed = 0;
      for (std::size_t f = 32 * word; f < features && f < 32 * word + 32; f += 4) {
        const int32x4_t x = vld1q_s32(values + p * features + f);
        const int32x4x2_t t = vld2q_s32(thresholds + 2 * f);
        const uint32x4_t lanes = vorrq_u32(vandq_u32(vcgeq_s32(x, t.val[0]), even), vandq_u32(vcleq_s32(x, t.val[1]), odd));
        packed |= static_cast<std::uint64_t>(vaddvq_u32(lanes)) << (2 * (f - 32 * word));
      }
      bits[p * words + word] = packed;
    }
  }
}

// Sixteen chains of exclusive or, count and add, as in count_block<4>.
std::uint64_t peak_loop(std::uint64_t iterations) {
  uint8x16_t sum[4][4];
  for (auto& row : sum) {
    for (uint8x16_t& s : row) s = vdupq_n_u8(0);
  }
  uint32x4_t x[4] = {vdupq_n_u32(1), vdupq_n_u32(2), vdupq_n_u32(3), vdupq_n_u32(4)};
  uint32x4_t sign[4] = {vdupq_n_u32(5), vdupq_n_u32(6), vdupq_n_u32(7), vdupq_n_u32(8)};
  for (std::uint64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+w"(x[0]), "+w"(x[1]), "+w"(x[2]), "+w"(x[3]));  // new input as far as the compiler can tell
    for (std::size_t p = 0; p < 4; ++p) {
      for (std::size_t v = 0; v < 4; ++v) sum[p][v] = vaddq_u8(sum[p][v], disagreements(x[p], sign[v]));
    }
  }
  for (auto& row : sum) {
    for (uint8x16_t& s : row) asm volatile("" : : "w"(s));
  }
  return iterations * 16 * 128;
}

}  // namespace

const Kernels neon_kernels = {"neon",      conv,           conv_counts,      accumulate_rows, pool_counts,
                              gemm_s16,    threshold_pack, prepare_rounding, centre_gradient, descend,
                              combine_s16, adam,           peak_loop};

}  // namespace bitloom::simd
