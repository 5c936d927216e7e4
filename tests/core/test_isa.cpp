#include "core/isa.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/environment.h"
#include "tests/support/message_of.h"

using namespace bitloom;

namespace {

constexpr int wide_table = 512, narrow_table = 256, plain_table = 0;
constexpr IsaTable<int> entries[] = {
    {"wide", "avx2 lzcnt avx512f", &wide_table}, {"narrow", "avx2 lzcnt", &narrow_table}, {"plain", "", &plain_table}};
const std::span<const IsaTable<int>> tables = entries;

bool has_all(std::string_view) { return true; }
bool has_none(std::string_view) { return false; }
// A virtual machine that masks one feature.
bool has_all_but_lzcnt(std::string_view feature) { return feature != "lzcnt"; }
bool has_all_but_avx512f(std::string_view feature) { return feature != "avx512f"; }

}  // namespace

TEST_CASE("a table is supported if the CPU has every feature of its file", "[isa]") {
  CHECK(compiled_isas(tables) == std::vector<std::string>{"wide", "narrow", "plain"});
  CHECK(supported_isas(tables, has_all) == std::vector<std::string>{"wide", "narrow", "plain"});
  CHECK(supported_isas(tables, has_all_but_avx512f) == std::vector<std::string>{"narrow", "plain"});
  CHECK(supported_isas(tables, has_all_but_lzcnt) == std::vector<std::string>{"plain"});
  CHECK(missing_features("avx2 lzcnt avx512f", has_all_but_lzcnt) == std::vector<std::string>{"lzcnt"});
  CHECK(missing_features("avx2 lzcnt", has_none) == std::vector<std::string>{"avx2", "lzcnt"});
  CHECK(missing_features("", has_none).empty());
}

TEST_CASE("a table that the CPU does not support is a usage error that names the missing features", "[isa]") {
  CHECK(isa_table(tables, "narrow", has_all_but_avx512f) == 256);
  CHECK(isa_table(tables, "plain", has_none) == 0);
  const auto message = [](const char* name, HasFeature has) {
    return test::message_of(ErrorKind::usage, [&] { isa_table(tables, name, has); });
  };
  CHECK(message("wide", has_all_but_lzcnt) ==
        "instruction set 'wide' is not supported by this CPU, which lacks lzcnt (supported: plain)");
  CHECK(test::has(message("wide", has_none), "lacks avx2, lzcnt, avx512f (supported: plain)"));
  CHECK(message("mmx", has_all) == "unknown instruction set 'mmx' (compiled in: wide, narrow, plain)");
}

TEST_CASE("BITLOOM_ISA decides between tables, or else what the CPU has", "[isa]") {
  {
    const test::Environment none("BITLOOM_ISA", nullptr);
    CHECK(chosen_isa_table(tables, has_all) == 512);
    CHECK(chosen_isa_table(tables, has_all_but_avx512f) == 256);
    CHECK(chosen_isa_table(tables, has_none) == 0);
  }
  {
    const test::Environment empty("BITLOOM_ISA", "");
    CHECK(chosen_isa_table(tables, has_all) == 512);
  }
  const test::Environment named("BITLOOM_ISA", "narrow");
  CHECK(chosen_isa_table(tables, has_all) == 256);
  CHECK(test::has(test::message_of(ErrorKind::usage, [] { chosen_isa_table(tables, has_all_but_lzcnt); }), "lacks lzcnt"));
}

TEST_CASE("a feature that is not known is an internal error", "[isa]") {
  CHECK(test::has(test::message_of(ErrorKind::internal, [] { cpu_has("avx1024"); }), "'avx1024'"));
}

#if defined(__x86_64__)
// The system's kernel reports a feature only if it saves the registers.
TEST_CASE("the CPU has the features that the system's kernel reports", "[isa]") {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line) && !line.starts_with("flags")) {
  }
  REQUIRE(line.starts_with("flags"));
  line += ' ';
  const std::pair<const char*, const char*> names[] = {{"popcnt", "popcnt"},
                                                       {"bmi", "bmi1"},
                                                       {"bmi2", "bmi2"},
                                                       {"lzcnt", "abm"},
                                                       {"fma", "fma"},
                                                       {"avx2", "avx2"},
                                                       {"avx512f", "avx512f"},
                                                       {"avx512bw", "avx512bw"},
                                                       {"avx512dq", "avx512dq"},
                                                       {"avx512vl", "avx512vl"},
                                                       {"avx512bf16", "avx512_bf16"},
                                                       {"avx512vpopcntdq", "avx512_vpopcntdq"},
                                                       {"avx512vnni", "avx512_vnni"},
                                                       {"amx-tile", "amx_tile"},
                                                       {"amx-bf16", "amx_bf16"}};
  for (const auto& [feature, reported] : names) {
    INFO(feature);
    const bool is_reported = test::has(line, " " + std::string(reported) + " ");
    // Tile registers a process may be refused.
    if (is_reported && test::has(reported, "amx")) continue;
    CHECK(cpu_has(feature) == is_reported);
  }
}
#endif
