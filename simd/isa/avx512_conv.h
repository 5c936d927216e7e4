// The frame of the AVX-512 convolutions: strips of pixels, blocks of 16 channels, and what is done with the counts. How one
// tile of pixels is counted is the parameter `Counter`, which differs between the two AVX-512 tables.
// Private to simd/isa; everything is in an unnamed namespace, so that no symbol compiled with AVX-512 leaves its object.
#pragma once

#include "simd/isa/avx512_common.h"

namespace bitloom::simd {
namespace {

// The patches of a strip are gathered into at most this many bytes, so that they stay in the first-level cache while the
// weights of one block after the other pass by.
inline constexpr std::size_t strip_bytes = 16 * 1024;
inline constexpr std::size_t max_strip_pixels = 256;

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
template <bool kWindow, bool kStatistics>
class BitSink {
 public:
  BitSink(const ConvShape& shape, const ConvThresholds& thresholds, const ConvOutput& output)
      : shape_(shape),
        thresholds_(thresholds),
        output_(output),
        words_((shape.out_channels + word_bits - 1) / word_bits),
        blocks_((shape.out_channels + lanes - 1) / lanes),
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

  void begin_block(std::size_t block) {
    block_ = block;
    const std::size_t left = shape_.out_channels - block * lanes;
    valid_ = static_cast<__mmask16>(left >= lanes ? 0xFFFF : (1U << left) - 1);
    threshold_ = _mm512_loadu_si512(thresholds_.threshold + block * lanes);
    if constexpr (kWindow) {
      low_ = _mm512_loadu_si512(thresholds_.low + block * lanes);
      high_ = _mm512_loadu_si512(thresholds_.high + block * lanes);
    }
    if constexpr (kStatistics) {
      sum_ = _mm512_setzero_si512();
      squares_ = _mm512_setzero_si512();
      squares_odd_ = _mm512_setzero_si512();
    }
  }

  BITLOOM_INLINE void store(std::size_t p, __m512i d) {
    put(output_.bits + offsets_[p], _mm512_mask_cmple_epi32_mask(valid_, d, threshold_));
    if constexpr (kWindow) {
      const __mmask16 above = _mm512_mask_cmpge_epi32_mask(valid_, d, low_);
      put(output_.window + (first_ + p) * words_, _mm512_mask_cmple_epi32_mask(above, d, high_));
    }
    if constexpr (kStatistics) {
      const __m512i e = _mm512_sub_epi32(d, half_bits_);
      sum_ = _mm512_add_epi32(sum_, e);
      if (narrow_) {
        const __m512i e16 = _mm512_maskz_mov_epi16(0x55555555, e);  // the upper half of each lane is only the sign
        squares_ = _mm512_add_epi32(squares_, _mm512_madd_epi16(e16, e16));
      } else {
        const __m512i odd = _mm512_srli_epi64(e, 32);
        squares_ = _mm512_add_epi64(squares_, _mm512_mul_epi32(e, e));
        squares_odd_ = _mm512_add_epi64(squares_odd_, _mm512_mul_epi32(odd, odd));
      }
    }
  }

  void end_block() {
    if (block_ + 1 == blocks_ && blocks_ % (word_bits / lanes) != 0) clear_tails();
    if constexpr (kStatistics) {
      add_wide(output_.sum, _mm512_cvtepi32_epi64(_mm512_castsi512_si256(sum_)),
               _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(sum_, 1)));
      if (narrow_) {
        add_wide(output_.sum_of_squares, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(squares_)),
                 _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(squares_, 1)));
      } else {
        const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
        const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
        add_wide(output_.sum_of_squares, _mm512_permutex2var_epi64(squares_, low, squares_odd_),
                 _mm512_permutex2var_epi64(squares_, high, squares_odd_));
      }
    }
  }

 private:
  void put(std::uint64_t* pixel, __mmask16 mask) const {
    const std::uint16_t bits = static_cast<std::uint16_t>(mask);
    std::memcpy(reinterpret_cast<unsigned char*>(pixel) + block_ * sizeof bits, &bits, sizeof bits);
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

  void add_wide(std::int64_t* sums, __m512i low, __m512i high) const {
    sums += block_ * lanes;
    const __mmask8 low_valid = static_cast<__mmask8>(valid_);
    const __mmask8 high_valid = static_cast<__mmask8>(valid_ >> 8);
    _mm512_storeu_si512(sums, _mm512_mask_add_epi64(_mm512_loadu_si512(sums), low_valid, _mm512_loadu_si512(sums), low));
    sums += 8;
    _mm512_storeu_si512(sums, _mm512_mask_add_epi64(_mm512_loadu_si512(sums), high_valid, _mm512_loadu_si512(sums), high));
  }

  const ConvShape& shape_;
  const ConvThresholds& thresholds_;
  const ConvOutput& output_;
  const std::size_t words_;
  const std::size_t blocks_;
  const __m512i half_bits_;
  const bool narrow_;
  std::size_t first_ = 0, pixels_ = 0, block_ = 0;
  __mmask16 valid_ = 0;
  __m512i threshold_, low_, high_, sum_, squares_, squares_odd_;
  std::size_t offsets_[max_strip_pixels];
};

