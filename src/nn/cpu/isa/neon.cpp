// The table of every aarch64, with Advanced SIMD: vectors of 4 floats.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/local_arch.h"
#include "nn/cpu/kernels.h"

BITLOOM_NN_LOCAL_ARCH(neon64)

#include "nn/cpu/generic/isa_parts.h"
#include "nn/cpu/generic/table.h"
#include "nn/cpu/kernel_tables.h"

namespace bitloom::nn {
namespace {

struct Isa : PartsByCopy<Isa>, PowersByAdding<Isa> {
  using Float = xsimd::batch<float, LocalArch>;
  using Word = xsimd::batch<std::uint32_t, LocalArch>;
  using Mask = uint32x4_t;
  static constexpr std::size_t width = 4, tile_rows = 6, tile_vectors = 4;
  static constexpr bool has_fma = true, exact_scaling = false, fast_lookup = false, has_lane_bits = false,
                        packs_numbers = false;
  template <typename V>
  using Product = FloatProduct<Isa>;

  static BITLOOM_INLINE Float splat(float x) { return Float(vdupq_n_f32(x)); }
  static BITLOOM_INLINE Float load(const float* from) { return Float(vld1q_f32(from)); }
  static BITLOOM_INLINE Float load(const bf16* from) {
    return Float(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(from)), 16)));
  }
  static BITLOOM_INLINE Mask first(std::size_t n) { return mask_of((1U << n) - 1U); }
  static BITLOOM_INLINE Float first_lanes(Float x, std::size_t n) { return select(first(n), x, splat(0)); }
  static BITLOOM_INLINE void store(float* to, Float x) { vst1q_f32(to, x); }
  // To the nearest, ties to even; NaN stays NaN.
  static BITLOOM_INLINE void store(bf16* to, Float x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t result = vbslq_u32(vceqq_f32(x, x), rounded, quiet);
    vst1_u16(reinterpret_cast<std::uint16_t*>(to), vshrn_n_u32(result, 16));
  }

  static BITLOOM_INLINE Float fma(Float a, Float b, Float c) { return Float(vfmaq_f32(c, a, b)); }
  static BITLOOM_INLINE Float fnma(Float a, Float b, Float c) { return Float(vfmsq_f32(c, a, b)); }
  // vmaxq would give NaN for either argument.
  static BITLOOM_INLINE Float max(Float a, Float b) { return select(less(b, a), a, b); }
  static BITLOOM_INLINE Float min(Float a, Float b) { return select(less(a, b), a, b); }
  static BITLOOM_INLINE Float abs(Float x) { return Float(vabsq_f32(x)); }
  static BITLOOM_INLINE Float sqrt(Float x) { return Float(vsqrtq_f32(x)); }
  static BITLOOM_INLINE Mask beats(Float a, Float b) { return vbicq_u32(vceqq_f32(b, b), vcleq_f32(a, b)); }
  static BITLOOM_INLINE Mask less(Float a, Float b) { return vcltq_f32(a, b); }
  static BITLOOM_INLINE Float select(Mask mask, Float a, Float b) { return Float(vbslq_f32(mask, a, b)); }
  static BITLOOM_INLINE Mask mask_of(std::uint32_t bits) {
    const uint32x4_t lane = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32(bits), lane);
  }
  static BITLOOM_INLINE float sum(Float x) { return vaddvq_f32(x); }
  static BITLOOM_INLINE float largest(Float x) { return vmaxvq_f32(x); }

  static BITLOOM_INLINE Word as_word(Float x) { return Word(vreinterpretq_u32_f32(x)); }
  static BITLOOM_INLINE Float as_float(Word x) { return Float(vreinterpretq_f32_u32(x)); }
  static BITLOOM_INLINE Word word_splat(std::uint32_t x) { return Word(vdupq_n_u32(x)); }
  template <unsigned kBits>
  static BITLOOM_INLINE Word shift_left(Word x) {
    return Word(vshlq_n_u32(x, kBits));
  }
  template <unsigned kBits>
  static BITLOOM_INLINE Word shift_right(Word x) {
    return Word(vshrq_n_u32(x, kBits));
  }
  static BITLOOM_INLINE Float to_float(Word x) { return Float(vcvtq_f32_u32(x)); }
  static BITLOOM_INLINE Word load_words(const std::uint32_t* from) { return Word(vld1q_u32(from)); }
  static BITLOOM_INLINE Word load_bytes(const std::uint8_t* from) {
    const uint32x4_t words = {from[0], from[1], from[2], from[3]};
    return Word(words);
  }
  static BITLOOM_INLINE void store_bytes(std::uint8_t* to, Word x) {
    const uint16x4_t halves = vmovn_u32(x);
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
    vst1_lane_u32(reinterpret_cast<std::uint32_t*>(to), vreinterpret_u32_u8(bytes), 0);
  }
  static BITLOOM_INLINE Word product(Word a, std::uint32_t m, Word& high) {
    const uint32x2_t by = vdup_n_u32(m);
    const uint32x4_t first_two = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), by));
    const uint32x4_t last_two = vreinterpretq_u32_u64(vmull_u32(vget_high_u32(a), by));
    high = Word(vuzp2q_u32(first_two, last_two));
    return Word(vuzp1q_u32(first_two, last_two));
  }
  static BITLOOM_INLINE Float lookup(const float* table, Word index) {
    std::uint32_t at[width];
    vst1q_u32(at, index);
    const float32x4_t found = {table[at[0] % 16], table[at[1] % 16], table[at[2] % 16], table[at[3] % 16]};
    return Float(found);
  }

  struct Squares {
    float64x2_t low, high;
  };
  static BITLOOM_INLINE Squares no_squares() { return {vdupq_n_f64(0), vdupq_n_f64(0)}; }
  static BITLOOM_INLINE void add_squares(Squares& to, Float x) {
    const float64x2_t low = vcvt_f64_f32(vget_low_f32(x));
    const float64x2_t high = vcvt_high_f64_f32(x);
    to.low = vfmaq_f64(to.low, low, low);
    to.high = vfmaq_f64(to.high, high, high);
  }
  static BITLOOM_INLINE void store_squares(double* to, const Squares& x) {
    vst1q_f64(to, x.low);
    vst1q_f64(to + 2, x.high);
  }
};

}  // namespace

// On aarch64 this is the baseline.
constinit const VectorKernels baseline_vector_kernels = make_vector_kernels<Isa>("neon");

}  // namespace bitloom::nn
