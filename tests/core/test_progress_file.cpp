// How far a run is, for whoever watches it.
#include "core/progress_file.h"

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("marks come once per interval, and some at once", "[progress_file]") {
  const TempDir folder;
  const auto mark = [&] { return nlohmann::json::parse(read_file(folder / progress_file_name)); };
  int began = 2;
  const auto expected = [&](int step, int evaluated, int beat) {
    return nlohmann::json{{"stage", 1},         {"step", step},     {"evaluated", evaluated}, {"beat", beat},
                          {"start", "start 3"}, {"began_stage", 1}, {"began_step", began}};
  };
  {
    ProgressFile file(folder.path(), "start 3", 1e9);
    file.mark(1, 2, true);
    CHECK(mark() == expected(2, 0, 1));
    file.mark(1, 3, false);  // too soon
    file.mark_evaluated(10);
    CHECK(mark() == expected(2, 0, 1));
    file.mark(1, 4, true);
    CHECK(mark() == expected(4, 0, 2));
  }
  ProgressFile file(folder.path(), "start 3", 0);
  began = 5;
  file.mark(1, 5, true);
  CHECK(mark() == expected(5, 0, 1));
  file.mark_evaluated(7);
  CHECK(mark() == expected(5, 7, 2));
  file.mark(1, 6, false);
  CHECK(mark() == expected(6, 0, 3));
  // Where a start begins, its first mark that is made at once says.
  ProgressFile joining(folder.path(), "start 3", 0);
  joining.mark(1, 0, false);
  CHECK_FALSE(mark().contains("began_step"));
  began = 9;
  joining.mark(1, 9, true);
  CHECK(mark() == expected(9, 0, 2));
  // A folder that is gone is nobody's trouble.
  ProgressFile nowhere(folder / "nowhere", "");
  CHECK_NOTHROW(nowhere.mark(0, 0, true));
}

TEST_CASE("progress is not written through a symbolic link", "[progress_file]") {
  const TempDir folder;
  write_file(folder / "precious", "text");
  std::filesystem::create_symlink(folder / "precious", folder / "progress.next.json");
  ProgressFile(folder.path(), "").mark(1, 2, true);
  CHECK(nlohmann::json::parse(read_file(folder / progress_file_name))["step"] == 2);
  CHECK(read_file(folder / "precious") == "text");
}
