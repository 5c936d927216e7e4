// What commands that train have in common: where a run goes, and its log.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "cli/terminal.h"

namespace bitloom::cli {

// "runs/NET-DATE-TIME"; of a net that is a file, its name.
std::string default_folder(const std::string& net);

// Opens the log at a trainer's first message: from then on this process holds the run folder.
class LoggedProgress final : public ProgressSink {
 public:
  LoggedProgress(Terminal& terminal, std::filesystem::path log) : terminal_(terminal), log_(std::move(log)) {}
  void line(std::string_view text) override;
  void update(std::string_view text) override;

 private:
  Terminal& terminal_;
  std::filesystem::path log_;
};

}  // namespace bitloom::cli
