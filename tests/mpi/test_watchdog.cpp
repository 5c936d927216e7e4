// When the watchdog counts and when it does not, by a clock that the test turns; what it does then, tests/mpi/watchdog.cpp and
// tests/cli see under mpirun.
#include "mpi/watchdog.h"

#include <chrono>

#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::mpi;

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Clock::time_point begin{};

}  // namespace

TEST_CASE("who waits has not waited while it was suspended", "[watchdog]") {
  Patience patience(begin, seconds(1));
  CHECK(patience.waited(begin) == 0);
  CHECK(patience.waited(begin + milliseconds(500)) == 0.5);
  CHECK(patience.waited(begin + milliseconds(1500)) == 1.5);
  // An hour in which nobody looked.
  CHECK(patience.waited(begin + seconds(3600)) == 2.5);
  CHECK(patience.waited(begin + seconds(3600) + milliseconds(250)) == 2.75);
}

TEST_CASE("a call is timed from when it is first seen, and each for itself", "[watchdog]") {
  CallTimer timer(seconds(2));
  CHECK(timer.look(0, begin + seconds(100)) == 0);  // before the first
  CHECK(timer.look(1, begin + seconds(101)) == 0);
  CHECK(timer.look(1, begin + seconds(102)) == 1);
  CHECK(timer.look(1, begin + seconds(103)) == 2);
  CHECK(timer.look(1, begin + seconds(1000)) == 4);  // it was suspended
  CHECK(timer.look(3, begin + seconds(1001)) == 0);  // another one
  CHECK(timer.look(3, begin + seconds(1002)) == 1);
  CHECK(timer.look(4, begin + seconds(1003)) == 0);
  CHECK(timer.look(4, begin + seconds(2003)) == 0);  // between calls a rank may do what it likes
  CHECK(timer.look(5, begin + seconds(2004)) == 0);
  CHECK(timer.look(5, begin + seconds(2005)) == 1);
}
