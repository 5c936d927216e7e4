// The names that other programs have for the parameters of a GPT.
#pragma once

#include <span>
#include <string>
#include <string_view>

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

}  // namespace bitloom::models
