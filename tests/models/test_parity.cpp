// The layouts that the self-test goes through.
#include "models/parity/parity.h"

#include <algorithm>

#include "tests/support/catch.h"

namespace bitloom::models {

// Sixteen stages, more than the nets have layers, ended the test with an error.
TEST_CASE("any number of processes has layouts, each once and none with more parts than layers", "[parity]") {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 64}) {
    INFO(ranks);
    const std::vector<ParityCase> cases = parity_cases(ranks);
    CHECK(cases.size() >= 10);
    std::vector<std::string> texts;
    for (const ParityCase& each : cases) {
      CHECK(each.grid.ranks() == ranks);
      CHECK(each.grid.pipeline <= 15);
      texts.push_back(to_text(each));
    }
    std::ranges::sort(texts);
    CHECK(std::ranges::adjacent_find(texts) == texts.end());
  }
  CHECK(parity_cases(8).size() == 462);
}

}  // namespace bitloom::models
