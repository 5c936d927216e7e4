// Tables that tokenizers consist of, for the files of other programs.
#pragma once

#include <string>
#include <vector>

#include "data/text/tokenizer.h"

namespace bitloom::data {

// A tokenizer of kind "gpt2" or "bytes" as byte-pair encoding of bytes.
struct ByteLevelTables {
  // By number, spelt as in GPT-2's vocab.json: a printable character for each byte; but end_of_text, and what was added by
  // hand, which is_added() tells.
  std::vector<std::string> tokens;
  std::vector<std::string> merges;  // "left right", by rank; none for bytes
  // Tokens that no text becomes: not spelt in those characters, or the end of text.
  std::vector<bool> is_added;
};

// Whether byte_level_tables() takes it.
bool is_byte_level(const Tokenizer& tokenizer);
// Throws Error(usage) for a tokenizer of another kind.
ByteLevelTables byte_level_tables(const Tokenizer& tokenizer);

// The model file of a tokenizer of kind "sentencepiece", as its library reads it. Throws Error(usage) for one of another kind.
std::string sentencepiece_file(const Tokenizer& tokenizer);

}  // namespace bitloom::data
