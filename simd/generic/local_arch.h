// Makes an xsimd architecture tag with internal linkage: `BITLOOM_LOCAL_ARCH(avx2)` at the top level of a file of isa/
// declares bitloom::simd::LocalArch. Templates instantiated with it, xsimd's own included, are then local to that file, even
// where the compiler does not inline them: the linker can never pick code with this file's ISA flags for another file.
#pragma once

#include <xsimd/xsimd.hpp>

#define BITLOOM_LOCAL_ARCH(arch)                                     \
  namespace bitloom::simd {                                          \
  namespace {                                                        \
  struct LocalArch : xsimd::arch {};                                 \
  }                                                                  \
  }                                                                  \
  namespace xsimd::types {                                           \
  XSIMD_DECLARE_SIMD_REGISTER_ALIAS(bitloom::simd::LocalArch, arch); \
  }
