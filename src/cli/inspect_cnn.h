// The tables of `bitloom inspect` for a convolutional net of floating-point numbers.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "cli/terminal.h"
#include "models/cnn/config.h"

namespace bitloom::cli {

// Description of a net alone, for its images and classes.
nlohmann::json describe_cnn(const models::CnnConfig& config);
// Description of a model; reads the whole file. Throws Error(data).
nlohmann::json describe_cnn_model(const std::filesystem::path& file);
void print_cnn(Terminal& terminal, const nlohmann::json& description);

}  // namespace bitloom::cli
