#include "models/gpt/model_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "models/file_tokenizer.h"
#include "models/model_kind.h"
#include "nn/floats.h"
#include "train/optimizer.h"
#include "train/parallel/layer_costs.h"
#include "train/parallel/stages.h"

namespace bitloom::models {
namespace {

// In f32, whatever the engine has; so are models in files.
void save_values(nn::Engine& engine, TensorFile& file, const nn::Parameter& parameter) {
  if (parameter.value.dtype() != DType::bf16) return train::save_tensor(engine, file, parameter.name, parameter.value);
  const auto lengths = parameter.shape.lengths();
  file.put(parameter.name, {lengths.begin(), lengths.end()}, nn::to_floats(engine, parameter.value));
}

// All parameters of a net, which may be a part of it, are in a file.
void check_parameters(const SavedParameters& file, Gpt& net, const std::string& name) {
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    const auto [dtype, shape] = file.describe(parameter->name);
    const std::vector<std::size_t> expected = train::full_shape_of(*parameter);
    const bool is_float = dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f64;
    if (is_float && shape == expected) continue;
    fail(ErrorKind::data, "{}: the tensor '{}' is {}[{}], expected F32[{}]", name, parameter->name, dtype_name(dtype),
         fmt::join(shape, ", "), fmt::join(expected, ", "));
  }
}

// Layers for the stages.
train::Partition cut(Gpt& net, std::size_t stages) {
  const nn::Shape ids = {1, net.tokens()};
  const double head = net.cost(ids) - net.layers().cost(ids);
  return train::partition(train::estimated_costs(net.layers(), ids, head), stages);
}

}  // namespace

void add_description(TensorFile& file, const GptConfig& config, const data::Tokenizer& tokenizer) {
  file.metadata[kind_key] = gpt_kind;
  file.metadata[config_key] = to_json(config).dump();
  add_tokenizer(file, tokenizer);
}

TensorFile save_gpt(nn::Engine& engine, Gpt& net, const data::Tokenizer& tokenizer) {
  TensorFile file;
  add_description(file, net.config(), tokenizer);
  for (const nn::Parameter* parameter : nn::parameters_of(net)) save_values(engine, file, *parameter);
  return file;
}

GptConfig config_of(const std::map<std::string, std::string>& metadata, const std::string& name) {
  require_kind(metadata, gpt_kind, name);
  const auto found = metadata.find(config_key);
  if (found == metadata.end()) fail(ErrorKind::data, "{}: no metadata '{}'", name, config_key);
  return parse_gpt_config(found->second, name);
}

std::unique_ptr<data::Tokenizer> tokenizer_of_file(const TensorReader& file, const std::string& name) {
  return parse_file_tokenizer(tokenizer_text(file, name), name);
}

std::string SavedParameters::name_of(const std::string& parameter) const {
  const std::string average = train::average_name(parameter);
  return file_.contains(average) ? average : parameter;
}

LoadedGpt load_gpt(nn::Engine& engine, mpi::Grid& grid, const std::filesystem::path& path, DType values, std::size_t tokens) {
  const std::string name = path.string();
  mpi::Comm& world = grid.world();
  std::optional<TensorReader> file;
  std::string config;
  std::vector<std::byte> text;
  world.together([&] {
    if (!world.is_root()) return;
    file = TensorReader::open(path, Checksum::required);
    config = to_json(config_of(file->metadata, name)).dump();
    text = tokenizer_text(*file, name);
  });
  config = world.broadcast_text(config);
  text = world.broadcast_bytes(std::move(text));
  LoadedGpt loaded;
  world.together([&] {
    loaded.tokenizer = parse_file_tokenizer(text, name);
    if (grid.shape().tensor > 1) loaded.group = std::make_unique<train::TensorGroup>(grid.tensor());
    loaded.net = std::make_unique<Gpt>(parse_gpt_config(config, name), tokens, loaded.group.get());
    if (loaded.tokenizer->size() != loaded.net->config().vocabulary) {
      fail(ErrorKind::data, "{}: a net of {} tokens with a tokenizer of {}", name, loaded.net->config().vocabulary,
           loaded.tokenizer->size());
    }
    if (file) check_parameters(SavedParameters(*file), *loaded.net, name);
    const auto stages = static_cast<std::size_t>(grid.shape().pipeline);
    loaded.parts = cut(*loaded.net, stages);
    const std::array<nn::Parameter*, 1> head = {&loaded.net->table()};
    for (const train::StageParameter& each : train::stage_parameters(loaded.net->layers(), head, loaded.parts, stages)) {
      if (std::ranges::count(each.stages, static_cast<std::size_t>(grid.stage())) > 0) {
        loaded.parameters.push_back(each.parameter);
      }
    }
    nn::make_parameters(engine, loaded.parameters, values);
  });
  std::vector<train::HeldTensor> held;
  for (nn::Parameter* parameter : loaded.parameters) {
    held.push_back({parameter->name, train::full_shape_of(*parameter), train::holding_of(*parameter), &parameter->value,
                    parameter->value.dtype(), true});
  }
  std::optional<SavedParameters> parameters;
  if (file) parameters.emplace(*file);
  train::scatter_state(engine, world, held, parameters ? &*parameters : nullptr);
  nn::refresh_copies(engine, loaded.parameters);
  return loaded;
}

LoadedGpt load_gpt(nn::Engine& engine, const std::filesystem::path& path, DType values, std::size_t tokens) {
  mpi::Comm alone;
  mpi::Grid grid(alone, {});
  return load_gpt(engine, grid, path, values, tokens);
}

}  // namespace bitloom::models
