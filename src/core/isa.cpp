#include "core/isa.h"

#include <fmt/ranges.h>

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
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

// Bit `bit` of what cpuid says of AMX (Intel's manual, volume 2A, CPUID, leaf 7, EDX), where the system saves tile registers
// and lets this process have them: it must be asked (Linux's Documentation/arch/x86/xstate.rst).
bool has_tiles(unsigned bit) {
  constexpr std::uint64_t tile_states = 3U << 17U;
  constexpr long ask_permission = 0x1023, tile_data = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned os_saves = 1U << 27U;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & os_saves) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & (1U << bit)) == 0) return false;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & tile_states) != tile_states) return false;
  static const bool may = syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
  return may;
}

const Feature known_features[] = {
    BITLOOM_FEATURE("popcnt"),
    BITLOOM_FEATURE("bmi"),
    BITLOOM_FEATURE("bmi2"),
    {"lzcnt", has_lzcnt},
    BITLOOM_FEATURE("fma"),
    BITLOOM_FEATURE("avx2"),
    BITLOOM_FEATURE("avx512f"),
    BITLOOM_FEATURE("avx512bw"),
    BITLOOM_FEATURE("avx512dq"),
    BITLOOM_FEATURE("avx512vl"),
    BITLOOM_FEATURE("avx512bf16"),
    BITLOOM_FEATURE("avx512vpopcntdq"),
    BITLOOM_FEATURE("avx512vnni"),
    {"amx-bf16", [] { return has_tiles(22); }},
    {"amx-tile", [] { return has_tiles(24); }},
};
#undef BITLOOM_FEATURE
#else
const std::span<const Feature> known_features;  // Advanced SIMD is part of the aarch64 baseline
#endif

}  // namespace

bool multiplies_bf16() {
#if defined(__x86_64__)
  return cpu_has("avx512bf16");
#else
  return false;
#endif
}

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
