// Output to the user: results on the standard output, messages on the standard error, progress on a live line where the output
// is a terminal. Only rank 0 prints. Once a log is open, all of it goes there too, with the time of day. What lines, messages
// and progress take from files (names, classes, settings) cannot steer the terminal: control characters and bytes that are no
// UTF-8 are written out.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
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
  // An object on a line of its own.
  void json(const nlohmann::json& object);
  void json(const nlohmann::ordered_json& object);
  // A part of a result on the standard output alone: as it is, but on a screen as line() has it.
  void write(std::string_view text);
  // Rewrites the live line; where the output is no terminal, a line at most every ten seconds.
  void update(std::string_view text) override;
  // On the standard error, after "bitloom: ", with options where libraries name fields.
  void error(std::string_view text);
  // Beside results, as error(); nothing for "".
  void note(std::string_view text) {
    if (!text.empty()) error(text);
  }

  // Everything from now on, and what was printed before any log was open, is appended to this file. A log that cannot be
  // written is no reason to stop: the run's own files will say so.
  void open_log(const std::filesystem::path& path);

  // Why something of the results could not be written, by `errno`; 0: all of them were.
  int output_error() const { return output_error_; }

 private:
  void put(std::string_view text);
  void clear_live_line();
  void log(std::string_view text);

  bool quiet_;
  bool is_terminal_;
  bool live_ = false;  // a live line stands on the screen
  bool log_open_ = false;
  int output_error_ = 0;
  std::chrono::steady_clock::time_point last_drawn_, last_kept_;
  std::string early_;  // for the log, until it opens
  std::filesystem::path log_path_;
  std::ofstream log_;
};

// A line on the standard error, after "bitloom: ". One that cannot be written changes neither the end nor the exit code.
void write_error(std::string_view text);

// Columns of the terminal that shows the results; without one, or where it has no width to tell: `otherwise`.
std::size_t columns_of_screen(std::size_t otherwise);

}  // namespace bitloom::cli
