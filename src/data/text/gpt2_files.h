// GPT-2's tokenizer as the two files that other programs read.
#pragma once

#include <filesystem>

#include "data/text/tokenizer.h"

namespace bitloom::data {

// Writes FOLDER/vocab.json and FOLDER/merges.txt, which load_tokenizer(FOLDER) reads. Throws Error(usage) for a tokenizer of
// another kind than "gpt2", Error(io).
void write_gpt2_files(const Tokenizer& tokenizer, const std::filesystem::path& folder);

}  // namespace bitloom::data
