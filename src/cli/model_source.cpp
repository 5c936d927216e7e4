#include "cli/model_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <vector>

#include "cli/run_folder.h"
#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "layerwise/search.h"
#include "models/cnn/model_file.h"
#include "models/gpt/model_file.h"
#include "run/checkpoints.h"
#include "train/run.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t default_images = 5000;
constexpr std::size_t small_set = 20000;  // a set of which a tenth validates
const std::vector<std::string> data_option_names{"data",     "validation", "split-seed",  "max-train",
                                                 "max-test", "image-size", "image-memory"};

// The newest that can be opened, "" if a folder has none. A model says of itself what it is; checkpoints do since there is
// something to read them.
fs::path newest_checkpoint(const fs::path& folder) {
  for (const fs::path& path : run::list_checkpoints(folder)) {
    try {
      if (TensorMapping::open(path).metadata.contains(models::kind_key)) return path;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;  // a damaged one: the one before may serve
    }
  }
  return {};
}

// A kind, and the command that shows first what its models do.
struct KnownKind {
  const char* name;
  const char* command;
};
constexpr std::array known_kinds{KnownKind{"binary", "predict"},
                                 KnownKind{models::clip_kind, "eval"},
                                 KnownKind{models::cnn_kind, "predict"},
                                 KnownKind{models::dalle_kind, "sample"},
                                 KnownKind{models::dvae_kind, "reconstruct"},
                                 KnownKind{models::gpt_kind, "sample"}};
// Models of the first do not say theirs.
constexpr auto stated_kinds = std::span(known_kinds).subspan(1);

}  // namespace

std::optional<std::string> stated_kind_of_run(const fs::path& folder) {
  if (fs::exists(folder / net_file)) return "binary";
  std::ifstream metrics(folder / metrics_file);
  std::string line;
  std::getline(metrics, line);
  const nlohmann::json first = nlohmann::json::parse(line, nullptr, false);
  if (!first.is_object()) return {};
  for (const KnownKind& kind : stated_kinds) {
    if (first.value("kind", nlohmann::json()) == kind.name) return kind.name;
  }
  return {};
}

