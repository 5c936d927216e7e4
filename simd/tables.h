// The kernel tables, one per file of ref/ and isa/. Private to simd/: everybody else asks kernels().
#pragma once

#include <span>

#include "simd/kernels.h"

namespace bitloom {
template <typename Table>
struct IsaTable;  // core/isa.h, which files of isa/ need not include
}

namespace bitloom::simd {

// Each is the only symbol that its file exports (tests/simd and scripts/check look at the object files): a stray inline
// function compiled with an ISA's flags could be the copy that the linker keeps for the whole program.
extern const Kernels ref_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels avx512_vpopcntdq_kernels;
extern const Kernels neon_kernels;

// All that are compiled in, with what they need, best first; ref is the last.
std::span<const IsaTable<Kernels>> all_kernels();

}  // namespace bitloom::simd
