// The tables of `bitloom inspect` for a discrete VAE.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "cli/terminal.h"
#include "models/dvae/config.h"

namespace bitloom::cli {

// Description of sizes alone.
nlohmann::json describe_dvae(const models::DvaeConfig& config);
// Description of a model; reads the whole file. Throws Error(data).
nlohmann::json describe_dvae_model(const std::filesystem::path& file);
void print_dvae(Terminal& terminal, const nlohmann::json& description);

}  // namespace bitloom::cli