std::vector<std::string> runs_inside(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (fs::exists(entry.path() / options_file) || fs::exists(entry.path() / model_file)) {
      names.push_back(name);
    } else if (name.starts_with(layerwise::round_prefix)) {
      for (const std::string& run : runs_inside(entry.path())) names.push_back((fs::path(name) / run).string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<fs::path> trained_file(const fs::path& run) {
  if (fs::exists(run / model_file)) return run / model_file;
  const run::FoundCheckpoint found = run::find_checkpoint(run);
  if (found.file) return found.path;
  if (!found.reasons.empty()) fail(ErrorKind::data, "{}", found.reasons.front());
  return std::nullopt;
}

fs::path find_model(const std::string& argument) {
  const fs::path path(argument);
  if (!fs::exists(path)) fail(ErrorKind::data, "{}: there is no such model file or run folder", argument);
  if (!fs::is_directory(path)) return path;
  if (fs::exists(path / model_file)) return path / model_file;
  if (const fs::path checkpoint = newest_checkpoint(path); !checkpoint.empty()) return checkpoint;
  if (const std::vector<std::string> runs = runs_inside(path); !runs.empty()) {
    fail(ErrorKind::data, "{}: the folder holds {} run{}; expected one of them, {}: {}", argument, runs.size(),
         runs.size() == 1 ? "" : "s", (path / runs.front()).string(), fmt::join(runs, " "));
  }
  if (fs::exists(path / checkpoint_file) || fs::exists(path / options_file)) {
    fail(ErrorKind::data, "{}: the run is not finished, there is no {} yet; continue it with: {}", argument, model_file,
         resume_command(stated_kind_of_run(path).value_or(models::gpt_kind), argument));
  }
  fail(ErrorKind::data, "{}: the folder holds no run: there is no {}", argument, model_file);
}

std::string checkpoint_note(const fs::path& model) {
  const auto metadata = TensorMapping::open(model).metadata;
  const auto step = train::step_of_checkpoint(metadata);
  if (!step) return "";
  return fmt::format("{}: {}; this is its checkpoint after step {}", model.parent_path().string(),
                     train::is_last_checkpoint(metadata) ? "finished" : "not finished", *step);
}

void require_kind(const fs::path& model, const std::vector<std::string>& kinds) {
  const std::string found = kind_of_model(model);
  if (std::ranges::count(kinds, found) != 0) return;
  const auto known = std::ranges::find(known_kinds, found, &KnownKind::name);
  fail(ErrorKind::data, "{}: a model of kind {}; expected one of kind {}. For this one there is `bitloom {}`", model.string(),
       found, fmt::join(kinds, " or "), known->command);
}

namespace {

[[noreturn]] void refuse_output(const char* option, const fs::path& out, const char* reason) {
  fail(ErrorKind::usage, "{}: {}; expected another name: {}", option, out.string(), reason);
}

bool is_in_run(const fs::path& path) { return !find_run(fs::absolute(path).string()).empty(); }

}  // namespace

void require_other_output(const char* option, const fs::path& out, const fs::path& model) {
  std::error_code none;
  if (fs::equivalent(out, model, none)) refuse_output(option, out, "it is the model itself");
  const fs::path extension = out.extension();
  const bool is_state = extension == ".safetensors" || extension == ".json" || extension == ".jsonl" || extension == ".ini";
  if (is_state && fs::is_regular_file(out, none) && is_in_run(out)) {
    refuse_output(option, out, "it is a file of a run, which would be replaced");
  }
}

void require_other_folder(const char* option, const fs::path& out, const fs::path& model) {
  std::error_code none;
  if (!fs::is_directory(out, none)) return;
  if (is_in_run(out)) refuse_output(option, out, "it is the folder of a run, whose files these would replace");
  if (fs::equivalent(out / model_file, model, none)) {
    refuse_output(option, out, "the model is there, which would be replaced");
  }
}

std::string kind_of_model(const fs::path& path) {
  const TensorMapping file = TensorMapping::open(path);
  const auto kind = file.metadata.find(models::kind_key);
  if (kind == file.metadata.end()) return "binary";  // whose own check says more about what is none
  if (std::ranges::count(stated_kinds, kind->second, &KnownKind::name) == 0) {
    std::vector<std::string> names;
    for (const KnownKind& known : known_kinds) names.emplace_back(known.name);
    fail(ErrorKind::data, "{}: a model of kind '{}'; this program knows {}", path.string(), kind->second,
         fmt::join(names, ", "));
  }
  return kind->second;
}

fs::path find_run(const std::string& argument) {
  const fs::path path(argument);
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  return fs::exists(folder / options_file) ? folder : fs::path();
}

void DataOptions::declare(Options& options, bool of_model) {
  static const std::vector<Options::Need> needs{{"split-seed", "validation", {"!0"}}};
  options.needs(needs);
  options.text(
      "data", spec, "SPEC",
      "Data set: synth, synth:SEED, or a folder with CIFAR-10, CIFAR-100, MNIST or one sub-folder of images per class; "
      "KIND:FOLDER (cifar10, cifar100, idx, folder) says which");
  options.text("validation", validation, "N",
               "Number of training images that are held back for validation; auto: 5000, or a tenth of a set below 20000; "
               "0: none. Of images with captions: their share, 0 to 0.9");
  options.count("split-seed", split_seed, 0, std::numeric_limits<std::int64_t>::max(),
                "Seed of the choice of images that are held back");
  options.count("max-train", max_train, 0, std::numeric_limits<std::int64_t>::max(),
                "Largest number of training images: the first ones or, of a folder, some; 0: all");
  options.count("max-test", max_test, 0, std::numeric_limits<std::int64_t>::max(), "Largest number of test images; 0: all");
  declare_folders(options, of_model);
}

void DataOptions::declare_folders(Options& options, bool of_model) {
  const std::string what = "Height and width in pixels that the middle of each image in a folder gets";
  if (of_model) {
    options.without_defaults(
        [&] { options.count("image-size", image_size, 8, 512, what + "; without it those of the model's images"); });
  } else {
    options.count("image-size", image_size, 8, 512, what);
  }
  options.bytes(
      "image-memory", image_memory,
      "Memory for decoded images of a folder; larger sets are decoded once into a file of the cache, and read from there");
}

std::size_t DataOptions::validation_images(std::size_t images) const {
  if (validation == "auto") return images < small_set ? images / 10 : default_images;
  const auto number = parse_int(validation);
  if (!number || *number < 0) {
    fail(ErrorKind::usage, "--validation: '{}' is neither 'auto' nor a number of images", validation);
  }
  if (static_cast<std::size_t>(*number) >= images) {
    fail(ErrorKind::usage, "--validation: {} images would be held back, but the training set has only {}", *number, images);
  }
  return static_cast<std::size_t>(*number);
}

std::map<std::string, std::string> options_of_run(const fs::path& run) {
  std::map<std::string, std::string> options;
  for (const std::string& line : split(read_text(run / options_file), '\n')) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    options[std::string(trim(std::string_view(line).substr(0, equals)))] = trim(std::string_view(line).substr(equals + 1));
  }
  return options;
}

std::string options_of_run(const fs::path& run, const std::vector<std::string>& names) {
  if (run.empty()) return "";
  std::istringstream ini(read_text(run / options_file));
  std::string kept;
  std::string line;
  while (std::getline(ini, line)) {
    const std::string name(trim(std::string_view(line).substr(0, line.find('='))));
    if (contains(names, name)) kept += line + "\n";
  }
  return kept;
}

std::string data_options_of_run(const fs::path& run) { return options_of_run(run, data_option_names); }

data::LoadOptions load_options(const DataOptions& options) {
  data::LoadOptions load;
  load.seed = options.split_seed;
  load.max_train = options.max_train;
  load.max_test = options.max_test;
  load.height = load.width = options.image_size;
  if (options.folder_shape) {
    load.height = options.folder_shape->height;
    load.width = options.folder_shape->width;
    load.channels = options.folder_shape->channels;
  }
  load.folder_memory.limit = options.image_memory;
  load.folder_memory.store_limit = options.image_store_limit;
  load.folder_memory.store_folder = options.image_store;
  if (options.image_store == "auto") {
    try {
      load.folder_memory.store_folder = user_cache_folder() / "images";
    } catch (const Error&) {
      load.folder_memory.store_folder.clear();  // a user without a home has no cache
    }
  }
  return load;
}

void check_image_size(const DataOptions& options, const std::string& spec, const data::ImageShape& shape) {
  if (options.image_size == DataOptions().image_size || shape.height == options.image_size) return;
  fail(ErrorKind::usage,
       "--image-size: {} has no effect; the images of {} are {} x {} pixels, and only those in folders are resized",
       options.image_size, spec, shape.height, shape.width);
}

namespace {

data::DataSplits load_by(const DataOptions& options, const data::LoadOptions& load) {
  data::DataSplits splits = data::load(options.spec, load);
  check_image_size(options, options.spec, splits.train.shape);
  if (splits.train.size() == 0 || load.test_alone) return splits;  // who wants test images holds none back
  const std::size_t held_back = options.validation_images(splits.train.size());
  if (held_back != 0) splits.validation = data::split_validation(splits.train, held_back, options.split_seed);
  return splits;
}

}  // namespace

data::DataSplits load_data(const DataOptions& options) { return load_by(options, load_options(options)); }

data::DataSplits load_test_data(const DataOptions& options, const std::vector<std::string>& class_names) {
  data::LoadOptions load = load_options(options);
  load.test_alone = true;
  load.class_names = class_names;
  return load_by(options, load);
}

data::DataSplits data_of_run(const fs::path& run) {
  Options options("", "");
  DataOptions data;
  data.declare(options);
  options.read_ini(data_options_of_run(run), (run / options_file).string(), Options::Source::run);
  options.finish();
  require_there(run, data.spec, "");
  return load_data(data);
}

namespace {

// How many characters stand before the path in "KIND:FOLDER"; none: it is the built-in set.
std::optional<std::size_t> path_place(const std::string& spec) {
  const std::size_t end = spec.find_first_of(":/");
  if (spec.substr(0, end) == "synth" && (end == std::string::npos || spec[end] == ':')) return std::nullopt;
  const bool has_kind = end != std::string::npos && spec[end] == ':' && !fs::exists(spec);
  return has_kind ? end + 1 : 0;
}

}  // namespace

void require_there(const fs::path& run, const std::string& spec, const std::string& option, const char* expected) {
  const std::optional<std::size_t> place = path_place(spec);
  if (!place || spec.empty() || fs::exists(spec.substr(*place))) return;
  const std::string path = spec.substr(*place);
  if (option.empty()) {
    fail(ErrorKind::data, "{}: there is no such file or folder, which the run {} names; expected it, or a link to it", path,
         run.string());
  }
  fail(ErrorKind::data, "--{0}: {1}: there is no such file or folder, which the run {2} names; expected --{0} with {3}", option,
       path, run.string(), expected);
}

std::string absolute_spec(const std::string& spec) {
  const std::optional<std::size_t> place = path_place(spec);
  return place ? spec.substr(0, *place) + kept_path(spec.substr(*place)) : spec;
}

}  // namespace bitloom::cli
