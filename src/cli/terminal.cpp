#include "cli/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "mpi/comm.h"

namespace bitloom::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds between_kept_updates{10};
constexpr std::chrono::milliseconds between_drawn_updates{100};

// The width of the terminal that shows this process's standard output, 0 if none does. mpirun gives its processes a terminal of
// its own making, whatever its own output is; so there the standard output of the parent, which is mpirun, counts.
std::size_t screen_columns() {
  winsize size{};
  if (!mpi::launched_by_mpi()) {
    if (isatty(STDOUT_FILENO) == 0) return 0;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 10 ? size.ws_col : 80;
  }
  const int screen = open(fmt::format("/proc/{}/fd/1", getppid()).c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (screen < 0) return 0;
  const bool known = isatty(screen) == 1 && ioctl(screen, TIOCGWINSZ, &size) == 0;
  close(screen);
  return known ? size.ws_col : 0;
}

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return {text, length};
}

}  // namespace

Terminal::Terminal(bool quiet)
    : quiet_(quiet), is_terminal_(!quiet && screen_columns() != 0), last_drawn_(Clock::now()), last_kept_(last_drawn_) {}

Terminal::~Terminal() { clear_live_line(); }

void Terminal::clear_live_line() {
  if (!live_) return;
  fmt::print("\r\x1b[K");
  std::fflush(stdout);
  live_ = false;
}

void Terminal::log(std::string_view text) {
  const std::string stamped = fmt::format("{} {}\n", time_of_day(), text);
  if (log_open_) {
    log_ << stamped << std::flush;
  } else {
    early_ += stamped;
  }
}

void Terminal::line(std::string_view text) {
  if (quiet_) return;
  clear_live_line();
  fmt::print("{}\n", text);
  std::fflush(stdout);
  log(text);
  last_kept_ = Clock::now();
}

void Terminal::write(std::string_view text) {
  if (quiet_) return;
  clear_live_line();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void Terminal::update(std::string_view text) {
  if (quiet_) return;
  const Clock::time_point now = Clock::now();
  if (is_terminal_ && now - last_drawn_ >= between_drawn_updates) {
    fmt::print("\r\x1b[K{}", text.substr(0, std::max<std::size_t>(screen_columns(), 2) - 1));
    std::fflush(stdout);
    live_ = true;
    last_drawn_ = now;
  }
  if (now - last_kept_ < between_kept_updates) return;
  last_kept_ = now;
  log(text);
  if (is_terminal_) return;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Terminal::error(std::string_view text) {
  if (quiet_) return;
  clear_live_line();
  std::fflush(stdout);
  fmt::print(stderr, "bitloom: {}\n", text);
  log(text);
}

void Terminal::open_log(const std::filesystem::path& path) {
  if (quiet_ || log_path_ == path) return;
  if (log_open_) log_.close();
  log_.open(path, std::ios::app);
  log_path_ = path;
  log_ << early_ << std::flush;
  early_.clear();
  log_open_ = true;
}

}  // namespace bitloom::cli
