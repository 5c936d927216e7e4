// Programs that the supervisor starts, on a system that refuses, or does not let go.
#include "launch/process.h"

#include <dlfcn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "launch/leftovers.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using namespace bitloom::launch;

namespace {

std::atomic<int> forks_to_fail{0};
std::atomic<pid_t> stuck{-1};  // waits for a device: neither dies nor ends
std::atomic<bool> waited_for_ever{false};

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// In place of the system's, in this program.
extern "C" pid_t fork() noexcept {
  if (forks_to_fail > 0) {
    --forks_to_fail;
    errno = EAGAIN;
    return -1;
  }
  return next<pid_t()>("fork")();
}

extern "C" pid_t waitpid(pid_t process, int* status, int options) {
  if (process > 0 && process == stuck) {
    if ((options & WNOHANG) != 0) return 0;
    waited_for_ever = true;
    errno = ECHILD;
    return -1;
  }
  return next<pid_t(pid_t, int*, int)>("waitpid")(process, status, options);
}

TEST_CASE("a program is started though the system has no process to spare at first", "[process]") {
  forks_to_fail = 2;
  const std::vector<Ended> ended = run_all({{"sh", "-c", "echo here; exit 3"}}, std::chrono::minutes(1));
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].started);
  CHECK(ended[0].code == 3);
  CHECK(ended[0].output == "here\n");
  CHECK(forks_to_fail == 0);
}

TEST_CASE("what cannot be started is told, and keeps nothing else from being run", "[process]") {
  const std::vector<Ended> ended = run_all({{"./no-such-program"}, {"true"}}, std::chrono::minutes(1));
  REQUIRE(ended.size() == 2);
  CHECK_FALSE(ended[0].started);
  CHECK(ended[0].code == -1);
  CHECK(ended[0].output == "./no-such-program: cannot be started: No such file or directory");
  CHECK(ended[1].code == 0);
  forks_to_fail = 1000;
  CHECK(message_of(ErrorKind::io, [] { Process({"true"}); }) == "true: cannot be started: Resource temporarily unavailable");
  forks_to_fail = 0;
}

TEST_CASE("many commands run a number at once, and none after a stop", "[process]") {
  const auto children = [] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "stat");
      std::string id, name, state;
      pid_t parent = 0;
      count += file >> id >> name >> state >> parent && parent == getpid() ? 1 : 0;
    }
    return count;
  };
  const std::size_t before = children();
  const std::vector<std::vector<std::string>> quick(most_processes + 50, {"true"});
  const std::vector<Ended> ended = run_all(quick, std::chrono::minutes(5));
  CHECK(std::all_of(ended.begin(), ended.end(), [](const Ended& each) { return each.code == 0; }));
  const std::vector<std::vector<std::string>> slow(most_processes + 50, {"sleep", "600"});
  std::size_t most = 0, looks = 0;
  const std::vector<Ended> stopped = run_all(slow, std::chrono::minutes(5), [&] {
    const std::size_t now = children() - before;
    looks += now == most_processes ? 1 : 0;
    most = std::max(most, now);
    return looks > 2 || most > most_processes;
  });
  CHECK(most == most_processes);
  REQUIRE(stopped.size() == slow.size());
  CHECK(std::all_of(stopped.begin(), stopped.end(), [](const Ended& each) { return each.code == -1 && each.started; }));
  CHECK(children() == before);
}

TEST_CASE("commands for which there is no process yet are run when others have ended", "[process]") {
  std::size_t calls = 0;
  const std::vector<Ended> ended = run_all({{"sleep", "0.2"}, {"true"}, {"true"}}, std::chrono::minutes(5), [&] {
    if (++calls == 2) forks_to_fail = 8;  // all tries to start the second
    return false;
  });
  CHECK(std::all_of(ended.begin(), ended.end(), [](const Ended& each) { return each.code == 0; }));
  forks_to_fail = 0;
}

TEST_CASE("a process that does not end though it was killed is left behind", "[process]") {
  pid_t id = 0;
  {
    const Process process({"sleep", "600"});
    id = process.id();
    stuck = id;
  }
  CHECK_FALSE(waited_for_ever);
  const std::vector<pid_t> left = end_children(0.1);
  CHECK(std::count(left.begin(), left.end(), id) == 1);
  CHECK_FALSE(waited_for_ever);
  stuck = -1;  // the device answers
  CHECK(end_children(60).empty());
  CHECK(kill(id, 0) != 0);
}
