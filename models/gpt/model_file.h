// A trained GPT as a file: safetensors with the parameters under their names, the architecture in the metadata and the
// tokenizer beside them, so that the file alone can be sampled from.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "data/text/tokenizer.h"
#include "models/gpt/gpt.h"
#include "models/model_kind.h"
#include "mpi/grid.h"
#include "train/parallel/partition.h"
#include "train/parallel/state_exchange.h"

namespace bitloom::models {

// The net's parameters, as they are on the engine's device, in f32.
TensorFile save_gpt(nn::Engine& engine, Gpt& net, const data::Tokenizer& tokenizer);

// All of it but the parameters, which checkpoints have under the same names.
void add_description(TensorFile& file, const GptConfig& config, const data::Tokenizer& tokenizer);

// A net with its parameters, ready for forward passes.
struct LoadedGpt {
  std::unique_ptr<train::TensorGroup> group;  // that divides the layers; none: they are whole
  std::unique_ptr<Gpt> net;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::vector<nn::Parameter*> parameters;  // of this process
  train::Partition parts;                  // of the net, one for each stage
};

// values: V. tokens: as Gpt has it. Throws Error(data) that names the file and what is missing, of another kind or of another
// size.
LoadedGpt load_gpt(nn::Engine& engine, const std::filesystem::path& path, DType values = DType::f32, std::size_t tokens = 0);
// Collective: the same by the processes of a grid, which outlives it, of which each gets its own parts of the parameters; rank
// 0 has the file, and none has all of it in memory. Stages have layers of about equal costs. Throws Error(usage) for a grid
// that the net does not have.
LoadedGpt load_gpt(nn::Engine& engine, mpi::Grid& grid, const std::filesystem::path& path, DType values = DType::f32,
                   std::size_t tokens = 0);

// The architecture alone.
GptConfig config_of_file(const TensorMapping& file, const std::string& name);
// The tokenizer alone. Throws Error(data).
std::unique_ptr<data::Tokenizer> tokenizer_of_file(const TensorMapping& file, const std::string& name);
// The parameters of a model file, or of a checkpoint (of which the moving average, if it has one). The file outlives it.
train::FindTensor parameters_of(const TensorMapping& file);

}  // namespace bitloom::models
