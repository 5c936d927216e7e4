#include "core/progress_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace bitloom {

void ProgressFile::mark(std::size_t stage, std::size_t step, bool now) {
  stage_ = stage;
  step_ = step;
  evaluated_ = 0;
  if (now && !began_) began_ = {stage, step};
  if (now || seconds_since(marked_) >= interval_seconds_) write();
}

void ProgressFile::mark_evaluated(std::size_t images) {
  evaluated_ = images;
  if (seconds_since(marked_) >= interval_seconds_) write();
}

void ProgressFile::write() {
  marked_ = Clock::now();
  const std::filesystem::path next = folder_ / "progress.next.json";
  std::error_code ignored;
  // A symbolic link would lead to somebody's file.
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(next, ignored))) std::filesystem::remove(next, ignored);
  std::ofstream file(next);
  nlohmann::json mark = {{"stage", stage_}, {"step", step_}, {"evaluated", evaluated_}, {"start", start_}, {"beat", ++beats_}};
  if (began_) mark.update({{"began_stage", began_->stage}, {"began_step", began_->step}});
  file << mark.dump() << "\n";
  file.close();
  if (!file) return;
  std::filesystem::rename(next, folder_ / progress_file_name, ignored);
}

}  // namespace bitloom
