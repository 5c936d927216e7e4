// The tables of `bitloom inspect` for models of images and captions.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "cli/terminal.h"

namespace bitloom::cli {

// Descriptions of models; read the whole file. Throw Error(data).
nlohmann::json describe_dalle_model(const std::filesystem::path& file);
nlohmann::json describe_clip_model(const std::filesystem::path& file);
void print_pairs_model(Terminal& terminal, const nlohmann::json& description);

}  // namespace bitloom::cli
