// A run's folder while a process works on it.
#include "run/open_run.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "run/folder.h"
#include "tests/run/checkpoint_file.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/lines.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::run;
using bitloom::test::file_with;
using bitloom::test::has;
using bitloom::test::identity;
using bitloom::test::message_of;
namespace fs = std::filesystem;

namespace {

struct Opened {
  explicit Opened(const fs::path& folder, bool resume = false) : options(options_for(folder, resume)) {}
  static Options options_for(const fs::path& folder, bool resume) {
    Options options;
    options.folder = folder;
    options.resume = resume;
    options.files = {{"note.txt", "kept"}};
    options.mark_seconds = 0;
    return options;
  }
  Options options;
  mpi::Comm comm;
  test::Lines told;
  OpenRun run{comm, options, told};
};

}  // namespace

TEST_CASE("a run's folder is locked, and what must stay as it is stays", "[run]") {
  const test::TempDir folder;
  Opened first(folder.path());
  first.run.lock([] {});
  CHECK(first.run.is_locked());
  first.run.write_files();
  CHECK(test::read_file(folder / "note.txt") == "kept");
  Opened second(folder.path());
  CHECK_THROWS_AS(second.run.lock([] {}), Error);
  CHECK_FALSE(second.run.is_locked());

  // A checkpoint that a killed process left on its way to its name becomes the newest, but not where the check refuses.
  const test::TempDir other;
  file_with(1).save(other / next_checkpoint_name);
  {
    Opened refused(other.path(), true);
    CHECK_THROWS_AS(refused.run.lock([] { fail(ErrorKind::usage, "as it is"); }), Error);
  }
  CHECK(fs::exists(other / next_checkpoint_name));
  Opened resumed(other.path(), true);
  resumed.run.lock([] {});
  CHECK(fs::exists(other / checkpoint_name));
}

TEST_CASE("a run goes on from its newest whole checkpoint, and from none of another run", "[run]") {
  const test::TempDir folder;
  {
    Opened opened(folder.path());
    opened.run.lock([] {});
    opened.run.checkpoints().write(file_with(1), identity);
    opened.run.checkpoints().write(file_with(2), identity);
  }
  Opened opened(folder.path(), true);
  opened.run.lock([] {});
  CHECK(opened.run.find_checkpoint(identity).path == folder / checkpoint_name);
  CHECK(opened.told.text().empty());
  const std::string refused =
      message_of(ErrorKind::usage, [&] { opened.run.find_checkpoint(R"({"net":{"width":9},"version":"2"})"); });
  CHECK(has(refused, "width"));

  // The newest damaged, the one before it is taken; both damaged, they stay for whoever looks at them.
  test::write_file(folder / checkpoint_name, "damaged");
  const FoundCheckpoint found = opened.run.find_checkpoint(identity);
  REQUIRE(found.file);
  CHECK(found.path == folder / previous_checkpoint_name);
  CHECK(has(opened.told.text(), "trying the one before"));
  CHECK_FALSE(fs::exists(folder / checkpoint_name));
  for (const char* name : {checkpoint_name, previous_checkpoint_name}) test::write_file(folder / name, "damaged too");
  CHECK_FALSE(opened.run.find_checkpoint(identity).file);
  for (const char* name : {checkpoint_name, previous_checkpoint_name}) CHECK(fs::exists(folder / name));
}

TEST_CASE("a run's clock goes on where earlier processes left it, and a stop ends a hold", "[run]") {
  const test::TempDir folder;
  Opened opened(folder.path());
  opened.run.lock([] {});
  const double before = opened.run.elapsed();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(opened.run.elapsed() >= before + 0.02);
  const Clock::time_point started = Clock::now();
  opened.run.start_clock();
  opened.run.set_earlier(100);
  const double elapsed = opened.run.elapsed();
  const double most = 100 + seconds_since(started);
  CHECK(elapsed >= 100);
  CHECK(elapsed <= most);
  CHECK_FALSE(opened.run.is_stop_asked());
  opened.options.stop = [] { return true; };
  opened.options.hold = folder / "hold";
  test::write_file(folder / "hold", "");
  opened.run.wait_while_held(0, 3);
  CHECK(opened.run.is_stop_asked());
  CHECK(has(test::read_file(folder / progress_file_name), "\"step\":3"));
}
