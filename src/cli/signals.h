// Ctrl-C, SIGTERM (the notice that a spot machine goes) and SIGUSR1 (which mpirun forwards) ask a run to stop.
#pragma once

namespace bitloom::cli {

// From now on the first of these signals only sets the flag; the next one that comes a moment later ends the process at once,
// as it would have without this. In a supervised run (launch/supervisor.h) SIGCONT, by which mpirun tells that a process has
// died, ends it at once. The calling thread and those that it makes later are never interrupted: another one is.
void catch_stop_signals();

// A reader of the output that goes away (`| head`) does not end a run: what cannot be written is told by the exit code.
void ignore_closed_output();

// As if one had arrived.
void request_stop() noexcept;

// Has one arrived?
bool stop_requested() noexcept;

}  // namespace bitloom::cli
