// The backends of the float engine that tests run on.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "nn/engine.h"

namespace bitloom::test {

// All that this machine can run, or those that the environment variable BITLOOM_TEST_BACKENDS names, separated by commas.
inline std::vector<std::string> tested_backends() {
  const char* names = std::getenv("BITLOOM_TEST_BACKENDS");
  if (names == nullptr || *names == '\0') return nn::backends();
  std::vector<std::string> chosen(1);
  for (; *names != '\0'; ++names) {
    if (*names == ',') {
      chosen.emplace_back();
    } else {
      chosen.back() += *names;
    }
  }
  return chosen;
}

// Device that a backend runs on.
inline nn::Device device_of(const std::string& backend) {
  return backend == "cuda" ? nn::Device{nn::Device::Kind::cuda, 0} : nn::Device{};
}

}  // namespace bitloom::test
