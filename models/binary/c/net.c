/* @about@ */

/* Written by `bitloom export --to c`. The declarations, and what they mean, are in @header@. Everything is computed in integers or in
 * single IEEE operations in a fixed order, so that scores are the same bits on every machine, and those of `bitloom predict`.
 *
 * cc -O2 -march=native -c @source@               an object for a program of yours
 * cc -O2 -march=native -DBITLOOM_MAIN @source@ -lm    a program that classifies PPM images
 *
 * Constants: @constant_bytes@ bytes. Working memory, static: @memory_bytes@ bytes, so that one thread at a time may ask for scores.
 * Where each thread shall have its own: -DBITLOOM_STORAGE="static _Thread_local". */
#include "@header@"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline)) /* -O2 would leave calls in the innermost loops */
#else
#define INLINE static inline
#endif

#ifndef BITLOOM_STORAGE
#define BITLOOM_STORAGE static
#endif

/* A map has ceil(channels / 64) words for each pixel; channel c is bit c % 64 of word c / 64. A set bit stands for -1. */

/* How f x f pixels of an input become one. */
enum pool { pool_or, pool_and, pool_majority, pool_space_to_depth };

/* An input of a layer: where its map begins in memory.maps, its words per pixel and width, the factor by which it is reduced, the word of
 * a pixel of the layer's input where it begins. */
struct input {
  size_t map, words, width, factor, word;
};

/* A binary layer. Maps by where they begin in memory.maps. The common input has a border of zeros. Weights: (blocks, patch words, 8), so
 * that a word of a patch meets eight channels at once; `nonzero` is null where no weight is 0. Thresholds: (blocks, 8). */
struct layer {
  const struct input *inputs;
  size_t input_count;
  enum pool way;
  size_t in, in_height, in_width, in_words, border;
  size_t kernel, stride;
  size_t out, out_height, out_width, out_words, blocks;
  const uint64_t *weights, *nonzero;
  const int32_t *thresholds;
};

/* A classifier over a map: features are set bits, by region and channel (channels in whole words). `signs` is for heads whose weights
 * have one size, `unit`; where there are no hidden units, their pointers are null. */
struct head {
  size_t map, height, width, words;
  size_t grid, kernel; /* grid x grid cells; or, if kernel is not 0, kernel x kernel shifts of the whole map */
  const int16_t *centre, *linear;
  const uint64_t *signs;
  int32_t gain; /* of signs */
  float unit;
  const float *bias;
  size_t hidden;
  const int16_t *hidden_in, *hidden_out;
  const float *hidden_bias;
  float hidden_unit;
};

@data@

#define PATCH_ROW (((PATCH * COLOURS + 1) / 2) * 2) /* taps of a row of a patch, an even number */
#define PADDED_HEIGHT (HEIGHT + PATCH - 1)
#define PADDED_WIDTH (WIDTH + PATCH - 1)

/* What is computed on the way. Borders of maps stay 0. */
struct memory {
  uint64_t maps[MAP_WORDS];
  int16_t pixels[PADDED_HEIGHT * PADDED_WIDTH * COLOURS + 1]; /* the image with its edge repeated, colours side by side */
  int32_t responses[FILTERS];
  int16_t features[FEATURES];
  float logits[CLASSES];
};
BITLOOM_STORAGE struct memory memory;

/* A product in single precision, and not a part of something that is rounded once: a store cannot be left out. */
static float times(float a, float b) {
  volatile float product = a * b;
  return product;
}

static float plus(float a, float b) {
  volatile float sum = a + b;
  return sum;
}

static double times_plus(double a, double b, double c) {
  volatile double product = a * b;
  volatile double sum = product + c;
  return sum;
}

static uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static double double_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* exp(x), x <= 0: x = n ln 2 + r, and the Taylor series of exp(r). */
static double exp_of(double x) {
  static const double terms[] = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0};
  const double round_shift = 6755399441055744.0; /* 1.5 * 2^52: added and subtracted, it rounds to an integer */
  const double shifted = times_plus(x, 1.4426950408889634, round_shift);
  const double n = shifted - round_shift;
  const double r = times_plus(n, -0.6931471805599453, x);
  double p = 1.0 / 362880;
  size_t i;
  if (!(x >= -87.0)) return 0.0;
  for (i = 0; i < sizeof terms / sizeof *terms; ++i) p = times_plus(p, r, terms[i]);
  return p * double_of((bits_of(shifted) + 1023) << 52);
}

