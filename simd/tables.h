// The kernel tables, one per file of ref/ and isa/. Private to simd/: everybody else asks kernels().
#pragma once

#include "simd/kernels.h"

namespace bitloom::simd {

// Each is the only symbol that its file exports (tests/simd and scripts/check look at the object files): a stray inline
// function compiled with an ISA's flags could be the copy that the linker keeps for the whole program.
extern const Kernels ref_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels avx512_vpopcntdq_kernels;
extern const Kernels neon_kernels;

}  // namespace bitloom::simd
