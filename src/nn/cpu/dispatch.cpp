#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "nn/cpu/kernel_tables.h"

namespace bitloom::nn {
namespace {

// What the compiled-in tables need of the CPU, best first. __builtin_cpu_supports asks cpuid and, for vector registers, whether
// the operating system saves them (xgetbv).
struct Candidate {
  const char* name;
  bool (*supported)();
  const VectorKernels* table;
};

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16") != 0; }
bool has_avx512_vpopcntdq() { return has_avx512() && __builtin_cpu_supports("avx512vpopcntdq") != 0; }
#endif

const Candidate candidates[] = {
#if defined(__x86_64__)
    {"avx512_bf16", has_avx512_bf16, &avx512_bf16_vector_kernels},
    {"avx512", has_avx512, &avx512_vector_kernels},
    {"avx2", has_avx2, &avx2_vector_kernels},
    // A set of the bit-packed kernels that adds nothing here, but BITLOOM_ISA may name it.
    {"avx512_vpopcntdq", has_avx512_vpopcntdq, &avx512_vector_kernels},
#elif defined(__aarch64__)
    {"neon", always, &baseline_vector_kernels},
#endif
    {"ref", always, &baseline_vector_kernels},
};

std::string names_of(bool supported_only) {
  std::string text;
  for (const Candidate& candidate : candidates) {
    if (supported_only && !candidate.supported()) continue;
    text += (text.empty() ? "" : ", ") + std::string(candidate.name);
  }
  return text;
}

const VectorKernels& choose() {
  const char* forced = std::getenv("BITLOOM_ISA");
  if (forced != nullptr && *forced != '\0') return vector_kernels(std::string(forced));
  return *supported_vector_kernels().front();
}

}  // namespace

const VectorKernels& vector_kernels() {
  static const VectorKernels& chosen = choose();
  return chosen;
}

const VectorKernels& vector_kernels(const std::string& name) {
  for (const Candidate& candidate : candidates) {
    if (name != candidate.name) continue;
    if (!candidate.supported()) {
      fail(ErrorKind::usage, "instruction set '{}' is not supported by this CPU (supported: {})", name, names_of(true));
    }
    return *candidate.table;
  }
  fail(ErrorKind::usage, "unknown instruction set '{}' (compiled in: {})", name, names_of(false));
}

std::vector<const VectorKernels*> supported_vector_kernels() {
  std::vector<const VectorKernels*> tables;
  for (const Candidate& candidate : candidates) {
    if (!candidate.supported()) continue;
    bool is_listed = false;
    for (const VectorKernels* table : tables) is_listed |= table == candidate.table;
    if (!is_listed) tables.push_back(candidate.table);
  }
  return tables;
}

}  // namespace bitloom::nn
