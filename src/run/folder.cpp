#include "run/folder.h"

#include <array>
#include <cstdint>
#include <span>
#include <system_error>

#include "core/clock.h"
#include "core/field.h"
#include "core/file_state.h"
#include "run/checkpoints.h"

namespace bitloom::run {

namespace fs = std::filesystem;

namespace {

// Between signs that rank 0 is still at it, which may be longer than the others' patience.
constexpr double sign_seconds = 1;

}  // namespace

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

void on_root_for_long(mpi::Comm& comm, const std::function<void(const std::function<void()>&)>& f,
                      const std::function<void()>& alive) {
  if (comm.size() == 1) return f(alive);
  const auto tell = [&](bool is_over) {
    std::array<std::int64_t, 1> told = {is_over};
    comm.broadcast(std::span<std::int64_t>(told));
    return told[0] != 0;
  };
  Clock::time_point last = Clock::now();
  const auto sign = [&] {
    alive();
    if (seconds_since(last) < sign_seconds) return;
    last = Clock::now();
    tell(false);
  };
  comm.together([&] {
    if (!comm.is_root()) {
      while (!tell(false)) alive();
      return;
    }
    try {
      f(sign);
    } catch (...) {
      tell(true);
      throw;
    }
    tell(true);
  });
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