/* The natural logarithm of x >= 1: x = m 2^k, log m = 2 artanh((m - 1) / (m + 1)). */
static double log_of(double x) {
  static const double terms[] = {1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0};
  const uint64_t k = (bits_of(x) - UINT64_C(0x3fe6a09e667f3bcd)) >> 52; /* less the bits of sqrt(1/2) */
  const double m = double_of(bits_of(x) - (k << 52));
  volatile double s = (m - 1.0) / (m + 1.0);
  volatile double q = s * s;
  volatile double twice = 2.0 * s;
  volatile double series;
  double p = 1.0 / 13;
  size_t i;
  for (i = 0; i < sizeof terms / sizeof *terms; ++i) p = times_plus(p, q, terms[i]);
  series = twice * p;
  return times_plus((double)k, 0.6931471805599453, series);
}

/* Which pixel of 0 .. size - 1 stands at i of a view: `i` beyond the edge repeats it; moved by `by`, reflected, mirrored. */
static size_t seen_at(ptrdiff_t i, ptrdiff_t size, ptrdiff_t by, int mirror) {
  i = i < 0 ? 0 : i >= size ? size - 1 : i;
  if (mirror) i = size - 1 - i;
  i += by;
  i = i < 0 ? -i : i >= size ? 2 * (size - 1) - i : i;
  return (size_t)i;
}

static void see(const unsigned char *pixels, ptrdiff_t down, ptrdiff_t across, int mirror) {
  const ptrdiff_t half = PATCH / 2;
  int16_t *out = memory.pixels;
  ptrdiff_t y, x;
  size_t c;
  for (y = -half; y < HEIGHT + half; ++y) {
    const unsigned char *row = pixels + seen_at(y, HEIGHT, down, 0) * WIDTH * COLOURS;
    for (x = -half; x < WIDTH + half; ++x) {
      const unsigned char *pixel = row + seen_at(x, WIDTH, across, mirror) * COLOURS;
      for (c = 0; c < COLOURS; ++c) *out++ = pixel[c];
    }
  }
}

/* Responses of 16 filters to the patch that begins at `pixels`. Taps: (PATCH, PATCH_ROW / 2, FILTERS, 2), so that two are multiplied at
 * once. */
INLINE void filter_patch(const int16_t *pixels, const int16_t *taps, int32_t *responses) {
  size_t r, t;
#if defined(__AVX512BW__)
  __m512i sum = _mm512_setzero_si512();
#elif defined(__AVX2__)
  __m256i low = _mm256_setzero_si256(), high = low;
#else
  int32_t sums[16] = {0};
  size_t k;
#endif
  for (r = 0; r < PATCH; ++r, pixels += PADDED_WIDTH * COLOURS) {
    for (t = 0; t < PATCH_ROW; t += 2, taps += 2 * FILTERS) {
#if defined(__AVX512BW__) || defined(__AVX2__)
      int32_t pair;
      memcpy(&pair, pixels + t, sizeof pair);
#if defined(__AVX512BW__)
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_loadu_si512((const void *)taps), _mm512_set1_epi32(pair)));
#else
      low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)(const void *)taps), _mm256_set1_epi32(pair)));
      high = _mm256_add_epi32(
          high, _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(taps + 16)), _mm256_set1_epi32(pair)));
#endif
#else
      for (k = 0; k < 16; ++k) sums[k] += taps[2 * k] * pixels[t] + taps[2 * k + 1] * pixels[t + 1];
#endif
    }
  }
#if defined(__AVX512BW__)
  _mm512_storeu_si512((void *)responses, sum);
#elif defined(__AVX2__)
  _mm256_storeu_si256((__m256i *)(void *)responses, low);
  _mm256_storeu_si256((__m256i *)(void *)(responses + 8), high);
