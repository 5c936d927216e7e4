// Tokenizers as Hugging Face's transformers load them (AutoTokenizer.from_pretrained(FOLDER)).
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "data/text/tokenizer.h"

namespace bitloom::data {

struct TokenizerJson {
  std::string text;  // that of a tokenizer.json
  // Why it could not say the tokenizer; "" if it does.
  std::string reason;
};

// Gives the tokens that `tokenizer` gives, with the exceptions named below, and adds none before or after.
TokenizerJson hugging_face_json(const Tokenizer& tokenizer);

struct WrittenTokenizer {
  std::vector<std::string> files;  // names of those that were written
  // Why there is no tokenizer.json; "" if there is one.
  std::string reason;
};

// Writes to a folder, which has to be there:
//   tokenizer.json, tokenizer_config.json   that give the tokens that `tokenizer` gives, and add none before or after
//   vocab.json, merges.txt                  for kind "gpt2", which load_tokenizer(FOLDER) reads
//   tokenizer.model                         for kind "sentencepiece", the model as its library reads it
// A special token that stands in a text is that token to transformers, where `tokenizer` has its characters; and U+2581 is a
// space to them. Sentencepiece models that tokenizer.json cannot say get tokenizer.model alone. context: the largest number of
// tokens that transformers are to give. Throws Error(io).
WrittenTokenizer write_hugging_face_tokenizer(const Tokenizer& tokenizer, std::size_t context,
                                              const std::filesystem::path& folder);
// Paths of such files in a folder that are not among those written: of another tokenizer, as which transformers may read them.
std::vector<std::filesystem::path> other_tokenizer_files(const WrittenTokenizer& written, const std::filesystem::path& folder);

}  // namespace bitloom::data