// Stores the counts themselves: H x W x round_up(O, 16).
class CountSink {
 public:
  CountSink(const ConvShape& shape, std::int32_t* counts)
      : counts_(counts), pitch_((shape.out_channels + lanes - 1) / lanes * lanes) {}
  void begin_strip(std::size_t first, std::size_t) { first_ = first; }
  void begin_block(std::size_t block) { block_ = block; }
  void store(std::size_t p, __m512i d) { _mm512_storeu_si512(counts_ + (first_ + p) * pitch_ + block_ * lanes, d); }
  void end_block() {}

 private:
  std::int32_t* counts_;
  std::size_t pitch_;
  std::size_t first_ = 0, block_ = 0;
};

// Counts of all pixels of one image. A strip of pixels is gathered into contiguous patches once; then, block by block of 16
// channels, tiles of Counter::tile pixels share each load of the weights.
//   Counter::count<P, kTernary>(const uint32_t* const (&x)[P], const uint32_t* sign, const uint32_t* nonzero, halves, d):
//   d[p], 16 counts of 32 bits, for `halves` halves of each of P patches.
template <class Counter, bool kTernary, class Sink>
void conv_image(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights, Sink& sink) {
  const std::size_t patch_words = shape.patch_rows * shape.run_words;
  const std::size_t halves = 2 * patch_words;
  const std::size_t pixels = shape.out_height * shape.out_width;
  const std::size_t blocks = (shape.out_channels + lanes - 1) / lanes;
  if (pixels == 0 || blocks == 0) return;
  constexpr std::size_t tile = Counter::tile;
  std::size_t strip = strip_bytes / (patch_words * sizeof(std::uint64_t)) / tile * tile;
  if (strip < tile) strip = tile;
  if (strip > max_strip_pixels) strip = max_strip_pixels;
  if (strip > pixels) strip = pixels;

  // A patch of a single run is contiguous where it lies.
  const bool gather = shape.patch_rows != 1;
  std::uint64_t* const scratch = gather ? new_words(strip * patch_words) : nullptr;
  const std::uint32_t* patches[max_strip_pixels];
  std::size_t i = 0, j = 0;
  for (std::size_t first = 0; first < pixels; first += strip) {
    const std::size_t count = strip < pixels - first ? strip : pixels - first;
    for (std::size_t p = 0; p < count; ++p) {
      const std::uint64_t* source = input + i * shape.row_step + j * shape.column_step;
      if (gather) {
        std::uint64_t* patch = scratch + p * patch_words;
        patches[p] = reinterpret_cast<const std::uint32_t*>(patch);
        for (std::size_t r = 0; r < shape.patch_rows; ++r)
          copy_words(patch + r * shape.run_words, source + r * shape.pitch, shape.run_words);
      } else {
        patches[p] = reinterpret_cast<const std::uint32_t*>(source);
      }
      if (++j == shape.out_width) j = 0, ++i;
    }

    sink.begin_strip(first, count);
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::uint32_t* sign = weights.sign + block * halves * lanes;
      const std::uint32_t* nonzero = kTernary ? weights.nonzero + block * halves * lanes : nullptr;
      sink.begin_block(block);
      std::size_t p = 0;
      for (; p + tile <= count; p += tile) {
        const std::uint32_t* x[tile];
        for (std::size_t k = 0; k < tile; ++k) x[k] = patches[p + k];
        __m512i d[tile];
        Counter::template count<tile, kTernary>(x, sign, nonzero, halves, d);
        for (std::size_t k = 0; k < tile; ++k) sink.store(p + k, d[k]);
      }
      for (; p < count; ++p) {
        const std::uint32_t* x[1] = {patches[p]};
        __m512i d[1];
        Counter::template count<1, kTernary>(x, sign, nonzero, halves, d);
        sink.store(p, d[0]);
      }
      sink.end_block();
    }
  }
  delete_words(scratch);
}

template <class Counter, bool kWindow, bool kStatistics>
void conv_to_bits(const ConvShape& shape, const std::uint64_t* input, const ConvWeights& weights,
                  const ConvThresholds& thresholds, const ConvOutput& output) {
  BitSink<kWindow, kStatistics> sink(shape, thresholds, output);
  if (weights.nonzero == nullptr) {
    conv_image<Counter, false>(shape, input, weights, sink);
  } else {
    conv_image<Counter, true>(shape, input, weights, sink);
  }
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
  CountSink sink(shape, counts);
  if (weights.nonzero == nullptr) {
    conv_image<Counter, false>(shape, input, weights, sink);
  } else {
    conv_image<Counter, true>(shape, input, weights, sink);
  }
}

}  // namespace
}  // namespace bitloom::simd
