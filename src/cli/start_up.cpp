#include "cli/start_up.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <string_view>

#include "cli/command.h"

namespace bitloom::cli {
namespace {

constexpr int patience_ms = 1000;

// The launcher reads what is written here, and may hang itself: then there is no message.
void tell(const std::string& message) {
  const std::string line = fmt::format("bitloom: {}\n", message);
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  if (poll(&out, 1, patience_ms) != 1) return;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), std::min<std::size_t>(line.size(), PIPE_BUF));
}

}  // namespace

mpi::Settings first_settings(std::span<const std::string> args) {
  constexpr std::string_view name = "--watchdog-seconds";
  mpi::Settings settings;
  for (std::size_t i = 0; i < args.size(); ++i) {
    std::string_view text;
    if (args[i] == name && i + 1 < args.size()) {
      text = args[i + 1];
    } else if (args[i].starts_with(name) && args[i].substr(name.size()).starts_with('=')) {
      text = std::string_view(args[i]).substr(name.size() + 1);
    } else {
      continue;
    }
    double seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error == std::errc() && end == text.data() + text.size() && seconds >= 0) settings.watchdog_seconds = seconds;
  }
  return settings;
}

mpi::Hang on_hang() { return {exit_peer_lost, tell}; }

void declare_watchdog(Options& options, double& seconds) {
  options.number("watchdog-seconds", seconds, 0, 1e9,
                 "Seconds that a process waits for the others before it takes them for lost and ends the run (exit code 7); 0 "
                 "disables the limit");
}

void set_watchdog(mpi::Comm& comm, double seconds) {
  mpi::Settings settings = comm.settings();
  settings.watchdog_seconds = seconds;
  comm.configure(settings);
}

}  // namespace bitloom::cli
