// Asking hosts whether they are about to be taken away.
#include "launch/probe.h"

#include <chrono>

#include "launch/process.h"
#include "tests/support/catch.h"

using namespace bitloom::launch;

// Servers of clouds take their time: launch once waited a second, where runs waited ten, and took hosts again that these left.
TEST_CASE("a notice that takes longer than a second is heard", "[launch]") {
  const std::vector<std::string> command = probe_command("", Host{"localhost", 1}, "sleep 1.2");
  const std::chrono::duration<double> limit(2 * notice_seconds);
  CHECK(presence_of(run_all({command}, limit).front().code) == Presence::leaving);
}