#else
  memcpy(responses, sums, sizeof sums);
#endif
}

#if CONTRAST_COUNTS
/* By what the responses of the patch that begins at `pixels` are multiplied. */
static float gain_of(const int16_t *pixels) {
  const double taps = PATCH * PATCH * COLOURS;
  const double floor_of_variance = (double)contrast * (double)contrast;
  int32_t sum = 0, squares = 0;
  double mean, variance;
  size_t r, t;
  for (r = 0; r < PATCH; ++r) {
    for (t = 0; t < PATCH * COLOURS; ++t) {
      const int32_t value = pixels[r * PADDED_WIDTH * COLOURS + t];
      sum += value;
      squares += value * value;
    }
  }
  mean = sum / taps;
  variance = times_plus(-mean, mean, squares / taps);
  return (float)((double)contrast / sqrt((variance > 0 ? variance : 0) + floor_of_variance));
}
#endif

/* Bit k: a[k] >= b[k], for 32 numbers. */
INLINE uint32_t at_least(const int32_t *a, const int32_t *b) {
  uint32_t bits = 0;
  size_t k;
#if defined(__AVX512F__)
  for (k = 0; k < 32; k += 16)
    bits |= (uint32_t)_mm512_cmpge_epi32_mask(_mm512_loadu_si512((const void *)(a + k)), _mm512_loadu_si512((const void *)(b + k))) << k;
#elif defined(__AVX2__)
  for (k = 0; k < 32; k += 8) {
    const __m256i below = _mm256_cmpgt_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(b + k)),
                                             _mm256_loadu_si256((const __m256i *)(const void *)(a + k)));
    bits |= (uint32_t)(_mm256_movemask_ps(_mm256_castsi256_ps(below)) ^ 255) << k;
  }
#else
  for (k = 0; k < 32; ++k) bits |= (uint32_t)(a[k] >= b[k]) << k;
#endif
  return bits;
}

