// The parameters of a GPT as files of other programs have them: their names, shapes and values.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpt/config.h"
#include "nn/engine.h"
#include "nn/parameter.h"

namespace bitloom::models {

struct ForeignName {
  std::string_view ours, theirs;
};

struct ForeignNames {
  std::string_view program;               // for messages
  std::span<const ForeignName> outer;     // of parameters outside of blocks
  std::string_view block;                 // what "blocks.N" is called, without ".N"
  std::span<const ForeignName> of_block;  // of parameters of a block

  // Throws Error(internal) for a parameter that has no name there.
  std::string of(std::string_view ours) const;
};

inline constexpr double gpt_norm_epsilon = 1e-5;  // of all layer norms of a Gpt

// The table of tokens without rows of padding; other parameters as they are.
std::vector<std::size_t> unpadded_shape(const nn::Parameter& parameter, const GptConfig& config);
std::vector<float> unpadded_values(nn::Engine& engine, const nn::Parameter& parameter, const GptConfig& config);

}  // namespace bitloom::models
