#include "cli/text_options.h"

#include <optional>

#include "core/error.h"
#include "core/text.h"
#include "data/text/prepare.h"

namespace bitloom::cli {

namespace fs = std::filesystem;

void TextOptions::declare(Options& options) {
  options.series("input", text_.files, "FILE", "File of UTF-8 text, or of JSON Lines if its name ends in .jsonl");
  options.text("documents", text_.documents, "HOW",
               "Separator of documents in plain text: file (each file is one), blank-lines, or a line such as "
               "'<|endoftext|>'");
  options.text("field", text_.field, "NAME", "Field of a JSON object that holds the document");
}

const data::TextInput& TextOptions::input() const {
  if (text_.files.empty()) fail(ErrorKind::usage, "--input: missing; expected the name of a text file");
  return text_;
}

void require_new_file(const fs::path& out, bool force, const std::string& what) {
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected {}", what);
  if (fs::is_directory(out)) fail(ErrorKind::usage, "--out: {} is a folder; expected {}", out.string(), what);
  if (!force && fs::exists(out)) fail(ErrorKind::usage, "--out: {} is there already; --force replaces it", out.string());
}

void require_new_folder(const fs::path& out, bool force, const std::string& what) {
  if (out.empty()) fail(ErrorKind::usage, "--out: missing; expected {}", what);
  if (force && fs::is_directory(out)) return;
  require_empty_folder("--out", out, "; --force replaces the files in it");
}

void require_empty_folder(const char* option, const fs::path& out, const char* remedy) {
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out)) fail(ErrorKind::usage, "{}: {} is there already and no folder", option, out.string());
  if (fs::is_empty(out)) return;
  fail(ErrorKind::usage, "{}: {} is there already and not an empty folder{}", option, out.string(), remedy);
}

double parse_share(const std::string& text) {
  constexpr double none = -1;
  double share = parse_double(text).value_or(none);
  if (const std::vector<std::string> parts = split(text, ':'); parts.size() == 2) {
    const auto train = parse_double(parts[0]);
    const auto validation = parse_double(parts[1]);
    const bool fits = train && validation && *train > 0 && *validation >= 0;
    share = fits ? *validation / (*train + *validation) : none;
  }
  if (!(share >= 0 && share < 1)) {
    fail(ErrorKind::usage,
         "--validation: '{}' is no share; expected TRAINING:VALIDATION such as 29:1, or a fraction such as 0.05", text);
  }
  return share;
}

void check_split_seed(const Options& options, const char* seed, const data::TextInput& input, double share) {
  if (!options.asks_for_other(seed, "validation") || data::is_drawn(input, share)) return;
  if (share == 0)
    fail(ErrorKind::usage, "--{}: {} has no effect; it needs another --validation than 0", seed, options.raw(seed));
  fail(ErrorKind::usage,
       "--{}: {} has no effect: the share of --validation is less than one document, and is the end of the text; expected a "
       "larger share, or more documents (--documents)",
       seed, options.raw(seed));
}

}  // namespace bitloom::cli