/* Bit k to bit 2 k. */
static uint64_t spread(uint64_t x) {
  x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
  x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
  x = (x | x << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
  x = (x | x << 2) & UINT64_C(0x3333333333333333);
  return (x | x << 1) & UINT64_C(0x5555555555555555);
}

/* memory.pixels to the map at 0. */
static void encode(void) {
  uint64_t *out = memory.maps;
  size_t y, x, f;
  for (y = 0; y < HEIGHT; ++y) {
    for (x = 0; x < WIDTH; ++x, out += FILTERS / 32) {
      const int16_t *patch = memory.pixels + (y * PADDED_WIDTH + x) * COLOURS;
      for (f = 0; f < FILTERS; f += 16) filter_patch(patch, filters + 2 * f, memory.responses + f);
#if CONTRAST_COUNTS
      {
        const float gain = gain_of(patch);
#if defined(FLT_EVAL_METHOD) && (FLT_EVAL_METHOD == 0 || FLT_EVAL_METHOD == 16)
        for (f = 0; f < FILTERS; ++f) memory.responses[f] = (int32_t)((float)memory.responses[f] * gain);
#else
        for (f = 0; f < FILTERS; ++f) memory.responses[f] = (int32_t)times((float)memory.responses[f], gain);
#endif
      }
#endif
      for (f = 0; f < FILTERS; f += 32) {
        const uint32_t high = at_least(memory.responses + f, upper + f), low = at_least(lower + f, memory.responses + f);
        out[f / 32] = spread(high) | spread(low) << 1;
      }
    }
  }
}

/* Word w of the factor x factor pixels from `cell` on, which lie in rows of `pitch` words, as one. */
static uint64_t pool_word(const uint64_t *cell, size_t pitch, size_t words, size_t factor, enum pool way) {
  uint64_t result = way == pool_and ? ~UINT64_C(0) : 0;
  size_t y, x, bit;
  if (way == pool_majority) {
    for (bit = 0; bit < 64; ++bit) {
      size_t count = 0;
      for (y = 0; y < factor; ++y) {
        for (x = 0; x < factor; ++x) count += cell[y * pitch + x * words] >> bit & 1;
      }
      result |= (uint64_t)(2 * count > factor * factor) << bit;
    }
    return result;
  }
  for (y = 0; y < factor; ++y) {
    for (x = 0; x < factor; ++x) {
      if (way == pool_and) {
        result &= cell[y * pitch + x * words];
      } else {
        result |= cell[y * pitch + x * words];
      }
    }
  }
  return result;
}

/* An input of a layer, reduced, into the layer's own input map. */
static void place(const struct layer *layer, const struct input *input) {
  const size_t in_pitch = (layer->in_width + 2 * layer->border) * layer->in_words;
  const size_t pitch = input->width * input->words, f = input->factor;
  size_t y, x, w, i, j;
  for (y = 0; y < layer->in_height; ++y) {
    uint64_t *out = memory.maps + layer->in + (y + layer->border) * in_pitch + layer->border * layer->in_words + input->word;
    for (x = 0; x < layer->in_width; ++x, out += layer->in_words) {
      const uint64_t *cell = memory.maps + input->map + y * f * pitch + x * f * input->words;
      if (f == 1 || layer->way == pool_space_to_depth) {
        for (i = 0; i < f; ++i) {
          for (j = 0; j < f; ++j) memcpy(out + (i * f + j) * input->words, cell + i * pitch + j * input->words, input->words * sizeof *out);
        }
      } else {
        for (w = 0; w < input->words; ++w) out[w] = pool_word(cell + w, pitch, input->words, f, layer->way);
      }
    }
  }
}

/* The output bits of eight channels for two patches, which begin at `first` and `second` and have `rows` rows of `run` words, `pitch`
 * words apart: bits 0 to 7 and 8 to 15. A channel's bit is set where not more than its threshold of the bits differ from its weights. */
#if defined(__AVX512F__) && defined(__AVX512VPOPCNTDQ__)
static unsigned convolve(const uint64_t *first, const uint64_t *second, size_t rows, size_t run, size_t pitch, const uint64_t *weights,
                         const uint64_t *nonzero, const int32_t *thresholds) {
  __m512i a = _mm512_setzero_si512(), b = a;
  const __m512i limit = _mm512_maskz_cvtepi32_epi64(0xff, _mm256_loadu_si256((const __m256i *)(const void *)thresholds));
  size_t r, t;
  for (r = 0; r < rows; ++r, first += pitch, second += pitch) {
    for (t = 0; t < run; ++t, weights += 8) {
      const __m512i sign = _mm512_loadu_si512((const void *)weights);
      __m512i x = _mm512_xor_si512(sign, _mm512_set1_epi64((long long)first[t]));
      __m512i y = _mm512_xor_si512(sign, _mm512_set1_epi64((long long)second[t]));
      if (nonzero) {
        const __m512i care = _mm512_loadu_si512((const void *)nonzero);
        x = _mm512_and_si512(x, care);
        y = _mm512_and_si512(y, care);
        nonzero += 8;
      }
      a = _mm512_add_epi64(a, _mm512_popcnt_epi64(x));
      b = _mm512_add_epi64(b, _mm512_popcnt_epi64(y));
    }
  }
  return (unsigned)_mm512_cmple_epi64_mask(a, limit) | (unsigned)_mm512_cmple_epi64_mask(b, limit) << 8;
}
#else

/* Set bits of eight channels' words, summed by `add`: where vectors count bytes, in bytes of up to 31 words, and `flush` adds those up. */
#if defined(__AVX2__)
struct sums {
  __m256i bytes[2], words[2];
};

INLINE __m256i set_bits(__m256i x) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  return _mm256_add_epi8(_mm256_shuffle_epi8(table, _mm256_and_si256(x, nibble)),
                         _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble)));
}

