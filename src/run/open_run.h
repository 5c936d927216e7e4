// A run while a process works on it: its folder under lock, metrics, checkpoints, a mark of how far it is, its clock, and
// whoever asks it to stop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/differences.h"
#include "core/file.h"
#include "core/metrics.h"
#include "core/progress.h"
#include "core/progress_file.h"
#include "mpi/comm.h"
#include "run/checkpoints.h"

namespace bitloom::run {

// Options that runs of all kinds have.
struct Options {
  std::filesystem::path folder;  // made if it is not there
  bool resume = false;           // go on from the folder's checkpoint
  // Left in the folder, by name, once it is locked and known to hold no other run; a float run that goes on writes them again.
  std::map<std::string, std::string> files;
  std::string process_name;         // what this process calls itself in its ProgressFile
  double mark_seconds = 0.2;        // between marks in it, but for those that are waited for
  double checkpoint_seconds = 300;  // between beginnings of checkpoints, besides those of its first moment and of a stop
  double pace_seconds = 0;          // that a step takes at least, its exchange aside (measurements)
  std::function<bool()> stop;       // asked now and then: has somebody asked to stop?
  FieldName field_name;             // for messages about checkpoints of other runs; may be none
  std::string hold;                 // of wait_while_held() (tests)
};

class OpenRun {
 public:
  // All of them outlive this.
  OpenRun(mpi::Comm& comm, const Options& options, ProgressSink& progress);

  // At rank 0: claim_folder(), `check`, and then its checkpoints. check throws for a folder that must stay as it is.
  void lock(const std::function<void()>& check);
  bool is_locked() const { return lock_ != nullptr; }

  // At rank 0: the newest whole checkpoint, if there is any; says why newer ones are damaged, and sets them aside for it. Where
  // none is whole they stay. Calls alive() now and then. Throws Error(usage) for one of another identity, and Error(io).
  FoundCheckpoint find_checkpoint(const std::string& identity, const std::function<void()>& alive = nullptr);
  // At rank 0: Options::files.
  void write_files() const;
  // At rank 0, with the lines that it has.
  void open_metrics();

  // Both at rank 0 alone, once they are open.
  MetricsWriter& metrics() { return *metrics_; }
  CheckpointWriter& checkpoints() { return *checkpoints_; }

  bool is_stop_asked() const { return options_.stop && options_.stop(); }
  // Tests hold a run at rank 0, which gives signs of life meanwhile; a stop ends it.
  void wait_while_held(std::size_t stage, std::size_t step);

  // Marks of the ProgressFile at rank 0, nothing elsewhere.
  void mark(std::size_t stage, std::size_t step, bool now);
  void mark_evaluated(std::size_t images);

  // Seconds of training over all resumptions: those before this process, and since the clock was started.
  double elapsed() const { return earlier_seconds_ + seconds_since(started_); }
  void set_earlier(double seconds) { earlier_seconds_ = seconds; }
  void start_clock() { started_ = Clock::now(); }

 private:
  mpi::Comm& comm_;
  const Options& options_;
  ProgressSink& progress_;
  std::unique_ptr<FileLock> lock_;
  std::optional<MetricsWriter> metrics_;
  std::optional<CheckpointWriter> checkpoints_;
  ProgressFile progress_file_;
  Clock::time_point started_ = Clock::now();
  double earlier_seconds_ = 0;
};

}  // namespace bitloom::run
