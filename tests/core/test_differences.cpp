#include <nlohmann/json.hpp>

#include "core/differences.h"
#include "tests/support/catch.h"

using namespace bitloom;
using Json = nlohmann::json;

TEST_CASE("differences are found by field, named elements by their names", "[differences]") {
  const Json stored = Json::parse(R"({"batch": 32, "rule": "topk", "betas": [0.9, 0.99], "old": true, "inputs": ["a", "b"],
      "layers": [{"name": "one", "width": 8}, {"name": "two", "width": 16}]})");
  CHECK(find_differences(stored, stored).empty());
  const Json given = Json::parse(R"({"batch": 64, "rule": "topk", "betas": [0.9, 0.95], "new": 1, "inputs": ["a"],
      "layers": [{"name": "two", "width": 24}, {"name": "one", "width": 8}]})");
  const std::vector<FieldDifference> expected{{"batch", "32", "64"},
                                              {"betas.1", "0.99", "0.95"},
                                              {"inputs", "[\"a\",\"b\"]", "[\"a\"]"},
                                              {"layers.two.width", "16", "24"},
                                              {"new", "nothing", "1"},
                                              {"old", "true", "nothing"}};
  CHECK(find_differences(stored, given) == expected);
}

TEST_CASE("differences are told with the names that users know", "[differences]") {
  const std::vector<FieldDifference> two{{"batch", "32", "64"}, {"text", std::string(100, 'x'), "nothing"}};
  CHECK(describe_differences(two, nullptr) ==
        "\n  batch: 32 stored, 64 given\n  text: " + std::string(60, 'x') + "... stored, nothing given");
  CHECK(describe_differences({two[0]}, [](const std::string& field) { return "--" + field; }) ==
        "\n  --batch: 32 stored, 64 given");
  const std::vector<FieldDifference> many(15, two[0]);
  CHECK(describe_differences(many, nullptr).ends_with("given\n  and 3 more"));
}
