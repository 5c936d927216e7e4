// bitloom fewbit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

nlohmann::json table_of(const TempDir& folder, const Args& args) {
  const Outcome outcome = run_program(folder.path(), with({"fewbit", "--json", "--points", "300"}, args));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  return nlohmann::json::parse(outcome.out);
}

}  // namespace

TEST_CASE("fewbit prints a table, as text and as JSON", "[fewbit]") {
  const TempDir folder;
  const Outcome text = run_program(folder.path(), {"fewbit", "--function", "gelu", "--bits", "2", "--points", "300"});
  INFO(text.out << text.err);
  REQUIRE(text.code == 0);
  CHECK(has(text.out, "gelu: the derivative in 4 levels (2 bits), uniform weight on [-10, 10]"));
  CHECK(has(text.out, "squared error 0.0405625"));
  CHECK(has(text.out, "2 of 32 bits kept per element"));

  const auto json = table_of(folder, {"--function", "gelu", "--bits", "2"});
  CHECK(json["function"] == "gelu");
  CHECK(json["bits"] == 2);
  CHECK(json["interval"] == nlohmann::json({-10.0, 10.0}));
  CHECK(json["weight"] == "uniform");
  CHECK(json["points"] == 300);
  CHECK(json["even"] == false);
  CHECK(std::abs(json["error"].get<double>() - 0.0406) < 1e-4);
  CHECK(json["rms"].get<double>() == Catch::Approx(std::sqrt(json["error"].get<double>() / 20)));
  const auto boundaries = json["boundaries"].get<std::vector<double>>(), levels = json["levels"].get<std::vector<double>>();
  CHECK(boundaries.size() == 3);
  CHECK(levels.size() == 4);
  CHECK(std::is_sorted(boundaries.begin(), boundaries.end()));
  // The text has the same numbers; the boundary at 0 may be some 1e-16.
  for (const double s : boundaries) CHECK(has(text.out, fmt::format(" {:.8f}", std::abs(s) < 1e-9 ? 0 : s)));
  for (const double y : levels) CHECK(has(text.out, fmt::format(" {:.8f}", y)));
  CHECK_FALSE(has(text.out, "-0.00000000"));
}

TEST_CASE("fewbit heeds weight and interval, and drops the sign of even derivatives", "[fewbit]") {
  const TempDir folder;
  const auto uniform = table_of(folder, {"--function", "swish"}),
             normal = table_of(folder, {"--function", "swish", "--weight", "normal"});
  CHECK(uniform["function"] == "silu");
  CHECK(normal["weight"] == "normal");
  CHECK(normal["boundaries"].front().get<double>() > uniform["boundaries"].front().get<double>());
  const auto narrow = table_of(folder, {"--function", "silu", "--interval", "-2,2.5"});
  CHECK(narrow["interval"] == nlohmann::json({-2.0, 2.5}));
  CHECK(narrow["boundaries"].front().get<double>() > -2);
  CHECK(narrow["boundaries"].back().get<double>() < 2.5);
  CHECK(narrow["error"].get<double>() < uniform["error"].get<double>());
  const auto even = table_of(folder, {"--function", "tanh"});
  CHECK(even["even"] == true);
  CHECK(even["boundaries"].front().get<double>() > 0);
  const Outcome text = run_program(folder.path(), {"fewbit", "--function", "tanh", "--points", "100"});
  CHECK(has(text.out, "looked up by |x|"));
}

TEST_CASE("fewbit draws pictures", "[fewbit]") {
  const TempDir folder;
  for (const char* function : {"gelu", "tanh", "relu"}) {
    for (const char* name : {"picture.svg", "picture.png"}) {
      const Outcome outcome =
          run_program(folder.path(), {"fewbit", "--function", function, "--bits", "1", "--points", "100", "--out", name});
      INFO(outcome.out << outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK(has(outcome.out, std::string("drawn in ") + name));
    }
    const std::string svg = read_file(folder / "picture.svg");
    CHECK(has(svg, std::string("Derivative of ") + function + " in 2 levels (1 bit)"));
    CHECK(has(svg, std::string(function) + "&#39;(x)"));
    CHECK(read_file(folder / "picture.png").substr(1, 3) == "PNG");
  }
  const Outcome nowhere = run_program(folder.path(), {"fewbit", "--points", "100", "--out", "no/picture.svg"});
  CHECK(nowhere.code == 5);
  CHECK(has(nowhere.err, "no/picture.svg"));
}
