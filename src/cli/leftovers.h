// What processes that were killed leave behind on this machine.
#pragma once

#include <filesystem>
#include <set>

namespace bitloom::cli {

// Shared-memory files of this user's Open MPI processes: mpirun leaves those of ranks that were killed.
std::set<std::filesystem::path> shared_segments();
// Removes them, but for those in `others` and those that a process still maps.
void remove_segments(const std::set<std::filesystem::path>& others);

// Kills and awaits all children of this process. If it is the reaper of what it starts (PR_SET_CHILD_SUBREAPER), these are also
// the ranks whose mpirun is gone.
void end_children();

}  // namespace bitloom::cli
