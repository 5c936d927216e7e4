#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/isa.h"
#include "simd/tables.h"
#include "tests/support/catch.h"
#include "tests/support/compile_flags.h"

using namespace bitloom;

TEST_CASE("ref is always compiled in and supported, and tables carry their names", "[simd][dispatch]") {
  const std::vector<std::string> compiled = simd::compiled_kernels();
  const std::vector<std::string> supported = simd::supported_kernels();
  REQUIRE(compiled.back() == "ref");
  REQUIRE(supported.back() == "ref");
  for (const std::string& name : supported) {
    REQUIRE(std::find(compiled.begin(), compiled.end(), name) != compiled.end());
    REQUIRE(simd::kernels(name).name == name);
  }
}

TEST_CASE("the table in use is the forced one, or else the best supported", "[simd][dispatch]") {
  const char* forced = std::getenv("BITLOOM_ISA");
  const std::string expected = forced != nullptr && *forced != '\0' ? forced : simd::supported_kernels().front();
  REQUIRE(simd::kernels().name == expected);
  REQUIRE(&simd::kernels() == &simd::kernels(expected));
}

TEST_CASE("an unknown or unsupported instruction set is a usage error that names it", "[simd][dispatch]") {
  const auto message = [](const std::string& name) {
    try {
      simd::kernels(name);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  REQUIRE(message("sse9").find("'sse9'") != std::string::npos);
  REQUIRE(message("sse9").find("ref") != std::string::npos);
  REQUIRE(message("").find("unknown") != std::string::npos);
  for (const std::string& name : simd::compiled_kernels()) {
    const std::vector<std::string> supported = simd::supported_kernels();
    if (std::find(supported.begin(), supported.end(), name) != supported.end()) continue;
    REQUIRE(message(name).find("not supported") != std::string::npos);
  }
}

// It did not ask for popcnt, bmi, bmi2 and lzcnt: an illegal instruction on a virtual machine that masks one of them.
TEST_CASE("each table of bit-packed kernels asks for the features that its file is compiled with", "[simd][dispatch]") {
  for (const IsaTable<simd::Kernels>& one : simd::all_kernels()) {
    INFO(one.name);
    const std::string name = one.name;
    const std::string file = name == "ref" ? "simd/ref/ref.cpp" : "simd/isa/" + name + ".cpp";
    CHECK(test::machine_flags(file) == test::as_machine_flags(one.features));
    REQUIRE_NOTHROW(missing_features(one.features));  // all are known
  }
}

TEST_CASE("the measured peak is positive for every table", "[simd][dispatch]") {
  for (const std::string& name : simd::supported_kernels()) {
    INFO(name);
    const std::uint64_t once = simd::kernels(name).peak_loop(10);
    REQUIRE(once > 0);
    REQUIRE(simd::kernels(name).peak_loop(30) == 3 * once);  // the count of bit-MACs is linear in the rounds
    REQUIRE(simd::measure_peak(simd::kernels(name), 0.01) > 1e8);
  }
}
