#include "core/isa.h"
#include "nn/cpu/kernel_tables.h"
#include "nn/engine.h"

namespace bitloom::nn {
namespace {

#if defined(__x86_64__)
const VectorKernels& amx_vector_kernels() {
  static const VectorKernels kernels = [] {
    VectorKernels all = avx512_bf16_vector_kernels;
    all.name = "amx";
    all.on_bf16.attention = amx_attention.attention;
    all.on_bf16.attention_backward = amx_attention.attention_backward;
    return all;
  }();
  return kernels;
}
#endif

}  // namespace

// Best first. BITLOOM_FEATURES_<file> are the features that isa/<file>.cpp is compiled with (CMakeLists.txt).
std::span<const IsaTable<VectorKernels>> all_vector_kernels() {
  static const IsaTable<VectorKernels> tables[] = {
#if defined(__x86_64__)
    {"amx", BITLOOM_FEATURES_amx, &amx_vector_kernels()},
    {"avx512_bf16", BITLOOM_FEATURES_avx512_bf16, &avx512_bf16_vector_kernels},
    {"avx512", BITLOOM_FEATURES_avx512, &avx512_vector_kernels},
    {"avx2", BITLOOM_FEATURES_avx2, &avx2_vector_kernels},
    // A set of the bit-packed kernels that adds nothing here, but BITLOOM_ISA may name it.
    {"avx512_vpopcntdq", BITLOOM_FEATURES_avx512 " avx512vpopcntdq", &avx512_vector_kernels},
    {"ref", BITLOOM_FEATURES_baseline, &baseline_vector_kernels},
#elif defined(__aarch64__)
    {"neon", BITLOOM_FEATURES_neon, &baseline_vector_kernels},
    {"ref", BITLOOM_FEATURES_neon, &baseline_vector_kernels},
#endif
  };
  return tables;
}

const VectorKernels& vector_kernels() {
  static const VectorKernels& chosen = chosen_isa_table(all_vector_kernels());
  return chosen;
}

std::vector<std::string> cpu_kernels() { return supported_isas(all_vector_kernels()); }

}  // namespace bitloom::nn
