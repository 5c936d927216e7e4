// A trained discrete VAE as a file: safetensors with the parameters under their names and the sizes in the metadata. And
// images as its tokens in a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "models/dvae/dvae.h"
#include "models/model_kind.h"

namespace bitloom::models {

struct DvaeDescription {
  DvaeConfig config;
  double least_log_b = -100;  // as it was trained
};
void add_description(TensorFile& file, const DvaeDescription& description);
// Throws Error(data) that names `name` and what is missing or wrong.
DvaeDescription dvae_description_of(const TensorFile& file, const std::string& name);

// Parameters as they are on the engine's device, in f32.
TensorFile save_dvae(nn::Engine& engine, Dvae& net, const DvaeDescription& description);
// Writes a file's parameters to those of a net that has memory for them: of a checkpoint their moving averages. Throws
// Error(data).
void load_values(nn::Engine& engine, const TensorFile& file, Dvae& net);

// A net with its numbers, ready for forward passes.
struct LoadedDvae {
  DvaeDescription description;
  std::unique_ptr<Dvae> net;
  std::string hash;  // of its description and parameters
};
// values: V. Throws Error(data) that names the file and what is missing, of another kind or of another size.
LoadedDvae load_dvae(nn::Engine& engine, const std::filesystem::path& path, DType values = DType::f32);

// Codes of images as a file. The model's hash says which codebook they are of, the data's (content_hash) which images.
struct ImageTokens {
  std::size_t grid = 0, codes = 0;
  std::string model, data;
  std::vector<std::int32_t> tokens;  // (N,grid,grid)

  std::size_t images() const { return grid == 0 ? 0 : tokens.size() / (grid * grid); }
};
TensorFile to_file(const ImageTokens& tokens);
// Throws Error(data) that names the file and what is missing, of another shape or no code.
ImageTokens load_image_tokens(const std::filesystem::path& path);

}  // namespace bitloom::models
