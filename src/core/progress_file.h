// How far a run is, in a file of its folder, for whoever watches it and starts it again when it breaks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "core/clock.h"

namespace bitloom {

// {"stage": index, "step": in that stage, "start": what the process calls itself, "beat": a number that grows}. The first of a
// start says where it begins.
inline constexpr const char* progress_file_name = "progress.json";

class ProgressFile {
 public:
  ProgressFile(std::filesystem::path folder, std::string start) : folder_(std::move(folder)), start_(std::move(start)) {}

  // Replaces the file, five times a second at most unless `now`. Nothing depends on it, so nothing is said of failures.
  void mark(std::size_t stage, std::size_t step, bool now);

 private:
  std::filesystem::path folder_;
  std::string start_;
  Clock::time_point marked_;
  std::size_t beats_ = 0;
};

}  // namespace bitloom
