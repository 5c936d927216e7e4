// Programs that this one starts and watches.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace bitloom::launch {

class Process {
 public:
  // Starts args[0], found on PATH, in a process group of its own, with "NAME=value" settings added to the environment. Its
  // standard output and error, mixed, are collected by read(). Where the system has no process or file to spare it is tried
  // again for some seconds. Throws Error(io) if it cannot be started.
  Process(const std::vector<std::string>& args, const std::vector<std::string>& settings = {});
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  // Kills it and its group if it still runs; one that does not end even then is left to the system after some seconds.
  ~Process();

  pid_t id() const { return id_; }
  // Output since the last call; does not wait.
  std::string read();
  // Its exit code, 128 + n after signal n; nullopt while it runs.
  std::optional<int> poll();
  void signal(int number) const;        // to itself
  void signal_group(int number) const;  // and to all that it started and that is in its group

 private:
  int start(char* const* argv, char* const* envp);

  pid_t id_ = -1;
  int output_ = -1;
  std::optional<int> code_;
};

struct Ended {
  int code = 0;         // -1: it did not end in time, and was killed
  std::string output;   // or why it could not be started
  bool started = true;  // otherwise the code is -1
};

// Most programs that ask hosts at once: each takes a process and a file.
inline constexpr std::size_t most_processes = 256;

// Runs commands, most_processes side by side, each at most `limit` long; in the order of the commands. Once stop() holds, if it
// is given, those that have not ended are killed or not started.
std::vector<Ended> run_all(const std::vector<std::vector<std::string>>& commands, std::chrono::duration<double> limit,
                           const std::function<bool()>& stop = {});

}  // namespace bitloom::launch
