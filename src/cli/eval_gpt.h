// The part of `bitloom eval` that is about language models.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/placed_gpt.h"
#include "data/text/documents.h"
#include "models/gpt/evaluate.h"

namespace bitloom::cli {

struct GptEvalSettings : GptUse {
  std::string cloze;
  data::TextInput text;                                       // how a text is divided into documents
  std::size_t advance = models::PerplexityOptions().advance;  // 0: this, or the context if that is less
  std::size_t batch = 8;
  std::size_t words = 0;  // 0: those of the text
  std::string tokens, logits;

  // The options, none of which other kinds of models have.
  void declare(Options& options);
  static const std::vector<std::string>& names();
};

// Measures the model in a file on `data`, a text or a folder of token files, "" for none; split: which of the folder's, "" for
// validation. Collective; rank 0 has the files, and prints.
void eval_gpt(Session& session, const GptEvalSettings& settings, const std::string& model, const std::string& data,
              const std::string& split, bool json);

}  // namespace bitloom::cli
