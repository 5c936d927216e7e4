// bitloom verify: whether files are what was written.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/safetensors.h"
#include "data/text/token_file.h"
#include "data/text/tokenizer.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

bool is_tokenizer(const fs::path& path) { return path.filename() == "tokenizer"; }

bool is_checked(const fs::path& path) {
  return path.extension() == ".safetensors" || path.extension() == ".tokens" || is_tokenizer(path);
}

// Adds what a folder and those below it have that can be verified: models, checkpoints, tokens and their tokenizer. A folder
// that cannot be read stands for itself. Links to folders, which may lead in a circle, are not followed.
void add_files(const fs::path& folder, std::vector<fs::path>& files) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::error_code none;
    if (entries->is_directory(none)) {
      if (!entries->is_symlink(none)) add_files(entries->path(), files);
    } else if (is_checked(entries->path())) {
      files.push_back(entries->path());
    }
  }
  if (error) files.push_back(folder);
}

// A file, or all in a folder; a folder without any stands for itself.
std::vector<fs::path> files_of(const std::string& argument) {
  if (!fs::is_directory(argument)) return {argument};
  std::vector<fs::path> files;
  add_files(argument, files);
  std::sort(files.begin(), files.end());
  if (files.empty()) files.emplace_back(argument);
  return files;
}

struct Verdict {
  std::string file;
  std::string error;  // "": nothing is wrong with it
  bool has_checksum = true;
  bool is_missing = false;
};

// Describes the fault of a file; "" if there is none.
std::string error_in(const fs::path& path, Checksum checksum) {
  try {
    if (is_tokenizer(path)) {
      data::load_tokenizer(path.string());
      return "";
    }
    TensorReader::open(path, checksum);
    if (path.extension() == ".tokens") data::TokenFile::open(path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    return error.what();
  }
  return "";
}

Verdict verify_file(const fs::path& path) {
  if (!fs::exists(path)) return {path.string(), "there is no such file or folder", false, true};
  if (fs::is_directory(path)) {
    std::error_code error;
    fs::directory_iterator(path, error);
    const std::string reason =
        error ? "cannot be read: " + error.message() : "nothing to verify in it: no *.safetensors, no *.tokens";
    return {path.string(), reason, false, true};
  }
  Verdict verdict{path.string(), error_in(path, Checksum::required), true};
  // Other programs write files without a checksum.
  if (!verdict.error.empty() && error_in(path, Checksum::if_present).empty()) verdict = {path.string(), "", false};
  return verdict;
}

void print(Terminal& terminal, const Verdict& verdict) {
  if (verdict.error.empty()) {
    terminal.print("{}: {}", verdict.file, verdict.has_checksum ? "good" : "well-formed, but it has no checksum");
  } else {
    terminal.print("{}: {}{}", verdict.file, verdict.is_missing ? "" : "DAMAGED: ", verdict.error);
  }
}

}  // namespace

int verify(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  bool json = false;
  Options options(
      "bitloom verify MODEL|RUN|FILE... [options]",
      "Checks that files are what was written, by the checksums in them: models, a run's model and checkpoints, token\n"
      "files, any *.safetensors; of a folder all in it and below, links to folders left out. Ends with 3 if one is damaged or "
      "missing.");
  options.arguments(arguments, "MODEL|RUN|FILE", 1, 1000000);
  options.flag("json", json, "One JSON object per file, a line each");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  std::size_t damaged = 0;
  std::size_t missing = 0;
  std::size_t all = 0;
  session.on_root([&] {
    for (const std::string& argument : arguments) {
      for (const fs::path& path : files_of(argument)) {
        const Verdict verdict = verify_file(path);
        ++all;
        (verdict.is_missing ? missing : damaged) += verdict.error.empty() ? 0 : 1;
        if (json) {
          session.terminal.json(nlohmann::json{{"file", verdict.file},
                                               {"good", verdict.error.empty()},
                                               {"checksum", verdict.has_checksum},
                                               {"error", verdict.error}});
        } else {
          print(session.terminal, verdict);
        }
      }
    }
    if (missing != 0) fail(ErrorKind::data, "{} of {} files missing, {} damaged", missing, all, damaged);
    if (damaged != 0) fail(ErrorKind::data, "{} of {} files damaged", damaged, all);
  });
  return exit_done;
}

}  // namespace bitloom::cli
