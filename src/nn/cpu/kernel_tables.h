// The tables of vector kernels, one per file of isa/, and the choice between them. Private to src/nn/cpu and to the tests.
#pragma once

#include <span>

#include "nn/cpu/kernels.h"

namespace bitloom {
template <typename Table>
struct IsaTable;  // core/isa.h, which files of isa/ need not include
}

namespace bitloom::nn {

// Each is the only symbol that its file exports (scripts/check-symbols): a stray inline function compiled with an ISA's flags
// could be the copy that the linker keeps for the whole program.
extern const VectorKernels baseline_vector_kernels;
extern const VectorKernels avx2_vector_kernels;
extern const VectorKernels avx512_vector_kernels;
extern const VectorKernels avx512_bf16_vector_kernels;
// In place of those of avx512_bf16.
struct TileAttention {
  void (*attention)(const AttentionForward<bf16>& task);
  void (*attention_backward)(const AttentionBackward<bf16>& task);
};
extern const TileAttention amx_attention;

// All that are compiled in, with what they need, best first; ref, the baseline, is the last.
std::span<const IsaTable<VectorKernels>> all_vector_kernels();

// The table in use: the best that this CPU supports, or the one that BITLOOM_ISA names (ref: the baseline). Decided at the
// first call; throws a usage error if that name is unknown or not supported.
const VectorKernels& vector_kernels();

}  // namespace bitloom::nn
