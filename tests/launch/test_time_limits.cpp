// How long the processes of a start are waited for.
#include "launch/time_limits.h"

#include "tests/support/catch.h"

using namespace bitloom::launch;

// It was killed half a minute after its last sign of life, while it gathered a large checkpoint over a slow link.
TEST_CASE("a run that is asked to end may be silent for as long as before", "[launch]") {
  const double deadline = 120;
  CHECK_FALSE(is_overdue({true, 31, 31}, deadline));
  CHECK_FALSE(is_overdue({true, 119, 150}, deadline));
  CHECK(is_overdue({true, 121, 31}, deadline));
  CHECK(is_overdue({true, 121, {}}, deadline));
  CHECK_FALSE(is_overdue({true, 119, {}}, deadline));
  // With signs of life it has ten minutes, or a longer deadline.
  CHECK_FALSE(is_overdue({true, 1, 599}, deadline));
  CHECK(is_overdue({true, 1, 601}, deadline));
  CHECK_FALSE(is_overdue({true, 601, 601}, 1000));
  CHECK(is_overdue({true, 1, 1001}, 1000));
}

TEST_CASE("processes that are not at work yet have a minute more, and end soon when they are asked to", "[launch]") {
  const double deadline = 120;
  CHECK_FALSE(is_overdue({false, 179, {}}, deadline));
  CHECK(is_overdue({false, 181, {}}, deadline));
  CHECK(longest_silence(false, deadline) == 180);
  CHECK(longest_silence(true, deadline) == 120);
  CHECK_FALSE(is_overdue({false, 100, 29}, deadline));
  CHECK_FALSE(is_overdue({false, 29, 100}, deadline));
  CHECK(is_overdue({false, 31, 31}, deadline));
  // Whatever they say meanwhile.
  CHECK_FALSE(is_overdue({false, 1, 599}, deadline));
  CHECK(is_overdue({false, 1, 601}, deadline));
}
