// Checkpoints: the newest whole one is found, and none is lost to damage, a full disk or a killed process.
#include "run/checkpoints.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "run/folder.h"
#include "tests/run/checkpoint_file.h"
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::run;
using bitloom::test::file_with;
using bitloom::test::has;
using bitloom::test::identity;
using bitloom::test::message_of;
namespace fs = std::filesystem;

namespace {

float value_of(const TensorSource& file) { return file.read("x", DType::f32, {8}).as<float>()[0]; }

// With checkpoints 1 and 2.
struct Run {
  Run() {
    for (const float value : {1.F, 2.F}) writer.write(file_with(value), identity);
  }
  test::TempDir folder;
  CheckpointWriter writer{folder.path(), false};
  fs::path newest = folder / checkpoint_name;
  fs::path previous = folder / previous_checkpoint_name;
};

}  // namespace

TEST_CASE("the last two checkpoints are kept and the newest is read", "[checkpoint]") {
  Run run;
  run.writer.write(file_with(3), identity);
  CHECK(list_checkpoints(run.folder.path()) == std::vector{run.newest, run.previous});
  const FoundCheckpoint found = find_checkpoint(run.folder.path());
  REQUIRE(found.file);
  CHECK(value_of(*found.file) == 3);
  CHECK(found.path == run.newest);
  CHECK(found.damaged.empty());
  CHECK(value_of(TensorFile::load(run.previous, Checksum::required)) == 2);
  remove_checkpoints(run.folder.path());
  CHECK(fs::is_empty(run.folder.path()));
}

TEST_CASE("a damaged checkpoint is passed over, named and set aside", "[checkpoint]") {
  Run run;
  const std::string bytes = test::read_file(run.newest);
  SECTION("a bit is flipped") {
    std::string damaged = bytes;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    test::write_file(run.newest, damaged);
  }
  SECTION("it is cut off") { test::write_file(run.newest, bytes.substr(0, bytes.size() - 1)); }
  SECTION("it is empty") { test::write_file(run.newest, ""); }
  SECTION("it has no checksum") {
    TensorFile other = file_with(2);
    const std::vector<std::byte> serialized = other.serialize();
    std::string text(reinterpret_cast<const char*>(serialized.data()), serialized.size());
    const std::size_t at = text.find("bitloom.xxh3");
    REQUIRE(at != std::string::npos);
    text[at] = 'c';
    test::write_file(run.newest, text);
  }
  SECTION("it is a folder") {
    fs::remove(run.newest);
    fs::create_directories(run.newest / "inner");
  }
  const FoundCheckpoint found = find_checkpoint(run.folder.path());
  REQUIRE(found.file);
  CHECK(value_of(*found.file) == 1);
  CHECK(found.path == run.previous);
  CHECK(found.damaged == std::vector{run.newest});
  REQUIRE(found.reasons.size() == 1);
  CHECK(has(found.reasons[0], run.newest.string()));
  set_aside(found.damaged);
  CHECK(fs::exists(run.newest.string() + ".damaged"));
  // The next one does not take the place of the whole one before it was written.
  run.writer.write(file_with(3), identity);
  CHECK(value_of(*find_checkpoint(run.folder.path()).file) == 3);
  CHECK(value_of(TensorFile::load(run.previous, Checksum::required)) == 1);
  test::write_file(run.previous, "x");
  test::write_file(run.newest, "y");
  const FoundCheckpoint none = find_checkpoint(run.folder.path());
  CHECK_FALSE(none.file);
  CHECK(none.damaged.size() == 2);
}

// It was set aside as damaged.
TEST_CASE("a checkpoint that the system does not open is an error, and stays", "[checkpoint]") {
  Run run;
  {
    const test::NoMoreFiles limit;
    CHECK(has(message_of(ErrorKind::io, [&] { find_checkpoint(run.folder.path()); }), run.newest.string()));
  }
  CHECK(value_of(*find_checkpoint(run.folder.path()).file) == 2);
}

TEST_CASE("a full disk leaves the checkpoints that there are", "[checkpoint]") {
  Run run;
  {
    const test::FileSizeLimit limit(4096);
    CHECK(has(message_of(ErrorKind::io, [&] { run.writer.write(file_with(3, 100000), identity); }), "checkpoint.next"));
  }
  CHECK(list_checkpoints(run.folder.path()).size() == 2);
  CHECK(value_of(*find_checkpoint(run.folder.path()).file) == 2);
}

// A process was killed between the two renamings.
TEST_CASE("a whole checkpoint that was not put in its place becomes the newest of a run that goes on", "[checkpoint]") {
  for (const bool resume : {true, false}) {
    Run run;
    run.writer.write(file_with(3), identity);
    fs::rename(run.newest, run.folder / next_checkpoint_name);
    CHECK(value_of(*find_checkpoint(run.folder.path()).file) == 2);
    const CheckpointWriter again(run.folder.path(), resume);
    CHECK_FALSE(fs::exists(run.folder / next_checkpoint_name));
    CHECK(value_of(*find_checkpoint(run.folder.path()).file) == (resume ? 3 : 2));
  }
}

TEST_CASE("a checkpoint of another run or another version is refused, with what differs", "[checkpoint]") {
  Run run;
  const std::map<std::string, std::string> written = find_checkpoint(run.folder.path()).file->metadata;
  const auto refused = [&](const std::map<std::string, std::string>& of, const std::string& mine) {
    return message_of(ErrorKind::usage,
                      [&] { require_identity(of, "c", mine, [](const std::string& field) { return "--" + field; }); });
  };
  CHECK_NOTHROW(require_identity(written, "c", identity, nullptr));
  CHECK(has(refused(written, R"({"net":{"width":9},"version":"2"})"),
            "c belongs to a run with other data, net or options:\n  --net.width: "));
  CHECK(refused(written, R"({"net":{"width":9},"version":"3"})") ==
        "c was written by another version of the program (2; this one: 3), which alone can continue it");
  CHECK(has(refused({}, identity), "does not say which"));
}

TEST_CASE("a folder that holds a run is not taken for a new one", "[folder]") {
  const test::TempDir folder;
  const fs::path out = folder / "deep/run";
  CHECK(has(message_of(ErrorKind::usage, [&] { check_folder(out, true); }), "`resume`: there is no run in"));
  CHECK_NOTHROW(check_folder(out, false));
  {
    const FileLock lock = claim_folder(out, false);
    CHECK(has(message_of(ErrorKind::busy, [&] { (void)claim_folder(out, false); }), ".lock"));
  }
  CHECK_FALSE(has_run(out));
  // Killed before its first checkpoint.
  CHECK_NOTHROW(claim_folder(out, true));
  for (const char* name : {model_name, metrics_name, checkpoint_name, previous_checkpoint_name}) {
    INFO(name);
    test::write_file(out / name, "");
    CHECK(has_run(out));
    CHECK(has(message_of(ErrorKind::usage, [&] { (void)claim_folder(out, false); }), "`out`: "));
    CHECK_NOTHROW(claim_folder(out, true));
    fs::remove(out / name);
  }
  const fs::path left = out / "checkpoint.next.safetensors.1-00000000000000aa.tmp";
  test::write_file(left, "part of a checkpoint");
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(2));  // by its name it is another host's
  CHECK_NOTHROW(claim_folder(out, true));
  CHECK(fs::exists(out / lock_name));
  for (const auto& entry : fs::directory_iterator(out)) CHECK(entry.path().filename() == lock_name);
}
