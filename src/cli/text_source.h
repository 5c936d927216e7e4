// The text that a command trains on or measures by: a folder of token files, or files that are tokenised in memory.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cli/gpt_options.h"
#include "cli/terminal.h"
#include "data/text/token_file.h"
#include "data/text/tokenizer.h"

namespace bitloom::cli {

struct TextSource {
  std::unique_ptr<data::Tokenizer> tokenizer;
  data::TokenFile train, validation;
  std::string fingerprint;  // fingerprint of text and tokenizer: equal for runs on the same
};

// Opens --data, --tokenizer and --validation. Throws Error(usage) that names the option, or Error(data) that names the file.
TextSource open_text(Terminal& terminal, const GptSettings& settings);

// A token file, which has to be of the tokenizer that `owner` has, as in "the model": else Error(data).
data::TokenFile open_tokens(const std::filesystem::path& file, const data::Tokenizer& tokenizer, const std::string& owner);

}  // namespace bitloom::cli
