// Where tensors live and ops run.
#pragma once

#include <string>
#include <string_view>

namespace bitloom::nn {

struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  // of the GPU

  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "cuda:0".
std::string name_of(Device device);

// Of "cpu", "cuda" (the first) or "cuda:N". `option` is named in the Error(usage) about anything else.
Device parse_device(std::string_view option, std::string_view text);

}  // namespace bitloom::nn
