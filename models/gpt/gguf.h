// A GPT as a GGUF file of llama.cpp's architecture "gpt2", tokenizer included.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/gguf.h"
#include "data/text/tokenizer.h"
#include "models/gpt/gpt.h"

namespace bitloom::models {

struct GgufSummary {
  std::size_t tensors = 0;
  // Matrices in f16 where q8_0 was asked for, since their rows are not whole blocks.
  std::vector<std::string> in_f16;
};

// type: of the matrices. Norms, biases and the table of positions are in f32, as llama.cpp's own converter leaves them.
// Matrices are (outputs, inputs) there; rows of padding are left out of the table of tokens, which serves for the logits, too.
// name: of the model, general.name there. Throws Error(usage) that names the field, its value and what was expected for what
// the architecture does not have: an activation function but gelu_tanh, a tokenizer that llama.cpp reads otherwise; Error(data)
// for a weight that the type does not have; Error(io).
GgufSummary save_gguf(nn::Engine& engine, Gpt& net, const data::Tokenizer& tokenizer, GgufType type, const std::string& name,
                      const std::filesystem::path& path);

}  // namespace bitloom::models
