// Parts that commands that train have in common: where a run goes, and its log.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace bitloom::cli {

// "runs/NET-DATE-TIME"; of a net that is a file, its name.
std::string default_folder(const std::string& net);

// As one word of a shell's command, with quotes where it needs them.
std::string shell_word(const std::string& text);

// The command that continues the run of `train KIND` in a folder.
std::string resume_command(const std::string& kind, const std::string& folder);
Continuation continuation_of(const std::string& kind, const std::string& folder);

// A path as runs keep it, so that they go on from any folder: absolute. "" stays.
std::string kept_path(const std::string& path);
// The same of what --tokenizer names, which need not be a path.
std::string kept_tokenizer(const std::string& spec);

// Reads the command line of a command that trains; with --resume the options of the run in --out fill in what was not given.
// Files that it reads may be missing on one host: all ranks throw then. Returns false if --help was given, which is
// shown then.
bool read_with_resume(Session& session, std::span<const std::string> args, Options& options);

// Options for which the command line or --config asks for something else than the options.ini of a run says, as its lines:
// "learning-rate = 0.1". Paths may be relative.
std::vector<std::string> asked_otherwise(const Options& options, const std::string& ini);

// Examples at once in the float run of a folder, by its metrics; 0 where there is none with batches of this size.
std::size_t micro_batch_of_run(const std::filesystem::path& folder, std::size_t batch);

// The result among the metrics of a float run that has all its steps; null for any other run.
nlohmann::json result_of(const std::vector<nlohmann::json>& metrics);
// Whether such a run was broken off before the test that comes last (`train cnn` with test images).
bool is_untested(const std::vector<nlohmann::json>& metrics);

// Opens the log at a trainer's first message: from then on this process holds the run folder. Names options where the trainer
// names fields.
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
