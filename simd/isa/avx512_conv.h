// The frame of the AVX-512 convolutions: strips of pixels, groups of blocks of 16 channels, and what is done with the counts.
// How one tile of pixels and blocks is counted is the parameter `Counter`, which differs between the two AVX-512 tables.
// Private to simd/isa; everything is in an unnamed namespace, so that no symbol compiled with AVX-512 leaves its object.
#pragma once

#include "simd/isa/avx512_patches.h"

namespace bitloom::simd {
namespace {

// The patches of a strip are gathered into at most this many bytes, so that they stay in the first-level cache while the
// weights of one block after the other pass by.
inline constexpr std::size_t strip_bytes = 16 * 1024;
inline constexpr std::size_t max_strip_pixels = 256;
inline constexpr std::size_t stack_words = 11 * 1024;  // strips up to this need no allocation: patches of 65,536 bits

// Up to this many halves the sums of e * e over one strip fit 32 bits and e fits 16: |e| <= 16 * halves, and a strip has at
// most max(max_strip_pixels, strip_bytes / (4 * halves)) pixels.
inline constexpr std::size_t max_halves_for_narrow_squares = 1024;

inline void copy_words(std::uint64_t* to, const std::uint64_t* from, std::size_t words) {
  for (; words >= 8; words -= 8, to += 8, from += 8) _mm512_storeu_si512(to, _mm512_loadu_si512(from));
  if (words != 0) {
    const __mmask8 mask = static_cast<__mmask8>((1U << words) - 1);
    _mm512_mask_storeu_epi64(to, mask, _mm512_maskz_loadu_epi64(mask, from));
  }
}

// Threshold, window and statistics of the counts d, and where they go.
template <int kBlocks, bool kWindow, bool kStatistics>
class BitSink {
 public:
  BitSink(const ConvShape& shape, const ConvThresholds& thresholds, const ConvOutput& output)
      : shape_(shape),
        thresholds_(thresholds),
        output_(output),
        words_((shape.out_channels + word_bits - 1) / word_bits),
        rows_(shape.out_channels / shape.planes),
        blocks_((rows_ + lanes - 1) / lanes),
        half_bits_(_mm512_set1_epi32(static_cast<int>(32 * shape.patch_rows * shape.run_words))),
        narrow_(2 * shape.patch_rows * shape.run_words <= max_halves_for_narrow_squares) {}

  void begin_strip(std::size_t first, std::size_t pixels) {
    first_ = first;
    pixels_ = pixels;
    std::size_t i = first / shape_.out_width;
    std::size_t j = first % shape_.out_width;
    for (std::size_t p = 0; p < pixels; ++p) {
      offsets_[p] = i * output_.bits_pitch + j * words_;
      if (++j == shape_.out_width) j = 0, ++i;
    }
  }

  // Block number `block` of the map becomes block b of the group.
  void begin_block(int b, std::size_t block) {
    Block& mine = group_[b];
    mine.index = block;
    const std::size_t left = rows_ - block * lanes;
    mine.valid = static_cast<__mmask16>(left >= lanes ? 0xFFFF : (1U << left) - 1);
    if constexpr (kStatistics) {
      mine.sum = _mm512_setzero_si512();
      mine.squares = _mm512_setzero_si512();
      mine.squares_odd = _mm512_setzero_si512();
    }
  }

  // Counts of the pixels p .. p + P - 1. What is written may alias this object for all that the compiler knows, so everything
  // that all pixels share is kept in locals.
  template <int P, int B>
  BITLOOM_INLINE void store(int b, std::size_t p, const __m512i (&d)[P][B]) {
    if constexpr (kStatistics) add_statistics(b, d);
    const __mmask16 valid = group_[b].valid;
    const std::size_t* const offsets = offsets_ + p;
    // Bits of each plane, whose channels are `rows` apart.
    const std::size_t rows = rows_, end = shape_.out_channels;
    for (std::size_t channel = group_[b].index * lanes; channel < end; channel += rows) {
      const std::size_t piece = channel / lanes * sizeof(std::uint16_t);
      if constexpr (kWindow) {
        const __m512i low = _mm512_loadu_si512(thresholds_.low + channel);
        const __m512i high = _mm512_loadu_si512(thresholds_.high + channel);
        unsigned char* const window = reinterpret_cast<unsigned char*>(output_.window + (first_ + p) * words_) + piece;
        const std::size_t step = words_ * sizeof(std::uint64_t);
#pragma GCC unroll 8
        for (int k = 0; k < P; ++k) {
          const __mmask16 above = _mm512_mask_cmpge_epi32_mask(valid, d[k][b], low);
          put(window + static_cast<std::size_t>(k) * step, _mm512_mask_cmple_epi32_mask(above, d[k][b], high));
        }
      }
      const __m512i threshold = _mm512_loadu_si512(thresholds_.threshold + channel);
      unsigned char* const bits = reinterpret_cast<unsigned char*>(output_.bits) + piece;
#pragma GCC unroll 8
      for (int k = 0; k < P; ++k)
        put(bits + offsets[k] * sizeof(std::uint64_t), _mm512_mask_cmple_epi32_mask(valid, d[k][b], threshold));
    }
  }

