#include "core/hold.h"

#include <chrono>
#include <fstream>
#include <thread>

namespace bitloom {
namespace {

// A file that is just being written holds nothing, or the first digits: it holds the run back.
bool is_held(const std::filesystem::path& path, std::size_t steps) {
  std::ifstream file(path);
  if (!file) return false;
  std::size_t limit = 0;
  file >> limit;
  return limit <= steps;
}

}  // namespace

void wait_while_held(const std::filesystem::path& file, std::size_t steps, const std::function<bool()>& goes_on) {
  while (!file.empty() && is_held(file, steps) && goes_on()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace bitloom
