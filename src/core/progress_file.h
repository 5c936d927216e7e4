// How far a run is, in a file of its folder, for whoever watches it and starts it again when it breaks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "core/clock.h"

namespace bitloom {

// {"stage": index, "step": in that stage, "evaluated": images that an evaluation after that step has seen, "start": what the
// process calls itself, "beat": a number that grows, "began_stage" and "began_step": of the first mark that was made at once,
// which says where this start begins; not there before it}.
inline constexpr const char* progress_file_name = "progress.json";

class ProgressFile {
 public:
  ProgressFile(std::filesystem::path folder, std::string start, double interval_seconds = 0.2)
      : folder_(std::move(folder)), start_(std::move(start)), interval_seconds_(interval_seconds) {}

  // Replaces the file, once per interval at most unless `now`. Nothing depends on it, so nothing is said of failures.
  void mark(std::size_t stage, std::size_t step, bool now);
  // While the net is evaluated as it is after the step that was marked last; as often.
  void mark_evaluated(std::size_t images);

 private:
  void write();

  std::filesystem::path folder_;
  std::string start_;
  double interval_seconds_;
  struct Place {
    std::size_t stage, step;
  };

  std::size_t stage_ = 0, step_ = 0, evaluated_ = 0;
  std::optional<Place> began_;
  Clock::time_point marked_;
  std::size_t beats_ = 0;
};

}  // namespace bitloom
