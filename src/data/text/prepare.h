// From files of text to the tokens that training and validation read.
#pragma once

#include <cstdint>

#include "core/progress.h"
#include "data/text/documents.h"
#include "data/text/token_file.h"
#include "data/text/tokenizer.h"

namespace bitloom::data {

struct TokenSplits {
  TokenFile::Content train, validation;
};

// Whether prepare_text() draws the documents for validation by its seed: from the share of one document on. It reads the text.
bool is_drawn(const TextInput& input, double validation_share);

// Tokenizes all documents, in order, several at once, and gives them to the sinks; some megabytes of text are in memory at a
// time. The share of them that `seed` draws is for validation, rounded, 1 at least. Where the share is less than one document
// it is the end of the text instead, from the first line that begins in that share of its bytes: the document that is cut ends
// in both. `progress` may be null. Throws the errors of for_each_document(), of the tokenizer and of the sinks, Error(usage)
// for a share that is not from 0 to below 1, and Error(data) if there is no text.
void prepare_text(const TextInput& input, const Tokenizer& tokenizer, double validation_share, std::uint64_t seed,
                  TokenSink& train, TokenSink& validation, ProgressSink* progress = nullptr);
// The same in memory.
TokenSplits prepare_text(const TextInput& input, const Tokenizer& tokenizer, double validation_share, std::uint64_t seed,
                         ProgressSink* progress = nullptr);

}  // namespace bitloom::data
