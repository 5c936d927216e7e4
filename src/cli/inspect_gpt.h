// The view of a GPT in `bitloom inspect`.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "cli/terminal.h"

namespace bitloom::cli {

// Reads the whole file. Throws Error(data).
nlohmann::json describe_gpt(const std::filesystem::path& file);
void print_gpt(Terminal& terminal, const nlohmann::json& description);

}  // namespace bitloom::cli
