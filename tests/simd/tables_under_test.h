// Which kernel tables a test runs, and how their outputs are compared.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "simd/kernels.h"
#include "tests/support/guarded.h"

namespace bitloom::test {

inline std::vector<std::string> all_tables() { return simd::supported_kernels(); }

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
