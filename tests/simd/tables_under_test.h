// Which kernel tables a test runs, and how their outputs are compared.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "simd/kernels.h"
#include "tests/support/guarded.h"

#ifdef BITLOOM_EMULATED_AVX512
namespace bitloom::simd {

extern const Kernels emulated_avx512_kernels, emulated_avx512_vpopcntdq_kernels;

}  // namespace bitloom::simd
#endif

namespace bitloom::test {

// The supported ones and, where the processor lacks AVX-512, its tables by plain code (tests/simd/emulated).
inline std::vector<std::string> all_tables() {
  std::vector<std::string> names = simd::supported_kernels();
#ifdef BITLOOM_EMULATED_AVX512
  for (const char* name : {"avx512", "avx512_vpopcntdq"}) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
#endif
  return names;
}

inline const simd::Kernels& table(const std::string& name) {
#ifdef BITLOOM_EMULATED_AVX512
  const std::vector<std::string> supported = simd::supported_kernels();
  if (std::find(supported.begin(), supported.end(), name) == supported.end()) {
    if (name == "avx512") return simd::emulated_avx512_kernels;
    if (name == "avx512_vpopcntdq") return simd::emulated_avx512_vpopcntdq_kernels;
  }
#endif
  return simd::kernels(name);
}

// The tables to compare with ref: every supported one but ref itself.
inline std::vector<std::string> contenders() {
  std::vector<std::string> names = all_tables();
  std::erase(names, "ref");
  return names;
}

template <typename T>
bool same(const Guarded<T>& a, const Guarded<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace bitloom::test
