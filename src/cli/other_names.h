// Names that other programs have for options, for suggestions.
#pragma once

#include <span>

namespace bitloom::cli {

struct OtherName {
  const char* name;
  const char* option;   // here, if the command has it; "": none,
  const char* instead;  // the option that sets it instead
};
std::span<const OtherName> other_names();

}  // namespace bitloom::cli
