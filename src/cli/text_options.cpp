#include "cli/text_options.h"

#include "core/error.h"

namespace bitloom::cli {

namespace fs = std::filesystem;

void TextOptions::declare(Options& options) {
  constexpr std::size_t most_files = 1000000;
  options.list("input", text_.files, "FILE",
               "UTF-8 text, or JSON Lines if its name ends in .jsonl; several files may follow one another");
  options.text("documents", text_.documents, "HOW",
               "what divides plain text into documents: file (nothing: each file is one), blank-lines, or a line such as "
               "'<|endoftext|>'");
  options.text("field", text_.field, "NAME", "which string of a JSON object is the document");
  options.arguments(more_, "FILE", 0, most_files);
}

data::TextInput TextOptions::input() const {
  data::TextInput input = text_;
  input.files.insert(input.files.end(), more_.begin(), more_.end());
  if (input.files.empty()) fail(ErrorKind::usage, "--input: missing; expected the name of a text file");
  return input;
}

void require_new_file(const fs::path& out, bool force, const std::string& what) {
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected {}", what);
  if (fs::is_directory(out)) fail(ErrorKind::usage, "--out: {} is a folder; expected {}", out.string(), what);
  if (!force && fs::exists(out)) fail(ErrorKind::usage, "--out: {} is there already; --force replaces it", out.string());
}

void require_new_folder(const fs::path& out, bool force, const std::string& what) {
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected {}", what);
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out)) fail(ErrorKind::usage, "--out: {} is there already and no folder", out.string());
  if (force || fs::is_empty(out)) return;
  fail(ErrorKind::usage, "--out: {} is there already and not an empty folder; --force replaces the files in it", out.string());
}

}  // namespace bitloom::cli
