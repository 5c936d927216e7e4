// The contents of models/binary/nets/*.json; CMake writes the function.
#pragma once

#include <span>

namespace bitloom::models {

struct NetText {
  const char* name;
  const char* text;  // JSON with comments
};

// In the order of CMakeLists.txt.
std::span<const NetText> binary_net_texts();

}  // namespace bitloom::models
