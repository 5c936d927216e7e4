// bitloom export --to gguf.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/terminal.h"

namespace bitloom::cli {

// Values of --type.
std::vector<std::string> gguf_type_choices();

// Writes the file `out` of a GPT's model file or checkpoint, and says what is in it.
void export_gguf(Terminal& terminal, const std::filesystem::path& model, const std::filesystem::path& out,
                 const std::string& type);

}  // namespace bitloom::cli