INLINE void add(struct sums *sums, uint64_t word, const uint64_t *weights, const uint64_t *nonzero) {
  const __m256i x = _mm256_set1_epi64x((long long)word);
  __m256i low = _mm256_xor_si256(x, _mm256_loadu_si256((const __m256i *)(const void *)weights));
  __m256i high = _mm256_xor_si256(x, _mm256_loadu_si256((const __m256i *)(const void *)(weights + 4)));
  if (nonzero) {
    low = _mm256_and_si256(low, _mm256_loadu_si256((const __m256i *)(const void *)nonzero));
    high = _mm256_and_si256(high, _mm256_loadu_si256((const __m256i *)(const void *)(nonzero + 4)));
  }
  sums->bytes[0] = _mm256_add_epi8(sums->bytes[0], set_bits(low));
  sums->bytes[1] = _mm256_add_epi8(sums->bytes[1], set_bits(high));
}

INLINE void flush(struct sums *sums) {
  const __m256i zero = _mm256_setzero_si256();
  sums->words[0] = _mm256_add_epi64(sums->words[0], _mm256_sad_epu8(sums->bytes[0], zero));
  sums->words[1] = _mm256_add_epi64(sums->words[1], _mm256_sad_epu8(sums->bytes[1], zero));
  sums->bytes[0] = sums->bytes[1] = zero;
}

INLINE void read_sums(const struct sums *sums, int64_t *counts) {
  _mm256_storeu_si256((__m256i *)(void *)counts, sums->words[0]);
  _mm256_storeu_si256((__m256i *)(void *)(counts + 4), sums->words[1]);
}
#elif defined(__ARM_NEON)
struct sums {
  uint8x16_t bytes[4];
  uint64x2_t words[4];
};

INLINE uint8x16_t two_more(uint8x16_t bytes, uint64x2_t word, const uint64_t *weights, const uint64_t *nonzero) {
  uint64x2_t differ = veorq_u64(word, vld1q_u64(weights));
  if (nonzero) differ = vandq_u64(differ, vld1q_u64(nonzero));
  return vaddq_u8(bytes, vcntq_u8(vreinterpretq_u8_u64(differ)));
}

/* Without a loop, which would keep the sums in memory. */
INLINE void add(struct sums *sums, uint64_t word, const uint64_t *weights, const uint64_t *nonzero) {
  const uint64x2_t x = vdupq_n_u64(word);
  sums->bytes[0] = two_more(sums->bytes[0], x, weights, nonzero);
  sums->bytes[1] = two_more(sums->bytes[1], x, weights + 2, nonzero ? nonzero + 2 : NULL);
  sums->bytes[2] = two_more(sums->bytes[2], x, weights + 4, nonzero ? nonzero + 4 : NULL);
  sums->bytes[3] = two_more(sums->bytes[3], x, weights + 6, nonzero ? nonzero + 6 : NULL);
}

INLINE uint64x2_t sum_bytes(uint8x16_t bytes) { return vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(bytes))); }

INLINE void flush(struct sums *sums) {
  sums->words[0] = vaddq_u64(sums->words[0], sum_bytes(sums->bytes[0]));
  sums->words[1] = vaddq_u64(sums->words[1], sum_bytes(sums->bytes[1]));
  sums->words[2] = vaddq_u64(sums->words[2], sum_bytes(sums->bytes[2]));
  sums->words[3] = vaddq_u64(sums->words[3], sum_bytes(sums->bytes[3]));
  sums->bytes[0] = sums->bytes[1] = sums->bytes[2] = sums->bytes[3] = vdupq_n_u8(0);
}

INLINE void read_sums(const struct sums *sums, int64_t *counts) {
  size_t i;
  for (i = 0; i < 4; ++i) vst1q_s64(counts + 2 * i, vreinterpretq_s64_u64(sums->words[i]));
}
#else
struct sums {
  int64_t words[8];
};