  void end_block(int b) {
    const Block& mine = group_[b];
    if (mine.index + 1 == blocks_ && blocks_ % (word_bits / lanes) != 0) clear_tails();
    if constexpr (kStatistics) {
      for (std::size_t channel = mine.index * lanes; channel < shape_.out_channels; channel += rows_) {
        add_wide(mine, output_.sum + channel, _mm512_cvtepi32_epi64(_mm512_castsi512_si256(mine.sum)),
                 _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(mine.sum, 1)));
        if (narrow_) {
          add_wide(mine, output_.sum_of_squares + channel, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(mine.squares)),
                   _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(mine.squares, 1)));
        } else {
          const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
          const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
          add_wide(mine, output_.sum_of_squares + channel, _mm512_permutex2var_epi64(mine.squares, low, mine.squares_odd),
                   _mm512_permutex2var_epi64(mine.squares, high, mine.squares_odd));
        }
      }
    }
  }

 private:
  struct Block {
    std::size_t index;
    __mmask16 valid;
    __m512i sum, squares, squares_odd;
  };

  BITLOOM_INLINE static void put(unsigned char* to, __mmask16 mask) {
    const std::uint16_t bits = static_cast<std::uint16_t>(mask);
    std::memcpy(to, &bits, sizeof bits);
  }

  template <int P, int B>
  BITLOOM_INLINE void add_statistics(int b, const __m512i (&d)[P][B]) {
    Block& mine = group_[b];
    __m512i sum = mine.sum, squares = mine.squares;
    if (narrow_) {
#pragma GCC unroll 8
      for (int k = 0; k < P; ++k) {
        const __m512i e = _mm512_sub_epi32(d[k][b], half_bits_);
        const __m512i e16 = _mm512_maskz_mov_epi16(0x55555555, e);  // the upper half of each lane is only the sign
        sum = _mm512_add_epi32(sum, e);
        squares = _mm512_add_epi32(squares, _mm512_madd_epi16(e16, e16));
      }
    } else {
      __m512i squares_odd = mine.squares_odd;
#pragma GCC unroll 8
      for (int k = 0; k < P; ++k) {
        const __m512i e = _mm512_sub_epi32(d[k][b], half_bits_);
        const __m512i odd = _mm512_srli_epi64(e, 32);
        sum = _mm512_add_epi32(sum, e);
        squares = _mm512_add_epi64(squares, _mm512_mul_epi32(e, e));
        squares_odd = _mm512_add_epi64(squares_odd, _mm512_mul_epi32(odd, odd));
      }
      mine.squares_odd = squares_odd;
    }
    mine.sum = sum;
    mine.squares = squares;
  }

  // The 16-channel pieces of the last word that no block writes.
  void clear_tails() const {
    for (std::size_t p = 0; p < pixels_; ++p) {
      for (std::size_t piece = blocks_; piece < words_ * (word_bits / lanes); ++piece) {
        const std::uint16_t none = 0;
        std::memcpy(reinterpret_cast<unsigned char*>(output_.bits + offsets_[p]) + piece * sizeof none, &none, sizeof none);
        if constexpr (kWindow) {
          std::memcpy(reinterpret_cast<unsigned char*>(output_.window + (first_ + p) * words_) + piece * sizeof none, &none,
                      sizeof none);
        }
      }
    }
  }

  static void add_wide(const Block& mine, std::int64_t* sums, __m512i low, __m512i high) {
    const __mmask8 low_valid = static_cast<__mmask8>(mine.valid);
    const __mmask8 high_valid = static_cast<__mmask8>(mine.valid >> 8);
    _mm512_storeu_si512(sums, _mm512_mask_add_epi64(_mm512_loadu_si512(sums), low_valid, _mm512_loadu_si512(sums), low));
    sums += 8;
    _mm512_storeu_si512(sums, _mm512_mask_add_epi64(_mm512_loadu_si512(sums), high_valid, _mm512_loadu_si512(sums), high));
  }

  const ConvShape& shape_;
  const ConvThresholds& thresholds_;
  const ConvOutput& output_;
  const std::size_t words_;
  const std::size_t rows_;
  const std::size_t blocks_;  // of rows
  const __m512i half_bits_;
  const bool narrow_;
  std::size_t first_ = 0, pixels_ = 0;
  Block group_[kBlocks];
  std::size_t offsets_[max_strip_pixels];
};

