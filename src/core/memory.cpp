#include "core/memory.h"

#include <fstream>
#include <string>

#include "core/text.h"

namespace bitloom {
namespace {

// Of a line "key:   number kB".
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

}  // namespace

std::uint64_t total_memory() { return meminfo("MemTotal"); }
std::uint64_t available_memory() { return meminfo("MemAvailable"); }

}  // namespace bitloom
