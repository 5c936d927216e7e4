// Memory of a GPT that few bits save.
#include "models/gpt/memory.h"

#include <cmath>
#include <vector>

#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::models;

TEST_CASE("savings are counted as the paper counts them", "[gpt]") {
  GptConfig config = config_of(find_gpt("gpt2-124m"));
  config.context = 256;
  const auto check_printed = [&](const std::vector<double>& per_cent) {
    for (unsigned bits = 1; bits <= 4; ++bits) {
      // As printed, in whole per cent.
      CHECK(std::abs(100 * paper_saving(config, bits) - per_cent[bits - 1]) < 0.51);
    }
  };
  check_printed({42, 41, 39, 38});
  config.activation = "gelu";  // RoBERTa-base has the same sizes
  check_printed({16, 15, 15, 14});
}
