// Shared by files of isa/ whose vectors lack an instruction: bases of their struct `Isa` (local_arch.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/local_arch.h"

namespace bitloom::nn {
namespace {

// Parts of vectors where loads and stores have no masks: through memory.
template <typename Isa>
struct PartsByCopy {
  template <typename T>
  static BITLOOM_INLINE auto load_part(const T* from, std::size_t n) {
    T part[Isa::width];
    __builtin_memset(static_cast<void*>(part), 0, sizeof part);
    __builtin_memcpy(static_cast<void*>(part), from, n * sizeof(T));
    return Isa::load(part);
  }
  template <typename T>
  static BITLOOM_INLINE auto load_part(const T* from, std::size_t n, float fill) {
    return Isa::select(Isa::first(n), load_part(from, n), Isa::splat(fill));
  }
  template <typename T, typename Float>
  static BITLOOM_INLINE void store_part(T* to, Float x, std::size_t n) {
    T part[Isa::width];
    Isa::store(part, x);
    __builtin_memcpy(static_cast<void*>(to), part, n * sizeof(T));
  }
};

// Powers of two where no instruction rounds and scales. Adding 1.5 2^23 rounds to an integer and leaves it in the low bits.
template <typename Isa>
struct PowersByAdding {
  template <typename Float>
  static BITLOOM_INLINE Float round_to_power(Float x, Float& power) {
    power = x + Isa::splat(12582912);
    return power - Isa::splat(12582912);
  }
  template <typename Float>
  static BITLOOM_INLINE Float scale_by(Float p, Float power) {
    return p * Isa::as_float(Isa::template shift_left<23>(Isa::as_word(power)) + Isa::word_splat(0x3F800000));
  }
};

}  // namespace
}  // namespace bitloom::nn
