// Small runs, for the tests of this folder: 80 images of 12 x 12 pixels, two layers, batches of 40. Heads keep their 16 bits,
// so that models which are compared show all differences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "layerwise/trainer.h"
#include "tests/layerwise/cases.h"
#include "tests/support/files.h"
#include "tests/support/lines.h"

namespace bitloom::test {

namespace fs = std::filesystem;

inline const data::DataSplits& splits() {
  static const data::DataSplits data = {small_data(80), small_data(16, 1000), small_data(20, data::synthetic_test_first)};
  return data;
}

inline layerwise::NetSpec two_layers(std::size_t first = 24, std::size_t second = 16) {
  return layerwise::parse_net(
      fmt::format(R"({{"name": "two", "head_bits": 16, {}, "head": {{"grid": 2, "hidden": 16}}, "layers": [
      {{"name": "a", "width": {}}}, {{"name": "b", "pool": "or", "width": {}}}],
      "stages": [{{"train": ["a"], "epochs": 2}}, {{"train": ["b"], "epochs": 3}}], "classifier": ["a", "b"]}})",
                  thermometer, first, second),
      "net.json");
}

// The same, after which both layers learn again, under the upper one's head.
inline layerwise::NetSpec two_layers_again() {
  return layerwise::parse_net(
      fmt::format(R"({{"name": "again", "head_bits": 16, {}, "head": {{"grid": 2, "hidden": 16}}, "layers": [
      {{"name": "a", "width": 24}}, {{"name": "b", "pool": "or", "width": 16}}],
      "stages": [{{"train": ["a"], "epochs": 2}}, {{"train": ["b"], "epochs": 3}},
                 {{"name": "again", "train": ["a", "b"], "epochs": 2, "augment": "flip,cutout2",
                   "options": {{"head_dropout": 0.2}}}}]}})",
                  thermometer),
      "net.json");
}

inline layerwise::RunOptions options_for(const fs::path& folder, const layerwise::NetSpec& net = two_layers()) {
  layerwise::RunOptions options;
  options.folder = folder;
  options.net = net;
  options.train.batch = 40;  // two steps per epoch
  options.train.head_learning_rate = 0.01;
  options.train.augment = data::parse_augment("crop1,flip");
  options.data_name = "small";
  return options;
}

inline layerwise::RunResult train_net(const layerwise::RunOptions& options) {
  Lines lines;
  mpi::Comm comm;
  return layerwise::train(simd::kernels(), comm, options, splits(), lines);
}

inline std::string complaint(ErrorKind kind, const layerwise::RunOptions& options) {
  return message_of(kind, [&] { train_net(options); });
}

// The tensors of a finished run's model.
// The model, and the heads that do not vote.
inline TensorFile result_of(const fs::path& folder) {
  TensorFile result = TensorFile::load(folder / "model.safetensors");
  if (fs::exists(folder / layerwise::heads_name)) {
    for (auto& [name, tensor] : TensorFile::load(folder / layerwise::heads_name).tensors) {
      result.tensors.insert_or_assign(name, std::move(tensor));
    }
  }
  return result;
}

// Without interruption and without a cache.
inline TensorFile undisturbed(const layerwise::NetSpec& net = two_layers()) {
  const TempDir folder;
  train_net(options_for(folder / "run", net));
  return result_of(folder / "run");
}

inline layerwise::RunOptions resumed(layerwise::RunOptions options) {
  options.resume = true;
  options.stop_after_steps = 0;
  return options;
}

inline void damage(const fs::path& file) {
  std::string bytes = read_file(file);
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  write_file(file, bytes);
}

}  // namespace bitloom::test
