// Parts that commands that read text have in common.
#pragma once

#include <filesystem>
#include <string>

#include "cli/options.h"
#include "data/text/documents.h"

namespace bitloom::cli {

// --input, --documents, --field.
class TextOptions {
 public:
  // The object outlives `options`.
  void declare(Options& options);
  // After finish(). Throws a usage error if there is no input.
  const data::TextInput& input() const;

 private:
  data::TextInput text_;
};

inline constexpr const char* tokenizer_spec_help =
    "bytes; a file of `bitloom tokenizer train`; a sentencepiece model (*.model); a folder with GPT-2's vocab.json and "
    "merges.txt, or with a file 'tokenizer'";

// Share of --validation: "29:1", training to validation, or the fraction for validation. Throws a usage error.
double parse_share(const std::string& text);
// Shoeybi et al. 2019, section 4.2.
inline constexpr const char* default_validation = "29:1";
inline constexpr const char* validation_help =
    "Share held back for validation: TRAINING:VALIDATION or a fraction of the documents; of a single document, of its end";

// Throws a usage error where the option `seed`, of the choice of documents for validation, is asked for and none are chosen.
// Reads the text then.
void check_split_seed(const Options& options, const char* seed, const data::TextInput& input, double share);

// Files that `bitloom data text` leaves in a folder.
inline constexpr const char* train_tokens_file = "train.tokens";
inline constexpr const char* validation_tokens_file = "validation.tokens";
inline constexpr const char* tokenizer_file = "tokenizer";

// Throw usage errors that name --out: if it is missing (`what` says what was expected), or there already and not to be
// replaced.
void require_new_file(const std::filesystem::path& out, bool force, const std::string& what);
void require_new_folder(const std::filesystem::path& out, bool force, const std::string& what);
// The same of another option; remedy: the end of the message.
void require_empty_folder(const char* option, const std::filesystem::path& out, const char* remedy);

}  // namespace bitloom::cli
