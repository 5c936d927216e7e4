// A warp's work with tensor cores, and copies into shared memory that go on beside the computation: instructions of compute
// capability 8.0 (PTX ISA: "mma.m16n8k16", "ldmatrix", "cp.async"). tests/cuda/cuda_tensor_cores.h has the same for a CPU. All
// lanes of a warp call these together, copies excepted. C++17.
//
// Lane l has, with g = l / 4 and t = l % 4, two 16-bit numbers per register, the lower bits first:
//   A (16 x 16): a[0] = (g, 2t) (g, 2t + 1); a[1] = row g + 8; a[2] = row g, columns + 8; a[3] = row g + 8, columns + 8
//   B (16 x 8):  b0 = (2t, g) (2t + 1, g); b1 = rows + 8
//   C (16 x 8):  c[0] = (g, 2t), c[1] = (g, 2t + 1), c[2] and c[3] = row g + 8; f32
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace bitloom::nn::cuda {

// C += A B.
__device__ inline void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply_f16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers of a register, rounded to the nearest.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline std::uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// Four 8 x 8 matrices of 16-bit numbers: lane l says where row l % 8 of matrix l / 8 is, 16 bytes in shared memory, aligned. Of
// matrix i it gets in r[i] (g, 2t) (g, 2t + 1); transposed: (2t, g) (2t + 1, g).
__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 4, 8 or 16 bytes, both aligned to as many, from global to shared memory; zeros if they are not there (`global` is not read,
// but must point to somewhere). Done when wait_for_copies() says so, seen by others after a barrier.
template <int bytes>
__device__ inline void copy_async(void* shared, const void* global, bool are_there) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(are_there ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(are_there ? bytes : 0), "n"(bytes)
                 : "memory");
  }
}
// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last `pending` groups of this thread are done.
template <int pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace bitloom::nn::cuda
