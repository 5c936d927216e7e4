// Keeps a run going on machines that vanish: starts it with mpirun on the hosts that answer, watches its progress, and starts
// it again from its last checkpoint, smaller or larger, when hosts come and go.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/hosts.h"
#include "cli/terminal.h"

namespace bitloom::cli {

struct SupervisorOptions {
  std::vector<std::string> program;  // what each process runs: the program and its arguments, --out among them
  std::filesystem::path folder;      // of the run
  std::vector<Host> hosts;           // without any: all processes on this machine
  std::size_t local = 2;             // then so many
  std::size_t min_workers = 1;       // processes without which it is not started
  bool may_begin_alone = false;      // on this machine, though there are hosts, of which none can be used
  std::string mpirun = "mpirun";
  std::string agent = "ssh";        // reaches hosts: AGENT HOST COMMAND
  std::string notice;               // a shell command that ends with 0 on a host that is about to be taken away
  std::string interface;            // of the network that MPI takes; empty: any
  double deadline_seconds = 120;    // without a sign of life, after which its processes count as hanging
  double probe_seconds = 15;        // between looks for hosts that are missing
  double patience_seconds = 600;    // of waiting for enough hosts
  std::size_t attempts = 5;         // in a row that come to no step, before it gives up
  std::function<bool()> has_begun;  // is there a run in the folder that --resume continues?
  std::function<bool()> is_done;    // has it come to its end?
  std::function<bool()> stop;       // asked to end: the run is left resumable
};

// An exit code (command.h). Progress goes to the terminal and to FOLDER.launch.log, events as JSON lines to
// FOLDER.launch.jsonl, beside the run. Throws Error(busy) if the run has a supervisor already.
int supervise(const SupervisorOptions& options, Terminal& terminal);

}  // namespace bitloom::cli
