// A trained GPT as a file: safetensors with the parameters under their names, the architecture in the metadata and the
// tokenizer beside them, so that the file alone can be sampled from.
#pragma once

#include <filesystem>
#include <map>
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

// The architecture alone, from a file's metadata. Throws Error(data) that names `name`.
GptConfig config_of(const std::map<std::string, std::string>& metadata, const std::string& name);
// The tokenizer alone. Throws Error(data).
std::unique_ptr<data::Tokenizer> tokenizer_of_file(const TensorReader& file, const std::string& name);

// The parameters of a model file, or of a checkpoint (of which the moving average, if it has one), by their names.
class SavedParameters final : public TensorSource {
 public:
  // The file outlives this.
  explicit SavedParameters(const TensorReader& file) : file_(file) {}

  Description describe(const std::string& name) const override { return file_.describe(name_of(name)); }
  void read(const std::string& name, std::uint64_t from, std::span<std::byte> bytes) const override {
    file_.read(name_of(name), from, bytes);
  }
  using TensorSource::read;

 private:
  std::string name_of(const std::string& parameter) const;

  const TensorReader& file_;
};

}  // namespace bitloom::models
