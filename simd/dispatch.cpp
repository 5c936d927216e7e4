#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "simd/tables.h"

namespace bitloom::simd {
namespace {

// What the compiled-in tables need of the CPU, best first. __builtin_cpu_supports asks cpuid and, for vector registers,
// whether the operating system saves them (xgetbv).
struct Candidate {
  const char* name;
  bool (*supported)();
  const Kernels* table;
};

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") != 0; }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}
bool has_avx512_vpopcntdq() { return has_avx512() && __builtin_cpu_supports("avx512vpopcntdq") != 0; }
#endif

const Candidate candidates[] = {
#if defined(__x86_64__)
    {"avx512_vpopcntdq", has_avx512_vpopcntdq, &avx512_vpopcntdq_kernels},
    {"avx512", has_avx512, &avx512_kernels},
    {"avx2", has_avx2, &avx2_kernels},
#elif defined(__aarch64__)
    {"neon", always, &neon_kernels},
#endif
    {"ref", always, &ref_kernels},
};

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const Kernels& choose() {
  const char* forced = std::getenv("BITLOOM_ISA");
  if (forced != nullptr && *forced != '\0') return kernels(std::string(forced));
  for (const Candidate& candidate : candidates) {
    if (candidate.supported()) return *candidate.table;
  }
  return ref_kernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

const Kernels& kernels(const std::string& name) {
  for (const Candidate& candidate : candidates) {
    if (name != candidate.name) continue;
    if (!candidate.supported()) {
      fail(ErrorKind::usage, "instruction set '{}' is not supported by this CPU (supported: {})", name,
           join(supported_kernels()));
    }
    return *candidate.table;
  }
  fail(ErrorKind::usage, "unknown instruction set '{}' (compiled in: {})", name, join(compiled_kernels()));
}

std::vector<std::string> compiled_kernels() {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates) names.emplace_back(candidate.name);
  return names;
}

std::vector<std::string> supported_kernels() {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates) {
    if (candidate.supported()) names.emplace_back(candidate.name);
  }
  return names;
}

}  // namespace bitloom::simd
