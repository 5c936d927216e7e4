// Meaning of MODEL or RUN: a model file or the folder of a run; and the options that choose data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "data/dataset.h"
#include "data/readers.h"
#include "run/folder.h"

namespace bitloom::cli {

// Names in a run folder. trainer.h lists those that the trainer writes.
inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* checkpoint_file = "checkpoint.safetensors";
inline constexpr const char* config_file = "config.json";
inline constexpr const char* metrics_file = "metrics.jsonl";
inline constexpr const char* events_file = run::events_name;
inline constexpr const char* options_file = "options.ini";  // all options of the run, resolved: what --resume reads
inline constexpr const char* net_file = "net.json";         // the net with all settings: what --resume reads
inline constexpr const char* log_file = "log.txt";
inline constexpr const char* lock_file = ".lock";

// The file of a run that holds trained parts: its model or, while it is under way, the newest checkpoint that is whole; none of
// a run that has only begun. Throws Error(data) if all checkpoints are damaged, Error(io).
std::optional<std::filesystem::path> trained_file(const std::filesystem::path& run);

// A file, the model in a run folder or, of a float model's run that has none yet, the newest checkpoint. Throws a data error
// that says what is missing.
std::filesystem::path find_model(const std::string& argument);

// Where a file is a checkpoint: "RUN: not finished; this is its checkpoint after step 120", or "finished" if it is the run's
// last; "" for models.
std::string checkpoint_note(const std::filesystem::path& model);

// Throws a data error that names a command for models of its kind, unless a model file is of one of these.
void require_kind(const std::filesystem::path& model, const std::vector<std::string>& kinds);

// Throws Error(usage), which names the option, if writing the file `out` would replace `model` or a file of a run.
void require_other_output(const char* option, const std::filesystem::path& out, const std::filesystem::path& model = {});
// The same of the files of a model that go into the folder `out`.
void require_other_folder(const char* option, const std::filesystem::path& out, const std::filesystem::path& model);

// The runs in the sub-folders of a folder, such as those of a search and of its rounds, by name.
std::vector<std::string> runs_inside(const std::filesystem::path& folder);

// "binary" or one of models/model_kind.h, by the metadata of a model file. Throws a data error for a file that is none, or of
// another kind.
std::string kind_of_model(const std::filesystem::path& path);

// The same of a run's folder, whether it has a model yet or not; none if nothing in it says so.
std::optional<std::string> stated_kind_of_run(const std::filesystem::path& folder);

// The folder of the run that a model file or folder belongs to, "" if it belongs to none.
std::filesystem::path find_run(const std::string& argument);

// Which images a command works on.
struct DataOptions {
  std::string spec;                 // --data
  std::string validation = "auto";  // a number, or auto
  std::size_t split_seed = 1;
  std::size_t max_train = 0;
  std::size_t max_test = 0;
  std::size_t image_size = 32;                   // size of images in folders
  std::optional<data::ImageShape> folder_shape;  // of these in its place, as a model has them
  std::uint64_t image_memory = std::uint64_t{1} << 30;
  std::string image_store = "auto";  // folder of decoded images that exceed it; auto: the user's cache; "": they stay in memory
  std::uint64_t image_store_limit = std::uint64_t{8} << 30;

  // of_model: the size of images in folders is a model's unless it is asked for.
  void declare(Options& options, bool of_model = false);
  // Declares, of these, how images of folders are read.
  void declare_folders(Options& options, bool of_model = false);
  // Number of validation images by --validation for a training set of `images`. Throws a usage error.
  std::size_t validation_images(std::size_t images) const;
};

// All options of a run, by name, as its options.ini has them. Throws a data error if there is none.
std::map<std::string, std::string> options_of_run(const std::filesystem::path& run);

// Options of these names in options.ini of the run, if there is any ("": none), as an INI text for Options::read_ini.
std::string options_of_run(const std::filesystem::path& run, const std::vector<std::string>& names);
// Those that DataOptions declares.
std::string data_options_of_run(const std::filesystem::path& run);

// Throws Error(usage) where --image-size has no effect on images of this shape.
void check_image_size(const DataOptions& options, const std::string& spec, const data::ImageShape& shape);

// How these options read a data set.
data::LoadOptions load_options(const DataOptions& options);

// Reads what `options` says, with the validation set split off.
data::DataSplits load_data(const DataOptions& options);

// The same to measure a model of these classes on the test set, which may be all that there is.
data::DataSplits load_test_data(const DataOptions& options, const std::vector<std::string>& class_names);

// The images that a run was trained on, validated and tested, by its options.ini.
data::DataSplits data_of_run(const std::filesystem::path& run);

// Throws Error(data) if a path, or a data set, that a run names is not there any more: another place is told by `option`, or ""
// where the command has none, as `expected` says.
void require_there(const std::filesystem::path& run, const std::string& spec, const std::string& option,
                   const char* expected = "its place now");

// `spec` with the path in it made absolute, so that a run can be continued from another folder.
std::string absolute_spec(const std::string& spec);

}  // namespace bitloom::cli
