// A run that waits for a test.
#include "core/hold.h"

#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("a run is held back by a file as long as its number is not above the step", "[hold]") {
  const TempDir folder;
  int asked = 0;
  // Whether it waited, and until what.
  const auto waits = [&](std::size_t steps, const std::function<void()>& meanwhile) {
    asked = 0;
    wait_while_held(folder / "hold", steps, [&] {
      if (++asked == 3) meanwhile();
      return asked < 1000;
    });
    return asked > 0;
  };
  CHECK_FALSE(waits(5, [] {}));  // no file
  for (const char* text : {"", "5", "0", "4 ", "no number"}) {
    INFO(text);
    write_file(folder / "hold", text);
    CHECK(waits(5, [&] { write_file(folder / "hold", "6"); }));
    CHECK(asked < 1000);
    CHECK_FALSE(waits(5, [] {}));
    CHECK(waits(6, [&] { std::filesystem::remove(folder / "hold"); }));
    CHECK(asked < 1000);
  }
  write_file(folder / "hold", "1");
  wait_while_held(folder / "hold", 1, [&] { return false; });
  wait_while_held("", 1, [&] { return true; });
}
