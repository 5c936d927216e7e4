#include "run/open_run.h"

#include <fmt/format.h>

#include "core/hold.h"
#include "run/folder.h"

namespace bitloom::run {

OpenRun::OpenRun(mpi::Comm& comm, const Options& options, ProgressSink& progress)
    : comm_(comm),
      options_(options),
      progress_(progress),
      progress_file_(options.folder, options.process_name, options.mark_seconds) {}

void OpenRun::lock(const std::function<void()>& check) {
  lock_ = std::make_unique<FileLock>(claim_folder(options_.folder, options_.resume));
  check();
  checkpoints_.emplace(options_.folder, options_.resume);
}

FoundCheckpoint OpenRun::find_checkpoint(const std::string& identity, const std::function<void()>& alive) {
  FoundCheckpoint found = run::find_checkpoint(options_.folder, alive);
  for (const std::string& reason : found.reasons) progress_.line(fmt::format("{}; trying the one before", reason));
  if (!found.file) return found;
  set_aside(found.damaged);
  require_identity(found.file->metadata, found.path, identity, options_.field_name);
  return found;
}

void OpenRun::write_files() const {
  for (const auto& [name, text] : options_.files) write_atomically(options_.folder / name, text);
}

void OpenRun::open_metrics() { metrics_.emplace(options_.folder / metrics_name); }

void OpenRun::wait_while_held(std::size_t stage, std::size_t step) {
  if (!comm_.is_root()) return;
  bitloom::wait_while_held(options_.hold, step, [&] {
    mark(stage, step, false);
    return !is_stop_asked();
  });
}

void OpenRun::mark(std::size_t stage, std::size_t step, bool now) {
  if (comm_.is_root()) progress_file_.mark(stage, step, now);
}

void OpenRun::mark_evaluated(std::size_t images) {
  if (comm_.is_root()) progress_file_.mark_evaluated(images);
}

}  // namespace bitloom::run
