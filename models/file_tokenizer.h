// The tokenizer of a model, in its file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "data/text/tokenizer.h"

namespace bitloom::models {

// Name of the tensor that holds it.
inline constexpr const char* tokenizer_name = "tokenizer";

void add_tokenizer(TensorFile& file, const data::Tokenizer& tokenizer);
// Its bytes, and the tokenizer that they describe. Throw Error(data) that names `name`.
std::vector<std::byte> tokenizer_text(const TensorSource& file, const std::string& name);
std::unique_ptr<data::Tokenizer> parse_file_tokenizer(const std::vector<std::byte>& text, const std::string& name);

}  // namespace bitloom::models
