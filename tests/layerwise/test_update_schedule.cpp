// Which updates by sparse messages carry statistics.
#include "layerwise/update_schedule.h"

#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;

TEST_CASE("statistics take no more than about a quarter of messages, unless an interval is given", "[sparse]") {
  mpi::ExchangeOptions options;
  CHECK(statistics_interval(options, 0, 100000) == 8);  // no budget
  options.bytes_per_update = 8192;
  CHECK(statistics_interval(options, 8192, 1000) == 8);
  std::size_t before = 8;
  for (const double budget : {4096.0, 1800.0, 600.0}) {
    const std::size_t every = statistics_interval(options, budget, 8000);
    CHECK(every > before);
    // A byte or two each.
    const double share = 8000.0 / static_cast<double>(every) / budget;
    CHECK(share > 0.1);
    CHECK(share < 0.25);
    before = every;
  }
  CHECK(statistics_interval(options, 64, 1000000) == 256);
  options.statistics_every = 3;
  CHECK(statistics_interval(options, 64, 1000000) == 3);
}
