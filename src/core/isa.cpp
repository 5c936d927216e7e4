#include "core/isa.h"

#include <fmt/ranges.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/error.h"
#include "core/text.h"

namespace bitloom {
namespace {

struct Feature {
  std::string_view name;
  bool (*is_there)();
};

#if defined(__x86_64__)
// __builtin_cpu_supports asks cpuid and, for vector registers, whether the operating system saves them (xgetbv): libgcc's
// cpuinfo.h, get_available_features.
#define BITLOOM_FEATURE(name)                              \
  Feature {                                                \
    name, [] { return __builtin_cpu_supports(name) != 0; } \
  }

// clang 14's __builtin_cpu_supports does not know it. AMD's manual, volume 3, appendix E.4.2: CPUID Fn8000_0001_ECX[ABM].
bool has_lzcnt() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0x80000001U, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 5U)) != 0;
}

const Feature known_features[] = {
    BITLOOM_FEATURE("popcnt"),   BITLOOM_FEATURE("bmi"),      BITLOOM_FEATURE("bmi2"),       {"lzcnt", has_lzcnt},
    BITLOOM_FEATURE("fma"),      BITLOOM_FEATURE("avx2"),     BITLOOM_FEATURE("avx512f"),    BITLOOM_FEATURE("avx512bw"),
    BITLOOM_FEATURE("avx512dq"), BITLOOM_FEATURE("avx512vl"), BITLOOM_FEATURE("avx512bf16"), BITLOOM_FEATURE("avx512vpopcntdq"),
};
#undef BITLOOM_FEATURE
#else
const std::span<const Feature> known_features;  // Advanced SIMD is part of the aarch64 baseline
#endif

}  // namespace

bool cpu_has(std::string_view feature) {
  for (const Feature& known : known_features) {
    if (feature == known.name) return known.is_there();
  }
  fail(ErrorKind::internal, "cpu_has: feature '{}' is not in the list of core/isa.cpp", feature);
}

std::vector<std::string> missing_features(std::string_view features, HasFeature has) {
  std::vector<std::string> missing;
  for (std::string& feature : split(features, ' ')) {
    if (!feature.empty() && !has(feature)) missing.push_back(std::move(feature));
  }
  return missing;
}

void fail_unsupported_isa(std::string_view name, const std::vector<std::string>& missing,
                          const std::vector<std::string>& supported) {
  fail(ErrorKind::usage, "instruction set '{}' is not supported by this CPU, which lacks {} (supported: {})", name,
       fmt::join(missing, ", "), fmt::join(supported, ", "));
}

void fail_unknown_isa(std::string_view name, const std::vector<std::string>& compiled) {
  fail(ErrorKind::usage, "unknown instruction set '{}' (compiled in: {})", name, fmt::join(compiled, ", "));
}

}  // namespace bitloom