// Stores the counts themselves: H x W x round_up(O, 16).
template <int kBlocks>
class CountSink {
 public:
  CountSink(const ConvShape& shape, std::int32_t* counts)
      : counts_(counts), pitch_((shape.out_channels + lanes - 1) / lanes * lanes) {}
  void begin_strip(std::size_t first, std::size_t) { first_ = first; }
  void begin_block(int b, std::size_t block) { index_[b] = block; }
  template <int P, int B>
  BITLOOM_INLINE void store(int b, std::size_t p, const __m512i (&d)[P][B]) {
    std::int32_t* to = counts_ + (first_ + p) * pitch_ + index_[b] * lanes;
    for (int k = 0; k < P; ++k, to += pitch_) _mm512_storeu_si512(to, d[k][b]);
  }
  void end_block(int) {}

 private:
  std::int32_t* counts_;
  std::size_t pitch_;
  std::size_t first_ = 0;
  std::size_t index_[kBlocks] = {};
};

template <class Counter, Halves kind, int P, int B>
BITLOOM_INLINE void count_tile(const std::uint32_t* const (&x)[P], const Counted& counted, const Pairs& pairs,
                               __m512i (&d)[P][B]) {
  if constexpr (kind == Halves::paired) {
    pairs.count<Counter>(x, counted, d);
  } else {
    Counter::template count<P, B, kind>(x, counted, d);
  }
}

// One group of B blocks over the gathered patches of a strip.
template <class Counter, int B, Halves kind, class Sink>
void conv_group(const std::uint32_t* const* patches, std::size_t count, const ConvWeights& weights, std::size_t first_block,
                std::size_t halves, const Pairs& pairs, Sink& sink) {
  constexpr int tile = Counter::tile;
  Counted counted;
  counted.sign = weights.sign + first_block * halves * lanes;
  if (kind == Halves::ternary) counted.nonzero = weights.nonzero + first_block * halves * lanes;
  counted.block = counted.halves = halves;
  for (int b = 0; b < B; ++b) sink.begin_block(b, first_block + static_cast<std::size_t>(b));
  std::size_t p = 0;
  for (; p + tile <= count; p += tile) {
    const std::uint32_t* x[tile];
    for (std::size_t k = 0; k < tile; ++k) x[k] = patches[p + k];
    __m512i d[tile][B];
    count_tile<Counter, kind>(x, counted, pairs, d);
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) sink.store(b, p, d);
  }
  for (; p < count; ++p) {
    const std::uint32_t* x[1] = {patches[p]};
    __m512i d[1][B];
    count_tile<Counter, kind>(x, counted, pairs, d);
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) sink.store(b, p, d);
  }
  for (int b = 0; b < B; ++b) sink.end_block(b);
}

