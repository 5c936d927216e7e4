#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "core/error.h"
#include "core/text.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {
namespace {

using Json = nlohmann::json;

// To be raised with every change of the program that changes what training gives: cached stages of before are not used.
constexpr std::string_view trainer_version = "bitloom stage 2";

// What one stage's result depends on: the data, the encoder, the options, its own description, and the stages that trained
// the layers below it, or its own layers before. Stages with equal keys have equal results, whatever net they belong to.
std::vector<Hash128> stage_keys(const NetSpec& net, const TrainOptions& train, const std::string& data_hash) {
  const Json json = to_json(net);
  std::map<std::string, Hash128> trained_by;
  std::vector<Hash128> keys;
  for (std::size_t s = 0; s < net.stages.size(); ++s) {
    Hasher hasher;
    hasher.update(trainer_version).update(std::string_view(data_hash));
    hasher.update(std::string_view(json["encoder"].dump())).update(std::string_view(describe(for_stage(train, net.stages[s]))));
    Json stage = json["stages"][s];
    stage.erase("options");  // described with the run's, as is
    stage.erase("augment");
    hasher.update(std::string_view(stage.dump()));
    for (const std::string& name : net.stages[s].train) {
      for (const Json& layer : json["layers"]) {
        if (layer["name"] == name) hasher.update(std::string_view(layer.dump()));
      }
      if (const auto before = trained_by.find(name); before != trained_by.end()) {
        hasher.update(std::string_view(before->second.hex()));
      }
      for (const std::string& input : net.layer(name).inputs) {
        const auto below = trained_by.find(input);
        if (below != trained_by.end()) hasher.update(std::string_view(below->second.hex()));
      }
    }
    keys.push_back(hasher.finish());
    for (const std::string& name : net.stages[s].train) trained_by[name] = keys.back();
  }
  return keys;
}

}  // namespace

Run::Run(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
         ProgressSink& progress)
    : kernels_(kernels), comm_(comm), options_(options), data_(data), progress_(progress) {
  result_.model.net = options.net;
  result_.model.class_names = data.train.class_names;
  check_frozen_option();
  data_hash_ = data::content_hash(data.train);
  keys_ = stage_keys(options.net, options.train, data_hash_);
}

void Run::open_folder() {
  on_root([&] {
    const auto& folder = options_.folder;
    if (options_.resume && !std::filesystem::exists(folder)) {
      fail(ErrorKind::usage, "--resume: there is no run in {}", folder.string());
    }
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail(ErrorKind::io, "--out: {} cannot be created: {}", folder.string(), error.message());
    lock_ = std::make_unique<FileLock>(folder / ".lock");
    const bool has_run = std::filesystem::exists(folder / checkpoint_name) || std::filesystem::exists(folder / model_name) ||
                         std::filesystem::exists(folder / "metrics.jsonl");
    if (has_run && !options_.resume) {
      fail(ErrorKind::usage, "--out: {} already holds a run; continue it with --resume or choose another folder",
           folder.string());
    }
    if (options_.resume && std::filesystem::exists(folder / model_name)) {
      fail(ErrorKind::usage, "--resume: the run in {} is finished: {} is there", folder.string(), model_name);
    }
    const Json config = {{"net", to_json(options_.net)},
                         {"data", options_.data_name},
                         {"options", describe(options_.train)},
                         {"command", options_.command}};
    // A run that is continued keeps its own.
    if (!options_.resume) write_atomically(folder / "config.json", config.dump(2) + "\n");
    metrics_ = std::make_unique<MetricsWriter>(folder / "metrics.jsonl");
    open_cache();
  });
  try {
    if (!comm_.is_root()) open_cache();
  } catch (const Error&) {
    // The others do without: they use it for what can be computed again.
  }
}

void Run::open_cache() {
  if (options_.cache.empty() || options_.cache_limit == 0) return;
  cache_ = std::make_unique<Cache>(
      options_.cache, options_.cache_limit, [this](const std::filesystem::path& file, const std::string& reason) {
        progress_.line(fmt::format("cache: {} was damaged and is rebuilt: {}", file.string(), reason));
      });
}

void Run::save_trained(TensorFile& file) const {
  const auto finished = std::span(options_.net.stages).first(stage_);
  for (const BinaryLayer& layer : result_.model.layers) {
    const bool trained = std::any_of(finished.begin(), finished.end(),
                                     [&](const StageSpec& stage) { return contains(stage.train, layer.spec().name); });
    if (trained) layer.save(file);
  }
  for (const auto& [name, head] : result_.model.heads) head.save(file, name + ".head", false);
}

