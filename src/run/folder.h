// The folder of a training run. Rank 0 alone reads and writes it; what it throws all ranks throw.
#pragma once

#include <filesystem>
#include <functional>
#include <utility>

#include "core/file.h"
#include "mpi/comm.h"

namespace bitloom::run {

inline constexpr const char* model_name = "model.safetensors";
inline constexpr const char* model_step_key = "bitloom.step";  // in the metadata of a float model: steps done
inline constexpr const char* metrics_name = "metrics.jsonl";
inline constexpr const char* events_name = "events.jsonl";
inline constexpr const char* lock_name = ".lock";

// Collective: f on rank 0 alone.
template <typename F>
void on_root(mpi::Comm& comm, F&& f) {
  comm.together([&] {
    if (comm.is_root()) std::forward<F>(f)();
  });
}

// The same where f may take longer than ranks wait for one another: it gets what it is to call now and then, upon which the
// others hear that rank 0 is at work. alive: called meanwhile, on all ranks.
void on_root_for_long(mpi::Comm& comm, const std::function<void(const std::function<void()>&)>& f,
                      const std::function<void()>& alive);

// Whether there is anything of a run: its model, metrics or a checkpoint.
bool has_run(const std::filesystem::path& folder);

// Throws Error(usage) for a new run in a folder that has one, and for one to resume in a folder that does not exist. A folder
// to resume in may have nothing yet: its run was killed before its first checkpoint.
void check_folder(const std::filesystem::path& folder, bool resume);

// Makes the folder if it is missing, locks it, checks it, and removes temporary files that killed processes left. Throws what
// check_folder() does, Error(io) if it cannot be made, Error(busy) if another process works on it.
FileLock claim_folder(const std::filesystem::path& folder, bool resume);

}  // namespace bitloom::run
