// The loops over every weight or gradient of a step, in plain code that each table compiles with its own instruction set.
// There is no contraction and no reordering of floats (-ffp-contract=off, no -ffast-math), so all tables give the same bits.
//
// Everything is in an unnamed namespace and inlines completely: nothing compiled with ISA flags leaves the including file.
// No function of the standard library is called, for it could be the copy that the linker keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bitloom::simd {
namespace {

// For 2^j <= m < 2^(j+1) the exponent of the float m says the level and its mantissa the place between the two.
inline void prepare_rounding(const float* gradient, const float* slope, std::size_t n, std::size_t period, float inverse_unit,
                             std::uint32_t* out) {
  constexpr std::uint32_t mantissa_bits = 23;
  constexpr std::uint32_t exponent_of_half = 126;
  for (std::size_t begin = 0; begin < n; begin += period) {
    for (std::size_t c = 0; c < period; ++c) {
      const float value = gradient[begin + c] * slope[c] * inverse_unit;
      const float size = value < 0 ? -value : value;
      const float magnitude = size < 128.0F ? size : 128.0F;
      std::uint32_t bits;
      std::memcpy(&bits, &magnitude, sizeof bits);
      const std::uint32_t above_one = ((bits >> mantissa_bits) - exponent_of_half) | (((bits >> 7U) & 0xFFFFU) << 16U);
      const std::uint32_t below_one = static_cast<std::uint32_t>(static_cast<std::int32_t>(magnitude * 65536.0F)) << 16U;
      out[begin + c] = (magnitude < 1.0F ? below_one : above_one) | (value < 0 ? 0x100U : 0U);
    }
  }
}

// Eight lanes keep the order of the sum the same for every width of vector.
inline double centre_gradient(const std::int32_t* sums, const float* density, std::size_t n, float total, float* gradient) {
  double squares[8] = {};
  for (std::size_t k = 0; k < n; k += 8) {
    for (std::size_t j = 0; j < 8; ++j) {
      const float g = total * density[k + j] - static_cast<float>(sums[k + j]);
      gradient[k + j] = g;
      squares[j] += static_cast<double>(g) * static_cast<double>(g);
    }
  }
  return ((squares[0] + squares[1]) + (squares[2] + squares[3])) + ((squares[4] + squares[5]) + (squares[6] + squares[7]));
}

inline void descend(std::int16_t* state, const float* gradient, std::size_t n, float rate, float limit) {
  for (std::size_t k = 0; k < n; ++k) {
    const float moved = static_cast<float>(state[k]) - rate * gradient[k];
    const float above = moved < -limit ? -limit : moved;
    const float within = above > limit ? limit : above;
    // Half away from zero, by truncation: unlike nearbyint this vectorises on every instruction set.
    state[k] = static_cast<std::int16_t>(static_cast<std::int32_t>(within + (within < 0 ? -0.5F : 0.5F)));
  }
}

inline void combine_s16(const std::int16_t* values, const std::int32_t* sums, std::size_t n, float factor, float share,
                        std::int16_t* out) {
  for (std::size_t k = 0; k < n; ++k) {
    const float sum = factor * static_cast<float>(values[k]) + share * static_cast<float>(sums[k]);
    const float above = sum < -32768.0F ? -32768.0F : sum;
    const float within = above > 32767.0F ? 32767.0F : above;
    out[k] = static_cast<std::int16_t>(static_cast<std::int32_t>(within + (within < 0 ? -0.5F : 0.5F)));
  }
}

inline void adam(const std::int64_t* sums, std::size_t n, float factor, float rate, float bias_correction, float decay_factor,
                 float* value, float* mean, float* variance) {
  for (std::size_t k = 0; k < n; ++k) {
    const float gradient = static_cast<float>(sums[k]) * factor;
    const float m = 0.9F * mean[k] + 0.1F * gradient;
    const float v = 0.999F * variance[k] + 0.001F * gradient * gradient;
    mean[k] = m;
    variance[k] = v;
    value[k] = value[k] * decay_factor - rate * m / (__builtin_sqrtf(v * bias_correction) + 1e-8F);
  }
}

}  // namespace
}  // namespace bitloom::simd
