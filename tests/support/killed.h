// A process that is killed at a chosen moment, for tests: what kill -9, the kernel's memory killer or a vanishing machine
// leave.
#pragma once

#include <signal.h>  // POSIX
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace bitloom::test {

// Runs work() in a child process that is killed as it enters system call number `call` since its start (from 0), before the
// system does any of it. Counted, not timed, so that the speed of the machine has no part in it. Returns whether the child came
// to be killed; false if it ended before. For work of one thread: others are not counted. A child that ends in another way
// than by returning from work() is an exception here. Tests that call this carry [ptrace]: emulators of processors cannot
// trace.
template <typename Work>
bool killed_at_call(int call, const Work& work) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
    ::raise(SIGSTOP);  // until the parent is ready to count
    try {
      work();
    } catch (...) {
      ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  const auto wait = [&] {
    while (::waitpid(child, &status, 0) != child) {
      if (errno != EINTR) throw std::runtime_error("waitpid failed");
    }
  };
  wait();
  if (!WIFSTOPPED(status)) throw std::runtime_error("the child cannot be traced");
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  constexpr int at_system_call = SIGTRAP | 0x80;
  long signal = 0;
  // Every call stops the child twice, before it and after it.
  for (int stops = 0;;) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, signal);
    wait();
    if (WIFEXITED(status)) {
      if (WEXITSTATUS(status) != 0) throw std::runtime_error("the child's work failed");
      return false;
    }
    if (!WIFSTOPPED(status)) throw std::runtime_error("the child was killed by something else");
    signal = WSTOPSIG(status) == at_system_call ? 0 : WSTOPSIG(status);
    if (signal == 0 && stops++ == 2 * call) break;
  }
  ::kill(child, SIGKILL);
  wait();
  return true;
}

}  // namespace bitloom::test