// Counts of the first `channels` channels at all pixels of one image. A strip of pixels is gathered into contiguous patches
// once; then, group by group of Counter::blocks blocks of 16 channels, tiles of Counter::tile pixels share each load of the
// weights, and the blocks each load of a pixel.
//   Counter::count<P, B, kind>(const uint32_t* const (&x)[P], const Counted& counted, d):
//   d[p][b], 16 counts of 32 bits, of each of P patches.
template <class Counter, Halves kind, class Sink>
void conv_image(const ConvShape& shape, std::size_t channels, const std::uint64_t* input, const ConvWeights& weights,
                Sink& sink) {
  constexpr bool is_paired = kind == Halves::paired;
  const std::size_t patch_words = shape.patch_rows * shape.run_words;
  const std::size_t halves = 2 * patch_words;
  const std::size_t pixels = shape.out_height * shape.out_width;
  const std::size_t blocks = (channels + lanes - 1) / lanes;
  if (pixels == 0 || blocks == 0) return;
  constexpr std::size_t tile = Counter::tile;
  std::size_t strip = strip_bytes / (patch_words * sizeof(std::uint64_t)) / tile * tile;
  if (strip < tile) strip = tile;
  if (strip > max_strip_pixels) strip = max_strip_pixels;
  if (strip > pixels) strip = pixels;

  // A patch of a single run is contiguous where it lies.
  const bool gather = is_paired || shape.patch_rows != 1;
  const std::size_t row_words = patch_words + (is_paired ? 1 : 0);
  const std::size_t scratch_words = strip * row_words + (is_paired ? 2 * patch_words : 0);
  alignas(64) std::uint64_t on_stack[stack_words];
  const bool fits = scratch_words <= stack_words;
  std::uint64_t* const scratch = !gather ? nullptr : fits ? on_stack : new_words(scratch_words);
  Pairs pairs;
  if (is_paired) pairs.list(shape, reinterpret_cast<std::uint32_t*>(scratch + strip * row_words));
  const std::uint32_t* patches[max_strip_pixels];
  std::size_t i = 0, j = 0;
  for (std::size_t first = 0; first < pixels; first += strip) {
    const std::size_t count = strip < pixels - first ? strip : pixels - first;
    for (std::size_t p = 0; p < count; ++p) {
      const std::uint64_t* source = input + i * shape.row_step + j * shape.column_step;
      if (gather) {
        std::uint64_t* patch = scratch + p * row_words;
        patches[p] = reinterpret_cast<const std::uint32_t*>(patch);
        if constexpr (is_paired) {
          pairs.gather(source, patch);
        } else {
          for (std::size_t r = 0; r < shape.patch_rows; ++r)
            copy_words(patch + r * shape.run_words, source + r * shape.pitch, shape.run_words);
        }
      } else {
        patches[p] = reinterpret_cast<const std::uint32_t*>(source);
      }
      if (++j == shape.out_width) j = 0, ++i;
    }

    sink.begin_strip(first, count);
    std::size_t block = 0;
    for (; block + Counter::blocks <= blocks; block += Counter::blocks)
      conv_group<Counter, Counter::blocks, kind>(patches, count, weights, block, halves, pairs, sink);
    for (; block < blocks; ++block) conv_group<Counter, 1, kind>(patches, count, weights, block, halves, pairs, sink);
  }
  if (!fits) delete_words(scratch);
}

template <class Counter, class Sink>
void conv_image_of_any(const ConvShape& shape, std::size_t channels, const std::uint64_t* input, const ConvWeights& weights,
                       Sink& sink) {
  if (weights.nonzero != nullptr) {
    conv_image<Counter, Halves::ternary>(shape, channels, input, weights, sink);
  } else if (shape.twin != nullptr) {
    conv_image<Counter, Halves::paired>(shape, channels, input, weights, sink);
  } else {
    conv_image<Counter, Halves::binary>(shape, channels, input, weights, sink);
  }
}

template <class Counter, bool kWindow, bool kStatistics>
void conv_to_bits(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights,
                  const ConvThresholds& thresholds, const ConvOutput& output) {
  BitSink<Counter::blocks, kWindow, kStatistics> sink(shape, thresholds, output);
  conv_image_of_any<Counter>(shape, shape.out_channels / shape.planes, input, weights, sink);
}

template <class Counter>
void conv(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, const ConvThresholds& thresholds,
          const ConvOutput& output) {
  const bool window = output.window != nullptr;
  const bool statistics = output.sum != nullptr;
  if (window && statistics) {
    conv_to_bits<Counter, true, true>(shape, input, weights, thresholds, output);
  } else if (window) {
    conv_to_bits<Counter, true, false>(shape, input, weights, thresholds, output);
  } else if (statistics) {
    conv_to_bits<Counter, false, true>(shape, input, weights, thresholds, output);
  } else {
    conv_to_bits<Counter, false, false>(shape, input, weights, thresholds, output);
  }
}

template <class Counter>
void conv_counts(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, std::int32_t* counts) {
  CountSink<Counter::blocks> sink(shape, counts);
  conv_image_of_any<Counter>(shape, shape.out_channels, input, weights, sink);
}

}  // namespace
}  // namespace bitloom::simd
