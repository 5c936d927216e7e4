#include "core/isa.h"
#include "simd/tables.h"

namespace bitloom::simd {

// Best first. BITLOOM_FEATURES_<file> are the features that isa/<file>.cpp is compiled with (CMakeLists.txt).
std::span<const IsaTable<Kernels>> all_kernels() {
  static constexpr IsaTable<Kernels> tables[] = {
#if defined(__x86_64__)
    {"avx512_vpopcntdq", BITLOOM_FEATURES_avx512_vpopcntdq, &avx512_vpopcntdq_kernels},
    {"avx512", BITLOOM_FEATURES_avx512, &avx512_kernels},
    {"avx2", BITLOOM_FEATURES_avx2, &avx2_kernels},
#elif defined(__aarch64__)
    {"neon", BITLOOM_FEATURES_neon, &neon_kernels},
#endif
    {"ref", "", &ref_kernels},
  };
  return tables;
}

const Kernels& kernels() {
  static const Kernels& chosen = chosen_isa_table(all_kernels());
  return chosen;
}

const Kernels& kernels(const std::string& name) { return isa_table(all_kernels(), name); }

std::vector<std::string> compiled_kernels() { return compiled_isas(all_kernels()); }

std::vector<std::string> supported_kernels() { return supported_isas(all_kernels()); }

}  // namespace bitloom::simd
