// What the user sees: results on the standard output, messages on the standard error, progress on a live line where the output
// is a terminal. Only rank 0 prints. Once a log is open, all of it goes there too, with the time of day.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "core/progress.h"

namespace bitloom::cli {

class Terminal final : public ProgressSink {
 public:
  // `quiet`: this rank prints nothing.
  explicit Terminal(bool quiet);
  ~Terminal() override;

  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    line(fmt::format(format, std::forward<Args>(args)...));
  }
  // A line on the standard output; `text` may hold several.
  void line(std::string_view text) override;
  // A part of a result, as it is, on the standard output alone.
  void write(std::string_view text);
  // Rewrites the live line; where the output is no terminal, a line at most every ten seconds.
  void update(std::string_view text) override;
  // On the standard error, behind "bitloom: ".
  void error(std::string_view text);

  // Everything from now on, and what was printed before any log was open, is appended to this file. A log that cannot be
  // written is no reason to stop: the run's own files will say so.
  void open_log(const std::filesystem::path& path);

 private:
  void clear_live_line();
  void log(std::string_view text);

  bool quiet_;
  bool is_terminal_;
  bool live_ = false;  // a live line stands on the screen
  bool log_open_ = false;
  std::chrono::steady_clock::time_point last_drawn_, last_kept_;
  std::string early_;  // for the log, until it opens
  std::filesystem::path log_path_;
  std::ofstream log_;
};

}  // namespace bitloom::cli
