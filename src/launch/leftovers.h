// Leftovers of killed processes on this machine.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <set>
#include <vector>

namespace bitloom::launch {

// Shared-memory files of this user's Open MPI processes: mpirun leaves those of ranks that were killed.
std::set<std::filesystem::path> shared_segments();
// Removes them, but for those in `others` and those that a process still maps.
void remove_segments(const std::set<std::filesystem::path>& others);

// Kills all children of this process and awaits them. If it is the reaper of what it starts (PR_SET_CHILD_SUBREAPER), these are
// also the ranks whose mpirun is gone. Returns those that are still there after that time: a process that waits for a
// device, or a network file system that hangs, ends when that answers.
std::vector<pid_t> end_children(double seconds);

}  // namespace bitloom::launch
