// A small checkpoint, and the identity of the run that it belongs to.
#pragma once

#include <cstddef>
#include <vector>

#include "core/safetensors.h"

namespace bitloom::test {

inline constexpr const char* identity = R"({"net":{"width":8},"version":"2"})";

inline TensorFile file_with(float value, std::size_t size = 8) {
  TensorFile file;
  file.put("x", {size}, std::vector<float>(size, value));
  return file;
}

}  // namespace bitloom::test
