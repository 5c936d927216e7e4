// Steps of the program before a command reads its options: MPI starts, and may hang.
#pragma once

#include <span>
#include <string>

#include "cli/options.h"
#include "mpi/comm.h"

namespace bitloom::cli {

// For the start of MPI, with --watchdog-seconds from the command line (the last, if there are several). What is no such number
// is left to those who read options.
mpi::Settings first_settings(std::span<const std::string> args);

// End of a process that hangs inside MPI: a message and exit_peer_lost.
mpi::Hang on_hang();

// --watchdog-seconds, for commands that wait for other ranks, and its effect on their waiting from now on.
void declare_watchdog(Options& options, double& seconds);
void set_watchdog(mpi::Comm& comm, double seconds);

}  // namespace bitloom::cli
