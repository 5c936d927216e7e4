// How far a run is, for whoever watches it.
#include "core/progress_file.h"

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("marks are a few a second, and some at once", "[progress_file]") {
  const TempDir folder;
  const auto mark = [&] { return nlohmann::json::parse(read_file(folder / progress_file_name)); };
  ProgressFile file(folder.path(), "start 3");
  file.mark(1, 2, true);
  CHECK(mark() == nlohmann::json{{"stage", 1}, {"step", 2}, {"start", "start 3"}, {"beat", 1}});
  file.mark(1, 3, false);  // too soon
  CHECK(mark()["step"] == 2);
  file.mark(1, 4, true);
  CHECK(mark()["step"] == 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  file.mark(1, 5, false);
  CHECK(mark() == nlohmann::json{{"stage", 1}, {"step", 5}, {"start", "start 3"}, {"beat", 3}});
  // A folder that is gone is nobody's trouble.
  ProgressFile nowhere(folder / "nowhere", "");
  CHECK_NOTHROW(nowhere.mark(0, 0, true));
}
