// What the commands that read text have in common.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/options.h"
#include "data/text/documents.h"

namespace bitloom::cli {

// --input (also as arguments behind it: --input a.txt b.txt), --documents, --field.
class TextOptions {
 public:
  // The object outlives `options`.
  void declare(Options& options);
  // After finish(). Throws a usage error if there is no input.
  data::TextInput input() const;

 private:
  data::TextInput text_;
  std::vector<std::string> more_;
};

inline constexpr const char* tokenizer_spec_help =
    "bytes; a file of `bitloom tokenizer train`; a sentencepiece model (*.model); a folder with GPT-2's vocab.json and "
    "merges.txt, or with a file 'tokenizer'";

// Throw usage errors that name --out: if it is missing (`what` says what was expected), or there already and not to be
// replaced.
void require_new_file(const std::filesystem::path& out, bool force, const std::string& what);
void require_new_folder(const std::filesystem::path& out, bool force, const std::string& what);

}  // namespace bitloom::cli
