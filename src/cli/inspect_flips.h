// `bitloom inspect RUN --flips`: what flips of a trained net's weights would do to the loss.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/terminal.h"

namespace bitloom::cli {

inline constexpr const char* flips_file = "flips.json";  // in a run folder: what report draws

// Studies every layer with a head of the model in a run, by `images` of its training images and as many held-out ones, and
// leaves what it found in the run's folder. Throws Error(data) for a model that is in no run's folder or not binary.
nlohmann::json study_run_flips(const std::string& run, const std::filesystem::path& model, std::size_t images,
                               Terminal& terminal);
void print_flips(Terminal& terminal, const nlohmann::json& study);

}  // namespace bitloom::cli
