#include "cli/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/field_names.h"
#include "core/text.h"
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
  return !known ? 0 : size.ws_col > 10 ? size.ws_col : 80;
}

// The beginning of a line that fits, cut between words, and never within a character.
std::string shortened(const std::string& line, std::size_t columns) {
  std::size_t shown = 0;
  std::size_t end = 0;
  for (; end < line.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(line[end]) & 0xC0U) != 0x80U;
    if (begins && ++shown > columns) break;
  }
  if (end == line.size()) return line;
  const std::size_t space = line.rfind(' ', end);
  return line.substr(0, space == std::string::npos || space < end / 2 ? end : space);
}

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return {text, length};
}

// DEL and C1, which JSON may hold as they are, would be written out as no JSON has it: so all but ASCII is escaped where one of
// them occurs.
template <typename Object>
std::string json_text(const Object& object) {
  constexpr auto replace = Object::error_handler_t::replace;
  const std::string text = object.dump(-1, ' ', false, replace);
  return printable(text) == text ? text : object.dump(-1, ' ', true, replace);
}

}  // namespace

Terminal::Terminal(bool quiet)
    : quiet_(quiet), is_terminal_(!quiet && screen_columns() != 0), last_drawn_(Clock::now()), last_kept_(last_drawn_) {}

Terminal::~Terminal() { clear_live_line(); }

void Terminal::clear_live_line() {
  if (!live_) return;
  live_ = false;
  put("\r\x1b[K");
}

// All that goes to the standard output goes through here.
void Terminal::put(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written && output_error_ == 0) output_error_ = errno == 0 ? EIO : errno;
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
  const std::string shown = printable(text);
  clear_live_line();
  put(shown + "\n");
  log(shown);
  last_kept_ = Clock::now();
}

void Terminal::json(const nlohmann::json& object) { line(json_text(object)); }
void Terminal::json(const nlohmann::ordered_json& object) { line(json_text(object)); }

void Terminal::write(std::string_view text) {
  if (quiet_) return;
  clear_live_line();
  if (is_terminal_) return put(printable(text));
  put(text);
}

void Terminal::update(std::string_view text) {
  if (quiet_) return;
  const Clock::time_point now = Clock::now();
  const bool is_drawn = is_terminal_ && now - last_drawn_ >= between_drawn_updates;
  const bool is_kept = now - last_kept_ >= between_kept_updates;
  if (!is_drawn && !is_kept) return;
  const std::string shown = printable(text);
  if (is_drawn) {
    put("\r\x1b[K" + shortened(shown, std::max<std::size_t>(screen_columns(), 2) - 1));
    live_ = true;
    last_drawn_ = now;
  }
  if (!is_kept) return;
  last_kept_ = now;
  log(shown);
  if (!is_terminal_) put(shown + "\n");
}

void Terminal::error(std::string_view text) {
  if (quiet_) return;
  const std::string shown = printable(with_options(text));
  clear_live_line();
  write_error(shown);
  log(shown);
}

void Terminal::open_log(const std::filesystem::path& path) {
  if (quiet_ || log_path_ == path) return;
  if (log_open_) log_.close();
  log_path_ = path;
  // Not through a symbolic link, which would put lines into somebody's file.
  if (const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666); file >= 0) {
    log_.open(fmt::format("/proc/self/fd/{}", file), std::ios::app);
    close(file);
  } else if (errno == ELOOP) {
    error(fmt::format("warning: no log is written: '{}' is a symbolic link; expected a file of its own", path.string()));
  }
  log_ << early_ << std::flush;
  early_.clear();
  log_open_ = true;
}

void write_error(std::string_view text) {
  const std::string line = fmt::format("bitloom: {}\n", text);
  // A pipe that nobody reads any more raises a signal in this thread.
  sigset_t broken_pipe;
  sigset_t before;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
  std::fwrite(line.data(), 1, line.size(), stderr);
  if (sigismember(&before, SIGPIPE) == 0) {
    constexpr timespec at_once{};
    while (sigtimedwait(&broken_pipe, nullptr, &at_once) == SIGPIPE) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::size_t columns_of_screen(std::size_t otherwise) {
  const std::size_t columns = screen_columns();
  return columns == 0 ? otherwise : columns;
}

}  // namespace bitloom::cli