INLINE int set_bits(uint64_t x) {
#if defined(__POPCNT__)
  return __builtin_popcountll(x); /* without the instruction, a call that takes longer than what is below */
#else
  x -= x >> 1 & UINT64_C(0x5555555555555555);
  x = (x & UINT64_C(0x3333333333333333)) + (x >> 2 & UINT64_C(0x3333333333333333));
  x = (x + (x >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
  return (int)(x * UINT64_C(0x0101010101010101) >> 56);
#endif
}

INLINE int64_t differing(uint64_t word, const uint64_t *weight, const uint64_t *nonzero, size_t i) {
  return set_bits((word ^ weight[i]) & (nonzero ? nonzero[i] : ~UINT64_C(0)));
}

/* Without a loop, which would keep the sums in memory. */
INLINE void add(struct sums *sums, uint64_t word, const uint64_t *weights, const uint64_t *nonzero) {
  sums->words[0] += differing(word, weights, nonzero, 0);
  sums->words[1] += differing(word, weights, nonzero, 1);
  sums->words[2] += differing(word, weights, nonzero, 2);
  sums->words[3] += differing(word, weights, nonzero, 3);
  sums->words[4] += differing(word, weights, nonzero, 4);
  sums->words[5] += differing(word, weights, nonzero, 5);
  sums->words[6] += differing(word, weights, nonzero, 6);
  sums->words[7] += differing(word, weights, nonzero, 7);
}

INLINE void flush(struct sums *sums) { (void)sums; }

INLINE void read_sums(const struct sums *sums, int64_t *counts) { memcpy(counts, sums->words, sizeof sums->words); }
#endif

INLINE unsigned convolve_one(const uint64_t *patch, size_t rows, size_t run, size_t pitch, const uint64_t *weights,
                             const uint64_t *nonzero, const int32_t *thresholds) {
  struct sums sums;
  int64_t counts[8];
  unsigned bits = 0, i;
  size_t r, t, end;
  memset(&sums, 0, sizeof sums);
  for (r = 0; r < rows; ++r, patch += pitch) {
    for (t = 0; t < run; flush(&sums)) {
      for (end = run - t > 31 ? t + 31 : run; t < end; ++t, weights += 8) {
        add(&sums, patch[t], weights, nonzero);
        if (nonzero) nonzero += 8;
      }
    }
  }
  read_sums(&sums, counts);
  for (i = 0; i < 8; ++i) bits |= (unsigned)(counts[i] <= thresholds[i]) << i;
  return bits;
}

static unsigned convolve(const uint64_t *first, const uint64_t *second, size_t rows, size_t run, size_t pitch, const uint64_t *weights,
                         const uint64_t *nonzero, const int32_t *thresholds) {
  return convolve_one(first, rows, run, pitch, weights, nonzero, thresholds) |
         convolve_one(second, rows, run, pitch, weights, nonzero, thresholds) << 8;
}
#endif

static void run_layer(const struct layer *layer) {
  const size_t in_pitch = (layer->in_width + 2 * layer->border) * layer->in_words;
  const size_t run = layer->kernel * layer->in_words, patch = layer->kernel * run;
  uint64_t *const out = memory.maps + layer->out;
  size_t i, block, y, x;
  for (i = 0; i < layer->input_count; ++i) place(layer, layer->inputs + i);
  memset(out, 0, layer->out_height * layer->out_width * layer->out_words * sizeof *out);
  /* The weights of a block stay in the nearest cache while all pixels pass. */
  for (block = 0; block < layer->blocks; ++block) {
    const uint64_t *weights = layer->weights + block * patch * 8;
    const uint64_t *nonzero = layer->nonzero ? layer->nonzero + block * patch * 8 : NULL;
    for (y = 0; y < layer->out_height; ++y) {
      const uint64_t *row = memory.maps + layer->in + y * layer->stride * in_pitch;
      uint64_t *to = out + y * layer->out_width * layer->out_words + block / 8;
      for (x = 0; x < layer->out_width; x += 2) {
        const size_t next = x + 1 < layer->out_width ? x + 1 : x;
        const unsigned bits = convolve(row + x * layer->stride * layer->in_words, row + next * layer->stride * layer->in_words,
                                       layer->kernel, run, in_pitch, weights, nonzero, layer->thresholds + block * 8);
        to[x * layer->out_words] |= (uint64_t)(bits & 255) << (block % 8 * 8);
        if (next != x) to[next * layer->out_words] |= (uint64_t)(bits >> 8) << (block % 8 * 8);
      }
    }
  }
}

/* Adds the set bits of the pixels from (top, left) to below (bottom, right), by channel. */
static void count_bits(const struct head *head, size_t top, size_t bottom, size_t left, size_t right, int16_t *counts) {
  size_t y, x, w, bit;
  memset(counts, 0, head->words * 64 * sizeof *counts);
  for (y = top; y < bottom; ++y) {
    for (x = left; x < right; ++x) {
      for (w = 0; w < head->words; ++w) {
        const uint64_t word = memory.maps[head->map + (y * head->width + x) * head->words + w];
        int16_t *to = counts + w * 64;
        for (bit = 0; bit < 64; ++bit) to[bit] = (int16_t)(to[bit] + (int)(word >> bit & 1));
      }
    }
  }
}

/* Into memory.features, less what they are on average; returns how many regions there are. */
static size_t read_features(const struct head *head) {
  const size_t channels = head->words * 64, side = head->kernel ? head->kernel : head->grid;
  size_t a, b, k;
  for (a = 0; a < side; ++a) {
    for (b = 0; b < side; ++b) {
      int16_t *counts = memory.features + (a * side + b) * channels;
      if (head->kernel) { /* a tap at (dy, dx) sees the map without the rows and columns that the shift moves out */
        const size_t half = head->kernel / 2;
        count_bits(head, a > half ? a - half : 0, a < half ? head->height - (half - a) : head->height, b > half ? b - half : 0,
                   b < half ? head->width - (half - b) : head->width, counts);
      } else {
        count_bits(head, a * head->height / side, (a + 1) * head->height / side, b * head->width / side, (b + 1) * head->width / side,
                   counts);
      }
    }
  }
  for (k = 0; k < side * side * channels; ++k) memory.features[k] = (int16_t)(memory.features[k] - head->centre[k]);
  return side * side;
}

static int32_t dot(const int16_t *a, const int16_t *b, size_t n) {
  int32_t sum = 0;
  size_t k;
  for (k = 0; k < n; ++k) sum += a[k] * b[k];
  return sum;
}

/* Sum of the features, those whose bit is set taken off. */
static int32_t signed_sum(const int16_t *features, const uint64_t *signs, size_t n) {
  int32_t sum = 0;
  size_t k;
  for (k = 0; k < n; ++k) sum += signs[k / 64] >> (k % 64) & 1 ? -features[k] : features[k];
  return sum;
}

/* The activation of a hidden unit, in steps of 1/64. */
static int16_t activate(float x) {
  const float scaled = times(x > 0 ? x : 0, 64.0F);
  return (int16_t)plus(scaled < 2047.0F ? scaled : 2047.0F, 0.5F);
}

/* Into memory.logits. */
static void run_head(const struct head *head) {
  const size_t channels = head->words * 64, regions = read_features(head), n = regions * channels;
  size_t l, g, j;
  int32_t through_hidden[CLASSES] = {0};
  for (g = 0; g < regions; ++g) {
    for (j = 0; j < head->hidden; ++j) {
      const int32_t before = dot(memory.features + g * channels, head->hidden_in + j * channels, channels);
      const int32_t active = activate(plus(times((float)before, head->hidden_unit), head->hidden_bias[j]));
      for (l = 0; active != 0 && l < CLASSES; ++l)
        through_hidden[l] += active * head->hidden_out[(l * regions + g) * head->hidden + j];
    }
  }
  for (l = 0; l < CLASSES; ++l) {
    const int32_t sum = head->signs ? head->gain * signed_sum(memory.features, head->signs + l * ((n + 63) / 64), n)
                                    : dot(memory.features, head->linear + l * n, n);
    const float both = plus(times((float)sum, head->unit), times((float)through_hidden[l], 1.0F / (64 * 4096)));
    memory.logits[l] = plus(both, head->bias[l]);
  }
}

/* Takes the logarithms of the probabilities off the scores. */
static void vote(float *scores) {
  double most = memory.logits[0], sum = 0;
  size_t l;
  for (l = 1; l < CLASSES; ++l) most = memory.logits[l] > most ? memory.logits[l] : most;
  for (l = 0; l < CLASSES; ++l) sum += exp_of(memory.logits[l] - most);
  sum = log_of(sum);
  for (l = 0; l < CLASSES; ++l) scores[l] = plus(scores[l], -(float)(sum - (memory.logits[l] - most)));
}

void @name@_scores(const unsigned char *pixels, float *scores) {
  static const int down[] = {0, SHIFT, -SHIFT, 0, 0}, across[] = {0, 0, 0, SHIFT, -SHIFT};
  size_t view, i, l;
  for (l = 0; l < CLASSES; ++l) scores[l] = 0;
  for (view = 0; view < VIEWS; ++view) {
    const size_t move = MIRROR ? view / 2 : view;
    see(pixels, down[move], across[move], MIRROR && view % 2 == 1);
    encode();
    for (i = 0; i < sizeof layers / sizeof *layers; ++i) run_layer(layers + i);
    for (i = 0; i < sizeof heads / sizeof *heads; ++i) {
      run_head(heads + i);
      vote(scores);
    }
  }
  for (l = 0; l < CLASSES; ++l) scores[l] /= VIEWS * (float)(sizeof heads / sizeof *heads);
}

#ifdef BITLOOM_MAIN
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* The next number of a PNM header, after white space and comments; -1 if there is none. */
static long read_number(FILE *file) {
  long number = 0;
  int c = getc(file);
  for (; isspace(c) || c == '#'; c = getc(file)) {
    if (c != '#') continue;
    while (c != '\n' && c != EOF) c = getc(file);
  }
  if (!isdigit(c)) return -1;
  for (; isdigit(c); c = getc(file)) number = number < 100000 ? 10 * number + (c - '0') : number;
  return number; /* the one white space behind it is read */
}

/* Returns what is wrong with an image, or null. */
static const char *read_image(FILE *file, unsigned char *pixels) {
  const char kind = COLOURS == 1 ? '5' : '6';
  if (getc(file) != 'P' || getc(file) != kind) return COLOURS == 1 ? "not a PGM image (P5)" : "not a PPM image (P6)";
  if (read_number(file) != WIDTH || read_number(file) != HEIGHT) return "its size is not that of the net's images";
  if (read_number(file) != 255) return "its largest value is not 255";
  if (fread(pixels, 1, HEIGHT * WIDTH * COLOURS, file) != HEIGHT * WIDTH * COLOURS) return "it ends too early";
  return NULL;
}

static int classify(const char *name) {
  static unsigned char pixels[HEIGHT * WIDTH * COLOURS];
  float scores[CLASSES];
  double probabilities[CLASSES], total = 0;
  const char *problem = "it cannot be opened";
  FILE *file = strcmp(name, "-") == 0 ? stdin : fopen(name, "rb");
  size_t place, l, most = 0;
  if (file) {
    problem = read_image(file, pixels);
    if (file != stdin) fclose(file);
  }
  if (problem) {
    fprintf(stderr, "%s: %s\n", name, problem);
    return 1;
  }
  @name@_scores(pixels, scores);
  for (l = 1; l < CLASSES; ++l) most = scores[l] > scores[most] ? l : most;
  for (l = 0; l < CLASSES; ++l) total += probabilities[l] = exp_of((double)scores[l] - (double)scores[most]);
  printf("%s:", name);
  for (place = 0; place < 3 && place < CLASSES; ++place) {
    for (most = 0, l = 1; l < CLASSES; ++l) most = probabilities[l] > probabilities[most] ? l : most;
    printf("%s %s %.3f", place == 0 ? "" : ",", @name@_classes[most], probabilities[most] / total);
    probabilities[most] = -1;
  }
  printf("\n");
  return 0;
}

int main(int count, char **arguments) {
  int failed = count < 2, i;
  if (failed) {
    fprintf(stderr, "usage: %s IMAGE...\nclassifies %s images of %d x %d pixels; '-' is standard input\n", arguments[0],
            COLOURS == 1 ? "PGM" : "PPM", WIDTH, HEIGHT);
  }
  for (i = 1; i < count; ++i) failed |= classify(arguments[i]);
  return fflush(stdout) != 0 || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
#endif
