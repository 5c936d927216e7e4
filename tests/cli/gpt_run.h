// A small GPT that the program trains within a second or two.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "tests/cli/program.h"
#include "tests/support/files.h"

namespace bitloom::test {

// Lines that a small net learns soon.
inline void write_text(const std::filesystem::path& file) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += fmt::format("{} and {} make {}\n", i % 10, (i * 7) % 10, i % 10 + (i * 7) % 10);
  write_file(file, text);
}

inline Args quick_gpt(const std::string& out, int steps = 12) {
  return {"train",
          "gpt",
          "--data",
          "text.txt",
          "--net",
          "tiny",
          "--layers",
          "2",
          "--width",
          "32",
          "--heads",
          "2",
          "--context",
          "32",
          "--batch",
          "4",
          "--steps",
          fmt::format("{}", steps),
          "--evaluate-every",
          "4",
          "--out",
          out};
}

}  // namespace bitloom::test
