// Makes a tokenizer from text.
#pragma once

#include <cstddef>
#include <memory>

#include "data/text/documents.h"
#include "data/text/tokenizer.h"

namespace bitloom::data {

// A byte-pair encoding of `vocabulary` tokens, trained by sentencepiece: 256 bytes, an end of text, an unknown token that is
// never used, the characters that make up all but 1 / 2000 of the text, and the most frequent merges. It keeps text as it is:
// no normalisation, no space in front, all white space; a line end is a token of its own. The same text gives the same bytes.
// Throws Error(usage) for a vocabulary that the text cannot give, with the bound that it broke, and Error(data) if there is no
// text.
std::unique_ptr<Tokenizer> train_tokenizer(const TextInput& input, std::size_t vocabulary);

}  // namespace bitloom::data
