#include "core/progress_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace bitloom {

void ProgressFile::mark(std::size_t stage, std::size_t step, bool now) {
  if (!now && seconds_since(marked_) < 0.2) return;
  marked_ = Clock::now();
  const std::filesystem::path next = folder_ / "progress.next.json";
  std::ofstream file(next);
  file << nlohmann::json{{"stage", stage}, {"step", step}, {"start", start_}, {"beat", ++beats_}}.dump() << "\n";
  file.close();
  if (!file) return;
  std::error_code ignored;
  std::filesystem::rename(next, folder_ / progress_file_name, ignored);
}

}  // namespace bitloom
