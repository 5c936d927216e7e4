#include "launch/leftovers.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#include "core/clock.h"

namespace bitloom::launch {
namespace {

namespace fs = std::filesystem;

bool in_use(const fs::path& file) {
  std::error_code error;
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.ends_with(file.string())) return true;
    }
  }
  return false;
}

}  // namespace

// "vader_segment.NODE.UID.JOB.RANK", in Open MPI 5 "sm_segment." and the same.
std::set<fs::path> shared_segments() {
  std::set<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename().string();
    const bool is_segment = name.starts_with("vader_segment.") || name.starts_with("sm_segment.");
    if (is_segment && name.find(fmt::format(".{}.", getuid())) != std::string::npos) {
      found.insert(entry.path());
    }
  }
  return found;
}

void remove_segments(const std::set<fs::path>& others) {
  for (const fs::path& segment : shared_segments()) {
    std::error_code ignored;
    if (!others.contains(segment) && !in_use(segment)) fs::remove(segment, ignored);
  }
}

std::vector<pid_t> end_children(double seconds) {
  const Clock::time_point start = Clock::now();
  while (true) {
    std::vector<pid_t> left;
    bool any = false;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
      std::ifstream file(entry.path() / "stat");
      std::string stat;
      std::getline(file, stat);
      const std::size_t close = stat.rfind(')');
      if (close == std::string::npos) continue;
      std::istringstream fields(stat.substr(close + 1));
      std::string state;
      pid_t parent = 0;
      if (!(fields >> state >> parent) || parent != getpid()) continue;
      const pid_t child = std::stoi(stat);
      kill(child, SIGKILL);
      any = true;  // its own children come to this process now
      if (waitpid(child, nullptr, WNOHANG) != child) left.push_back(child);
    }
    if (!any || (!left.empty() && seconds_since(start) > seconds)) return left;
    if (!left.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace bitloom::launch
