// The oracle: every kernel in plain loops, for baseline CPUs. It is shipped and selectable (BITLOOM_ISA=ref); the tests
// hold every other table to it with ==.
#include <cassert>

#include "core/bits.h"
#include "simd/generic/elementwise.h"
#include "simd/tables.h"

namespace bitloom::simd {
namespace {

constexpr std::size_t lanes = weight_lanes;

// Baseline x86-64 has no popcount instruction; this form (Warren, Hacker's Delight, section 5-1) vectorises over lanes.
inline std::uint32_t count_bits(std::uint32_t x) {
  x = x - ((x >> 1) & 0x55555555U);
  x = (x & 0x33333333U) + ((x >> 2) & 0x33333333U);
  x = (x + (x >> 4)) & 0x0f0f0f0fU;
  x += x >> 8;
  x += x >> 16;
  return x & 0x3fU;
}

// Sums wrap modulo 2^32.
inline std::int32_t add_modulo(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}

// d of one patch against the 16 channels of a block: counts[16].
void count_block(const ConvShape& shape, const std::uint64_t* patch, const ConvWeights& weights, std::size_t block,
                 std::int32_t* counts) {
  const std::size_t first = block * 2 * shape.patch_words() * lanes;
  const std::uint32_t* sign = weights.sign + first;
  const std::uint32_t* nonzero = weights.nonzero == nullptr ? nullptr : weights.nonzero + first;
  std::uint32_t d[lanes] = {};
  for (std::size_t row = 0; row < shape.patch_rows; ++row) {
    for (std::size_t half = 0; half < 2 * shape.run_words; ++half) {
      const std::uint32_t x = load_half(patch + row * shape.pitch, half);
      if (nonzero == nullptr) {
        for (std::size_t o = 0; o < lanes; ++o) d[o] += count_bits(x ^ sign[o]);
      } else {
        for (std::size_t o = 0; o < lanes; ++o) d[o] += count_bits((x ^ sign[o]) & nonzero[o]);
        nonzero += lanes;
      }
      sign += lanes;
    }
  }
  for (std::size_t o = 0; o < lanes; ++o) counts[o] = static_cast<std::int32_t>(d[o]);
}

void conv(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, const ConvThresholds& thresholds,
          const ConvOutput& output) {
  assert((output.sum == nullptr) == (output.sum_of_squares == nullptr));
  const std::size_t out_words = words_for(shape.out_channels);
  const std::int64_t half_of_patch = static_cast<std::int64_t>(32 * shape.patch_words());
  for (std::size_t i = 0; i < shape.out_height; ++i) {
    for (std::size_t j = 0; j < shape.out_width; ++j) {
      const std::uint64_t* patch = input + i * shape.row_step + j * shape.column_step;
      std::uint64_t* bits = output.bits + i * output.bits_pitch + j * out_words;
      std::uint64_t* window = output.window == nullptr ? nullptr : output.window + (i * shape.out_width + j) * out_words;
      for (std::size_t word = 0; word < out_words; ++word) {
        bits[word] = 0;
        if (window != nullptr) window[word] = 0;
      }
      for (std::size_t first = 0; first < shape.out_channels; first += lanes) {
        std::int32_t counts[lanes];
        count_block(shape, patch, weights, first / lanes, counts);
        for (std::size_t o = first; o < first + lanes && o < shape.out_channels; ++o) {
          const std::int32_t d = counts[o - first];
          set_bit(bits, o, d <= thresholds.threshold[o]);
          if (window != nullptr) set_bit(window, o, thresholds.low[o] <= d && d <= thresholds.high[o]);
          if (output.sum != nullptr) {
            const std::int64_t e = d - half_of_patch;
            output.sum[o] += e;
            output.sum_of_squares[o] += e * e;
          }
        }
      }
    }
  }
}

void conv_counts(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, std::int32_t* counts) {
  const std::size_t blocks = (shape.out_channels + lanes - 1) / lanes;
  for (std::size_t i = 0; i < shape.out_height; ++i) {
    for (std::size_t j = 0; j < shape.out_width; ++j) {
      const std::uint64_t* patch = input + i * shape.row_step + j * shape.column_step;
      for (std::size_t block = 0; block < blocks; ++block) {
        count_block(shape, patch, weights, block, counts + ((i * shape.out_width + j) * blocks + block) * lanes);
      }
    }
  }
}

void accumulate_rows(const RowLists& rows, std::int32_t* sums) {
  const std::size_t run_bits = rows.run_words * word_bits;
  for (std::size_t l = 0; l < rows.lists; ++l) {
    for (std::size_t s = 0; s < rows.scales; ++s) {
      const std::uint32_t end = rows.begin[l * rows.scales + s + 1];
      for (std::uint32_t row = rows.begin[l * rows.scales + s]; row < end; ++row) {
        for (std::size_t run = 0; run < rows.runs; ++run) {
          const std::uint64_t* words = rows.base + rows.offsets[row] + run * rows.pitch;
          std::int32_t* run_sums = sums + (l * rows.runs + run) * run_bits;
          for (std::size_t k = 0; k < run_bits; ++k) {
            if (get_bit(words, k)) run_sums[k] = add_modulo(run_sums[k], rows.scale[s]);
          }
        }
      }
    }
  }
}

void pool_counts(const std::uint64_t* bits, std::size_t height, std::size_t width, std::size_t words, std::size_t pitch,
                 std::size_t grid, std::int16_t* counts) {
  const std::size_t channels = words * word_bits;
  for (std::size_t a = 0; a < grid; ++a) {
    for (std::size_t b = 0; b < grid; ++b) {
      std::int16_t* cell = counts + (a * grid + b) * channels;
      for (std::size_t c = 0; c < channels; ++c) cell[c] = 0;
      for (std::size_t i = a * height / grid; i < (a + 1) * height / grid; ++i) {
        for (std::size_t j = b * width / grid; j < (b + 1) * width / grid; ++j) {
          const std::uint64_t* pixel = bits + i * pitch + j * words;
          for (std::size_t c = 0; c < channels; ++c) cell[c] = static_cast<std::int16_t>(cell[c] + get_bit(pixel, c));
        }
      }
    }
  }
}

void gemm_s16(std::size_t m, std::size_t n, std::size_t k, const std::int16_t* a, std::size_t a_pitch,
              const std::int16_t* b_pairs, std::int32_t* c, std::size_t c_pitch) {
  assert(n % 16 == 0 && k % 2 == 0);
  for (std::size_t row = 0; row < m; ++row) {
    for (std::size_t i = 0; i < k; i += 2) {
      const std::int32_t a0 = a[row * a_pitch + i];
      const std::int32_t a1 = a[row * a_pitch + i + 1];
      const std::int16_t* pairs = b_pairs + i * n;
      for (std::size_t column = 0; column < n; ++column) {
        const std::int32_t pair = a0 * pairs[2 * column] + a1 * pairs[2 * column + 1];
        c[row * c_pitch + column] = add_modulo(c[row * c_pitch + column], pair);
      }
    }
  }
}

void threshold_pack(const std::int32_t* values, std::size_t pixels, std::size_t features, const std::int32_t* thresholds,
                    std::uint64_t* bits) {
  const std::size_t words = words_for(2 * features);
  for (std::size_t p = 0; p < pixels; ++p) {
    std::uint64_t* pixel = bits + p * words;
    for (std::size_t word = 0; word < words; ++word) pixel[word] = 0;
    for (std::size_t f = 0; f < features; ++f) {
      const std::int32_t value = values[p * features + f];
      set_bit(pixel, 2 * f, value >= thresholds[2 * f]);
      set_bit(pixel, 2 * f + 1, value <= thresholds[2 * f + 1]);
    }
  }
}

std::uint64_t peak_loop(std::uint64_t iterations) {
  std::uint32_t sign[lanes];
  std::uint32_t d[lanes] = {};
  for (std::size_t o = 0; o < lanes; ++o) sign[o] = static_cast<std::uint32_t>(o) * 0x9e3779b9U;
  std::uint32_t x = 0;
  for (std::uint64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+r"(x));  // a new input as far as the compiler can tell
    for (std::size_t o = 0; o < lanes; ++o) d[o] += count_bits(x ^ sign[o]);
  }
  asm volatile("" : : "r"(d) : "memory");
  return iterations * 32 * lanes;
}

}  // namespace

const Kernels ref_kernels = {"ref",       conv,           conv_counts,      accumulate_rows, pool_counts,
                             gemm_s16,    threshold_pack, prepare_rounding, centre_gradient, descend,
                             combine_s16, adam,           peak_loop};

}  // namespace bitloom::simd
