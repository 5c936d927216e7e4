#include "run/folder.h"

#include <system_error>

#include "core/field.h"
#include "core/file_state.h"
#include "run/checkpoints.h"

namespace bitloom::run {

namespace fs = std::filesystem;

bool has_run(const fs::path& folder) {
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  return fs::is_directory(folder) && (has(model_name) || has(metrics_name) || !list_checkpoints(folder).empty());
}

void check_folder(const fs::path& folder, bool resume) {
  if (!resume && has_run(folder)) {
    fail_field(ErrorKind::usage, "out", "{} holds a run already; continue it with `resume`, or choose another folder",
               folder.string());
  }
  if (resume && !fs::is_directory(folder)) fail_field(ErrorKind::usage, "resume", "there is no run in {}", folder.string());
}

FileLock claim_folder(const fs::path& folder, bool resume) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_field(ErrorKind::io, "out", "{} cannot be created: {}", folder.string(), error.message());
  FileLock lock(folder / lock_name);
  check_folder(folder, resume);
  // Nobody else writes here while the lock is held.
  remove_abandoned_temporaries(folder);
  return lock;
}

}  // namespace bitloom::run
