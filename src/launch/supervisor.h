// Keeps a run going on machines that vanish: starts it with mpirun on the hosts that answer, watches its progress, and starts
// it again from its last checkpoint, smaller or larger, when hosts come and go.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/progress.h"
#include "launch/hosts.h"

namespace bitloom::launch {

// In the environment of the processes of a supervised run: the name of their start.
inline constexpr const char* supervised_variable = "BITLOOM_SUPERVISED";

// How a process of the run ends, by its exit code.
enum class Ending {
  interrupted,  // asked to, with a checkpoint
  unusable,     // options or data are wrong, and stay so
  disk,         // files cannot be read or written
  other,
};

struct SupervisorOptions {
  std::vector<std::string> program;  // command of each process: the program and its arguments, --out among them
  std::filesystem::path folder;      // folder of the run
  std::vector<Host> hosts;           // without any: all processes on this machine
  std::size_t local = 2;             // number of processes on this machine
  // Number of neighbouring ranks that exchange the most: hosts get whole groups of them where they have room for one.
  std::size_t group = 1;
  std::size_t min_workers = 1;  // processes without which it is not started
  // Number of processes, at most those for which there is room, that the run can be divided among; 0: none. Empty: all.
  std::function<std::size_t(std::size_t available)> usable;
  bool may_begin_alone = false;  // on this machine, though there are hosts, of which none can be used
  std::string mpirun = "mpirun";
  std::string agent = "ssh";        // reaches hosts: AGENT HOST COMMAND
  std::string notice;               // a shell command that ends with 0 on a host that is about to be taken away
  std::string interface;            // interface of the network that MPI takes; empty: any
  double deadline_seconds = 120;    // without a sign of life, after which its processes count as hanging
  double probe_seconds = 15;        // between looks for hosts that are missing
  double patience_seconds = 600;    // longest wait for enough hosts
  std::size_t attempts = 5;         // starts in a row without a step, or with a fault before a new one, until it gives up
  std::function<bool()> has_begun;  // is there a run in the folder that --resume continues?
  std::function<bool()> is_done;    // has it come to its end?
  std::function<bool()> stop;       // asked to end: the run is left resumable
  std::function<Ending(int)> ending_of;
};

struct Outcome {
  enum class Kind { done, interrupted, gave_up };
  Kind kind = Kind::done;
  int code = 0;  // exit code of the last start
};

// Output of a supervisor to its user: lines and errors.
class Voice : public ProgressSink {
 public:
  virtual void error(std::string_view text) = 0;
};

// Until the run is done, cannot go on or is asked to end. Events go as JSON lines to FOLDER.launch.jsonl, beside the run, of
// which the caller has the lock, FOLDER.launch.lock. Becomes the reaper of what its processes leave (PR_SET_CHILD_SUBREAPER).
Outcome supervise(const SupervisorOptions& options, Voice& voice);

}  // namespace bitloom::launch
