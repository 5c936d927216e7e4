#include "core/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "core/text.h"

namespace bitloom {
namespace {

// Bytes by a line "key:   number kB".
std::uint64_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key + ":")) continue;
    const std::string number = line.substr(key.size() + 1, line.find("kB") - key.size() - 1);
    return static_cast<std::uint64_t>(parse_int(trim(number)).value_or(0)) * 1024;
  }
  return 0;
}

// The number that a file of a control group begins with; nothing where it is missing or says "max".
std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Number in a line "key number" of memory.stat.
std::uint64_t statistic(const std::filesystem::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  for (std::uint64_t number = 0; file >> name >> number;) {
    if (name == key) return number;
  }
  return 0;
}

// "/a/b" of the line "0::/a/b" of /proc/self/cgroup.
std::string own_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "/";
}

}  // namespace

std::uint64_t available_in_group(const std::filesystem::path& root, const std::string& path) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::filesystem::path group = std::filesystem::path(path).relative_path();
  while (true) {
    const std::filesystem::path folder = root / group;
    if (const auto limit = number_in(folder / "memory.max")) {
      const std::uint64_t used = number_in(folder / "memory.current").value_or(0);
      const std::uint64_t needed = used - std::min(used, statistic(folder / "memory.stat", "inactive_file"));
      least = std::min(least, *limit - std::min(*limit, needed));
    }
    if (group.empty()) return least;
    group = group.parent_path();
  }
}

std::uint64_t total_memory() { return meminfo("MemTotal"); }
std::uint64_t available_memory() {
  return std::min(meminfo("MemAvailable"), available_in_group("/sys/fs/cgroup", own_group()));
}

}  // namespace bitloom
