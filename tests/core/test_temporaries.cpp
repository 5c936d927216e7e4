// Temporary files of atomic writes: which are removed, and when.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/file_state.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
namespace fs = std::filesystem;

namespace {

// How names of temporaries call this host.
std::string tag_of_this_host() {
  const test::TempDir folder;
  std::string name;
  write_atomically(folder / "file", [&](const TakeBytes&) {
    for (const auto& entry : fs::directory_iterator(folder.path())) name = entry.path().filename().string();
  });
  return name.substr(name.rfind('-') + 1, 8);
}

void make_older(const fs::path& file, std::chrono::minutes age) {
  fs::last_write_time(file, fs::file_time_type::clock::now() - age);
}

// As a living writer has it.
int open_and_lock(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(descriptor >= 0);
  REQUIRE(::flock(descriptor, LOCK_EX | LOCK_NB) == 0);
  return descriptor;
}

}  // namespace

TEST_CASE("temporary files are removed when their writers are gone, and no others", "[file]") {
  const test::TempDir folder;
  const std::string host = tag_of_this_host();
  REQUIRE(host.size() == 8);
  REQUIRE(host.find_first_not_of("0123456789abcdef") == std::string::npos);
  // The process id is that of a living process, as happens with containers that share a folder.
  const std::string mine = std::to_string(::getpid());
  const fs::path dead = folder / ("model." + mine + "-" + host + "445566aa.tmp");
  const fs::path older = folder / ("checkpoint-7.safetensors.123-" + host + "00000000.tmp");
  const fs::path alive = folder / ("model.1-" + host + "bbaa9988.tmp");
  // Names like 2024-10 are those of somebody's files: they were removed.
  const std::vector<std::string> others = {"model.tmp",
                                           "a.1-2.txt",
                                           "a.12.tmp",
                                           "a.1-.tmp",
                                           "a.1-g.tmp",
                                           "a.2024-10.tmp",
                                           "a.123-0.tmp",
                                           "." + mine + "-" + host + "00000000.tmp",
                                           "a.x1-" + host + "00000000.tmp",
                                           "a.1-" + host + "0000000.tmp",
                                           "a.1-" + host + "000000000.tmp",
                                           "a.1-" + host + "0000000g.tmp"};
  for (const fs::path& file : {dead, older, alive}) test::write_file(file, "part");
  for (const std::string& name : others) {
    test::write_file(folder / name, "somebody's");
    make_older(folder / name, std::chrono::hours(48));
  }
  test::write_file(folder / "precious", "not to be locked or removed");
  fs::create_symlink(folder / "precious", folder / ("model.5-" + host + "00000005.tmp"));
  const int writer = open_and_lock(alive);
  write_atomically(folder / "model", "whole");
  CHECK_FALSE(fs::exists(dead));
  CHECK(fs::exists(older));  // it belongs to another file
  CHECK(fs::exists(alive));
  remove_abandoned_temporaries(folder.path());
  CHECK_FALSE(fs::exists(older));
  CHECK(fs::exists(alive));
  ::close(writer);
  remove_abandoned_temporaries(folder.path());
  CHECK_FALSE(fs::exists(alive));
  for (const std::string& name : others) {
    INFO(name);
    CHECK(fs::exists(folder / name));
  }
  CHECK(test::read_file(folder / "precious") == "not to be locked or removed");
  remove_abandoned_temporaries(folder / "missing");
}

// Where file systems keep locks by host, a living writer of another one looked like a dead one.
TEST_CASE("temporary files of other hosts are removed when nothing was written to them for an hour", "[file]") {
  const test::TempDir folder;
  std::string other = tag_of_this_host();
  other[0] = other[0] == '0' ? '1' : '0';
  const fs::path fresh = folder / ("model.1-" + other + "00000001.tmp");
  const fs::path silent = folder / ("model.1-" + other + "00000002.tmp");
  const fs::path locked = folder / ("model.1-" + other + "00000003.tmp");
  for (const fs::path& file : {fresh, silent, locked}) test::write_file(file, "part");
  make_older(fresh, std::chrono::minutes(50));
  make_older(silent, std::chrono::minutes(70));
  make_older(locked, std::chrono::minutes(70));
  const int writer = open_and_lock(locked);
  write_atomically(folder / "model", "whole");
  CHECK(fs::exists(fresh));
  CHECK_FALSE(fs::exists(silent));
  CHECK(fs::exists(locked));
  ::close(writer);
  remove_abandoned_temporaries(folder.path());
  CHECK(fs::exists(fresh));
  CHECK_FALSE(fs::exists(locked));
  make_older(fresh, std::chrono::minutes(70));
  remove_abandoned_temporaries(folder.path());
  CHECK_FALSE(fs::exists(fresh));
  CHECK(test::read_file(folder / "model") == "whole");
}
