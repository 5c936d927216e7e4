// Common parts of commands that work with a trained discrete VAE.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/terminal.h"
#include "models/dvae/coder.h"
#include "models/dvae/model_file.h"
#include "nn/engine.h"

namespace bitloom::cli {

void print_evaluation(Terminal& terminal, const std::string& split, const models::DvaeEvaluation& result);
nlohmann::json evaluation_json(const models::DvaeEvaluation& result);
// Advice about a codebook that has collapsed; "" for others.
std::string collapse_note(const models::DvaeEvaluation& result);

// A discrete VAE in a file, ready to code.
class OpenDvae {
 public:
  // Throws Error(data) for a file that is none, Error(usage) for a device or type that there is not.
  OpenDvae(const std::filesystem::path& file, const std::string& values, const std::string& device, const std::string& backend);
  const models::LoadedDvae& model() const { return loaded_; }
  const models::DvaeConfig& config() const { return loaded_.description.config; }
  models::DvaeCoder& coder() { return *coder_; }

 private:
  nn::Engine engine_;
  models::LoadedDvae loaded_;
  std::unique_ptr<models::DvaeCoder> coder_;
};

}  // namespace bitloom::cli
