// The counterpart of src/nn/cuda/native/cuda_tensor_cores.h on the CPU, which says what all of this is. Fragments are exchanged
// over the warp and multiplied by plain loops.
#pragma once

#include <cstdint>
#include <cstring>

#include <cuda_platform.h>

namespace bitloom::nn::cuda {

// C += A B, both converted to float by `number`.
template <typename ToFloat>
void multiply_emulated(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, ToFloat number) {
  const std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const unsigned char* all = emulated::exchange_bytes(mine, sizeof mine);
  const auto part = [&](unsigned lane, unsigned word, unsigned half) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, all + emulated::lane_bytes * lane + sizeof bits * word, sizeof bits);
    return number(static_cast<std::uint16_t>(bits >> (16 * half)));
  };
  const unsigned own = emulated::lane();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = own / 4 + 8 * (i / 2), column = 2 * (own % 4) + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned t = k % 8 / 2;
      sum += part(4 * (row % 8) + t, row / 8 + 2 * (k / 8), k % 2) * part(4 * column + t, 4 + k / 8, k % 2);
    }
    c[i] += sum;
  }
}
inline void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply_emulated(c, a, b0, b1, bf16_to_float);
}
inline void multiply_f16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply_emulated(c, a, b0, b1, f16_to_float);
}

inline std::uint32_t pack_bf16(float low, float high) {
  return float_to_bf16(low) | static_cast<std::uint32_t>(float_to_bf16(high)) << 16U;
}
inline std::uint32_t pack_f16(float low, float high) {
  return float_to_f16(low) | static_cast<std::uint32_t>(float_to_f16(high)) << 16U;
}

inline void require_aligned(const void* place, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(place) % bytes != 0) emulated::refuse("an address that is not aligned");
}

template <bool transposed>
void load_matrices_emulated(std::uint32_t (&r)[4], const void* row) {
  require_aligned(row, 16);
  const unsigned char* all = emulated::exchange_bytes(row, 16);
  const unsigned g = emulated::lane() / 4, t = emulated::lane() % 4;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t pair[2];
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned at_row = transposed ? 2 * t + i : g, at_column = transposed ? g : 2 * t + i;
      std::memcpy(&pair[i], all + emulated::lane_bytes * (8 * matrix + at_row) + sizeof pair[i] * at_column, sizeof pair[i]);
    }
    r[matrix] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16U;
  }
}
inline void load_matrices(std::uint32_t (&r)[4], const void* row) { load_matrices_emulated<false>(r, row); }
inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) { load_matrices_emulated<true>(r, row); }

template <int bytes>
void copy_async(void* shared, const void* global, bool are_there) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
  require_aligned(shared, bytes);
  require_aligned(global, bytes);
  emulated::start_copy({shared, are_there ? global : nullptr, bytes});
}
inline void commit_copies() { emulated::commit_copies(); }
template <int pending>
void wait_for_copies() {
  emulated::wait_for_copies(pending);
}

}  // namespace bitloom::nn::cuda
