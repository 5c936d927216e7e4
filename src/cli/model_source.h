// What the user means by MODEL or RUN: a model file or the folder of a run; and the options that choose data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "cli/options.h"
#include "data/dataset.h"

namespace bitloom::cli {

// Names in a run folder. trainer.h lists those that the trainer writes.
inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* checkpoint_file = "checkpoint.safetensors";
inline constexpr const char* config_file = "config.json";
inline constexpr const char* metrics_file = "metrics.jsonl";
inline constexpr const char* options_file = "options.ini";  // all options of the run, resolved: what --resume reads
inline constexpr const char* net_file = "net.json";         // the net with all settings: what --resume reads
inline constexpr const char* log_file = "log.txt";
inline constexpr const char* lock_file = ".lock";

// A file, or the model in a run folder. Throws a data error that says what is missing.
std::filesystem::path find_model(const std::string& argument);

// "binary" or "gpt", by the metadata of a model file. Throws a data error for a file that is none, or of another kind.
std::string kind_of_model(const std::filesystem::path& path);

// The folder of the run that a model file or folder belongs to, "" if it belongs to none.
std::filesystem::path find_run(const std::string& argument);

// Which images a command works on.
struct DataOptions {
  std::string spec;                 // --data
  std::string validation = "auto";  // a number, or auto
  std::size_t split_seed = 1;
  std::size_t max_train = 0;
  std::size_t max_test = 0;
  std::size_t image_size = 32;  // of images in folders

  void declare(Options& options);
  // What --validation means for a training set of `images`. Throws a usage error.
  std::size_t validation_images(std::size_t images) const;
};

// The options in options.ini of the run, if there is any, that DataOptions declares, as an INI text for Options::read_ini.
std::string data_options_of_run(const std::filesystem::path& run);

// Reads what `options` says, with the validation set split off.
data::DataSplits load_data(const DataOptions& options);

// `spec` with the path in it made absolute, so that a run can be continued from another folder.
std::string absolute_spec(const std::string& spec);

}  // namespace bitloom::cli
