// How often a folder is listed into which many files are written.
#include "core/listing_pace.h"

#include <cstddef>

#include "tests/support/catch.h"

using namespace bitloom;
using namespace std::chrono_literals;

// Each of them listed it: the time for n pictures went with n^2.
TEST_CASE("100,000 files that are written into one folder do not each list it", "[file]") {
  ListingPace pace;
  Clock::time_point now;
  std::size_t listings = 0;
  for (std::size_t files = 0; files < 100000; ++files) {
    if (pace.is_due("pictures", now)) {
      const Clock::time_point start = now;
      now += files * 1us;
      pace.add("pictures", start, now);
      ++listings;
    }
    now += 1ms;
  }
  // While there are fewer than 5000 a listing takes less than 5 ms; later, on average, one in 9 x 50 ms of writing.
  CHECK(listings > 5000);
  CHECK(listings < 5500);
  CHECK(now.time_since_epoch() < 130s);
}

TEST_CASE("a folder is listed again in time, and another one at once", "[file]") {
  ListingPace pace;
  const Clock::time_point start;
  CHECK(pace.is_due("a", start));
  pace.add("a", start, start + 100ms);
  CHECK_FALSE(pace.is_due("a", start + 999ms));
  CHECK(pace.is_due("a", start + 1000ms));
  CHECK(pace.is_due("b", start + 200ms));
}
