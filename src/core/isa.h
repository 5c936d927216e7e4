// The choice between tables of kernels, each compiled for the instruction sets of some CPUs.
#pragma once

#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom {

// Whether this CPU has a feature and the operating system saves the registers it needs. Features have the names of compilers'
// -m flags, such as avx512bw; for those of AMX the process asks the system for tile registers. Throws an internal error for one
// that isa.cpp does not know.
bool cpu_has(std::string_view feature);

// Whether it multiplies bf16 itself, on vectors. Elsewhere what computes in bf16 converts to f32 and back.
bool multiplies_bf16();

using HasFeature = bool (*)(std::string_view);

// One compiled-in table.
template <typename Table>
struct IsaTable {
  const char* name;      // as BITLOOM_ISA has it
  const char* features;  // features its file was compiled with, separated by spaces; CMake says them (bitloom_isa)
  const Table* table;
};

// The names in `features` that the CPU does not have.
std::vector<std::string> missing_features(std::string_view features, HasFeature has = cpu_has);

[[noreturn]] void fail_unsupported_isa(std::string_view name, const std::vector<std::string>& missing,
                                       const std::vector<std::string>& supported);
[[noreturn]] void fail_unknown_isa(std::string_view name, const std::vector<std::string>& compiled);

template <typename Table>
std::vector<std::string> compiled_isas(std::span<const IsaTable<Table>> tables) {
  std::vector<std::string> names;
  for (const IsaTable<Table>& one : tables) names.emplace_back(one.name);
  return names;
}

template <typename Table>
std::vector<std::string> supported_isas(std::span<const IsaTable<Table>> tables, HasFeature has = cpu_has) {
  std::vector<std::string> names;
  for (const IsaTable<Table>& one : tables) {
    if (missing_features(one.features, has).empty()) names.emplace_back(one.name);
  }
  return names;
}

// The table of that name. Throws a usage error if there is none, or if the CPU lacks one of its features, which it names.
template <typename Table>
const Table& isa_table(std::span<const IsaTable<Table>> tables, std::string_view name, HasFeature has = cpu_has) {
  for (const IsaTable<Table>& one : tables) {
    if (name != one.name) continue;
    const std::vector<std::string> missing = missing_features(one.features, has);
    if (!missing.empty()) fail_unsupported_isa(name, missing, supported_isas(tables, has));
    return *one.table;
  }
  fail_unknown_isa(name, compiled_isas(tables));
}

// The table that the environment variable BITLOOM_ISA names, or else the first that the CPU supports; the last needs nothing.
template <typename Table>
const Table& chosen_isa_table(std::span<const IsaTable<Table>> tables, HasFeature has = cpu_has) {
  const char* forced = std::getenv("BITLOOM_ISA");
  if (forced != nullptr && *forced != '\0') return isa_table(tables, forced, has);
  return isa_table(tables, supported_isas(tables, has).front(), has);
}

}  // namespace bitloom