// The layers and heads of finished stage s.
void Run::load_stage(const TensorFile& file, std::size_t s) {
  const StageSpec& spec = options_.net.stages[s];
  for (BinaryLayer& layer : result_.model.layers) {
    const std::string& name = layer.spec().name;
    if (contains(spec.train, name)) layer.load(file);
    // A layer that learned again without a head has none.
    if (!contains(spec.heads, name) || !file.contains(name + ".head.centre")) continue;
    Head head(spec.head, layer.geometry().output, data_.train.classes(), 0, 0);
    head.load(file, name + ".head", false);
    result_.model.heads.insert_or_assign(name, std::move(head));
  }
}

// A layer that learns again without a head loses the one that read what it gave before.
void Run::drop_outdated_heads(std::size_t s) {
  const StageSpec& spec = options_.net.stages[s];
  for (const std::string& name : spec.train) {
    if (!contains(spec.heads, name)) result_.model.heads.erase(name);
  }
}

void Run::write_checkpoint(const Stage* stage) {
  on_root([&] {
    TensorFile file;
    metrics_->sync();
    Json notes = {{"stage", stage_},
                  {"seconds", elapsed()},
                  {"images", result_.images},
                  {"metrics_bytes", metrics_->size()},
                  {"in_stage", stage != nullptr}};
    for (const StageSummary& summary : result_.stages) {
      notes["stages"].push_back({{"name", summary.name},
                                 {"seconds", summary.seconds},
                                 {"reused", summary.reused},
                                 {"validation_accuracy", summary.validation_accuracy}});
    }
    file.metadata["bitloom.checkpoint"] = notes.dump();
    file.metadata["bitloom.run"] = keys_.back().hex();
    result_.model.encoder.save(file);
    save_trained(file);
    if (stage != nullptr) stage->save(file);
    // The last good checkpoint stays until the new one is complete, and one more is kept.
    const auto path = options_.folder / checkpoint_name;
    const std::vector<std::byte> bytes = file.serialize();
    const auto next = options_.folder / "checkpoint.next.safetensors";
    write_atomically(next, bytes);
    std::error_code ignored;
    if (std::filesystem::exists(path)) std::filesystem::rename(path, options_.folder / previous_name, ignored);
    std::filesystem::rename(next, path);
  });
}

void Run::read_checkpoint() {
  std::vector<std::byte> bytes;
  on_root([&] {
    for (const char* name : {checkpoint_name, previous_name}) {
      const auto path = options_.folder / name;
      if (!std::filesystem::exists(path)) continue;
      try {
        bytes = read_bytes(path);
        const TensorFile file = TensorFile::parse(bytes, path.string(), Checksum::required);
        if (file.get_metadata("bitloom.run") != keys_.back().hex()) {
          fail(ErrorKind::usage, "--resume: the checkpoint in {} belongs to a run with other data, net or options",
               options_.folder.string());
        }
        return;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::data) throw;
        progress_.line(fmt::format("{}; trying the one before", error.what()));
        bytes.clear();
      }
    }
  });
  bytes = comm_.broadcast_bytes(std::move(bytes));
  if (bytes.empty()) {
    progress_.line("no usable checkpoint: training starts from the beginning");
    return;
  }
  TensorFile file = TensorFile::parse(bytes, checkpoint_name, Checksum::required);
  const Json notes = Json::parse(file.get_metadata("bitloom.checkpoint"));
  stage_ = notes["stage"];
  earlier_seconds_ = notes["seconds"];
  result_.images = notes["images"];
  for (const Json& each : notes.value("stages", Json::array())) {
    result_.stages.push_back({each["name"], each["seconds"], each["reused"], each["validation_accuracy"]});
  }
  for (std::size_t s = 0; s < stage_; ++s) load_stage(file, s);
  if (notes["in_stage"].get<bool>()) resume_from_ = std::move(file);
  if (comm_.is_root()) metrics_->truncate_to(notes["metrics_bytes"]);
}

// Loads stage s from the cache if an equal one was trained before.
bool Run::reuse(std::size_t s) {
  std::vector<std::byte> bytes;
  on_root([&] {
    if (cache_ == nullptr) return;
    if (auto found = cache_->get(keys_[s].hex())) bytes = std::move(*found);
  });
  bytes = comm_.broadcast_bytes(std::move(bytes));
  if (bytes.empty()) return false;
  const TensorFile file = TensorFile::parse(bytes, "cached stage", Checksum::required);
  const StageSpec& spec = options_.net.stages[s];
  load_stage(file, s);
  drop_outdated_heads(s);
  StageSummary summary{spec.name, 0, true, std::stod(file.get_metadata("validation_accuracy"))};
  progress_.line(fmt::format("{}: taken from the cache (validation {:.2f}%)", spec.name, 100 * summary.validation_accuracy));
  if (comm_.is_root()) {
    metrics_->write({{"event", "stage"},
                     {"stage", spec.name},
                     {"seconds", 0.0},
                     {"reused", true},
                     {"validation_accuracy", summary.validation_accuracy}});
  }
  result_.stages.push_back(summary);
  return true;
}

}  // namespace bitloom::layerwise
