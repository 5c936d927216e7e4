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
constexpr std::string_view trainer_version = "bitloom stage 3";

// To be raised when checkpoints hold other tensors: older ones are not read.
constexpr std::string_view checkpoint_version = "checkpoint 4";

// In the metadata of the encoder's file: what it was fitted to.
constexpr const char* encoder_key = "bitloom.encoder_of";

// What one stage's result depends on: the data, the encoder as fitted, the options, its own description, and the stages that
// trained the layers below it, or its own layers before. Stages with equal keys have equal results, whatever net they belong
// to.
std::vector<Hash128> stage_keys(const NetSpec& net, const TrainOptions& train, const std::string& data_hash,
                                const Hash128& encoder) {
  const Json json = to_json(net);
  std::map<std::string, Hash128> trained_by;
  std::vector<Hash128> keys;
  for (std::size_t s = 0; s < net.stages.size(); ++s) {
    Hasher hasher;
    hasher.update(trainer_version).update(std::string_view(data_hash));
    hasher.update(std::string_view(encoder.hex())).update(std::string_view(describe(for_stage(train, net.stages[s]))));
    Json stage = json["stages"][s];
    stage.erase("options");  // described with the run's, as is
    stage.erase("augment");
    hasher.update(std::string_view(stage.dump()));
    for (const std::string& name : net.stages[s].train) {
      for (const Json& layer : json["layers"]) {
        if (layer["name"].get_ref<const std::string&>() == name) hasher.update(std::string_view(layer.dump()));
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

// 20 bits are what the keys of random numbers have room for.
std::uint64_t id_of(const Hash128& key) { return key.low & 0xFFFFF; }

std::vector<std::uint64_t> stage_ids(const NetSpec& net, const TrainOptions& options, const data::Dataset& train,
                                     const Encoder& encoder) {
  TensorFile file;
  encoder.save(file);
  std::vector<std::uint64_t> ids;
  for (const Hash128& key : stage_keys(net, options, data::content_hash(train), hash_bytes(file.serialize()))) {
    ids.push_back(id_of(key));
  }
  return ids;
}

Run::Run(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
         ProgressSink& progress)
    : kernels_(kernels), comm_(comm), options_(options), data_(data), progress_(progress) {
  result_.model.net = options.net;
  result_.model.class_names = data.train.class_names;
  check_frozen_option();
}

// Collective: what stages and checkpoints are known by. Throws a data error if the ranks do not hold the same images.
void Run::identify(const Hash128& encoder) {
  keys_ = stage_keys(options_.net, options_.train, data_hash_, encoder);
  Hasher hasher;
  for (const Hash128& key : keys_) hasher.update(std::string_view(key.hex()));
  for (const std::string& voter : options_.net.classifier) hasher.update(std::string_view(voter));
  hasher.update(options_.net.views.mirror ? 1 : 0).update(options_.net.views.shift);
  run_key_ = hasher.update(checkpoint_version).finish().hex();
  const std::string mine = data_hash_ + run_key_;
  const std::string roots = comm_.broadcast_text(mine);
  comm_.together([&] {
    if (!roots.starts_with(data_hash_)) {
      fail(ErrorKind::data, "--data: the training images in {} differ from those that rank 0 has", options_.data_name);
    }
    if (roots != mine) fail(ErrorKind::usage, "this process has other options or another net than rank 0");
  });
}

// The encoder for the training images; that of a run that goes on is there already.
TensorFile Run::fit_encoder() const {
  const std::string key = Hasher()
                              .update(std::string_view(data_hash_))
                              .update(std::string_view(to_json(options_.net)["encoder"].dump()))
                              .update(options_.train.seed)
                              .finish()
                              .hex();
  if (!options_.encoder.empty()) {
    TensorFile file = TensorFile::parse(options_.encoder, "encoder", Checksum::required);
    file.metadata[encoder_key] = key;
    return file;
  }
  const auto path = options_.folder / encoder_name;
  if (options_.resume && std::filesystem::exists(path)) {
    try {
      TensorFile file = TensorFile::parse(read_bytes(path), path.string(), Checksum::required);
      if (file.get_metadata(encoder_key) == key) return file;
    } catch (const Error&) {
      // It can be fitted again.
    }
  }
  TensorFile file;
  Encoder::fit(options_.net.encoder, data_.train, options_.train.seed).save(file);
  file.metadata[encoder_key] = key;
  return file;
}

// Locks the folder, which is there, and sees that it may be used.
void Run::lock_folder() {
  const auto& folder = options_.folder;
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
}

// Before any work is done, where there is a folder already.
void Run::claim_folder() {
  on_root([&] {
    const bool is_there = std::filesystem::exists(options_.folder);
    if (is_there) lock_folder();
    if (!is_there && options_.resume) fail(ErrorKind::usage, "--resume: there is no run in {}", options_.folder.string());
  });
}

void Run::open_folder() {
  on_root([&] {
    const auto& folder = options_.folder;
    if (lock_ == nullptr) {
      std::error_code error;
      std::filesystem::create_directories(folder, error);
      if (error) fail(ErrorKind::io, "--out: {} cannot be created: {}", folder.string(), error.message());
      lock_folder();
    }
    try {
      open_cache();
    } catch (const std::exception& refused) {
      if (options_.needs_cache) throw;
      progress_.line(fmt::format("cache: not used: {}", refused.what()));
    }
    const Json config = {{"net", to_json(options_.net)},
                         {"data", options_.data_name},
                         {"options", describe(options_.train)},
                         {"command", options_.command}};
    // A run that is continued keeps its own. Paths need not be UTF-8, JSON must.
    if (!options_.resume) {
      write_atomically(folder / "config.json", config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
      for (const auto& [name, text] : options_.files) write_atomically(folder / name, text);
    }
    metrics_ = std::make_unique<MetricsWriter>(folder / "metrics.jsonl");
    write_atomically(folder / encoder_name, encoder_file_);
    encoder_file_ = {};
  });
  try {
    if (!comm_.is_root()) open_cache();
  } catch (const std::exception&) {
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

// Throws what writing the last checkpoint threw.
void Run::finish_writing() {
  if (writing_.valid()) writing_.get();
}

bool Run::is_writing() const {
  return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

// `wait`: until it is on the disk; otherwise training goes on meanwhile.
void Run::write_checkpoint(Stage* stage, bool wait) {
  TensorFile of_stage;
  if (stage != nullptr) stage->save(of_stage);
  on_root([&] {
    finish_writing();
    metrics_->sync();
    TensorFile file;
    Json notes = {{"stage", stage_},
                  {"seconds", elapsed()},
                  {"images", result_.images},
                  {"metrics_bytes", metrics_->size()},
                  {"in_stage", stage != nullptr}};
    for (const StageSummary& summary : result_.stages) {
      notes["stages"].push_back({{"name", summary.name},
                                 {"seconds", summary.seconds},
                                 {"reused", summary.reused},
                                 {"validation_accuracy", layerwise::to_json(summary.validation_accuracy)}});
    }
    file.metadata["bitloom.checkpoint"] = notes.dump();
    file.metadata["bitloom.run"] = run_key_;
    result_.model.encoder.save(file);
    save_trained(file);
    // Layers and heads that learn again are there as they are now.
    for (auto& [name, tensor] : of_stage.tensors) file.tensors.insert_or_assign(name, std::move(tensor));
    // The last good checkpoint stays until the new one is complete, and one more is kept.
    writing_ = std::async(std::launch::async, [folder = options_.folder, file = std::move(file)] {
      const auto path = folder / checkpoint_name;
      const auto next = folder / "checkpoint.next.safetensors";
      write_atomically(next, file.serialize());
      std::error_code ignored;
      if (std::filesystem::exists(path)) std::filesystem::rename(path, folder / previous_name, ignored);
      std::filesystem::rename(next, path);
    });
    if (wait) finish_writing();
  });
}

void Run::mark_progress(std::size_t step, bool now) {
  if (comm_.is_root()) progress_file_.mark(stage_, step, now);
}

void Run::read_checkpoint() {
  std::vector<std::byte> bytes;
  on_root([&] {
    for (const char* name : {checkpoint_name, previous_name}) {
      const auto path = options_.folder / name;
      if (!std::filesystem::exists(path)) continue;
      bytes = read_bytes(path);  // a device that fails now may not fail later: that is no reason to start anew
      try {
        const TensorFile file = TensorFile::parse(bytes, path.string(), Checksum::required);
        if (file.get_metadata("bitloom.run") == run_key_) return;
      } catch (const Error& error) {
        progress_.line(fmt::format("{}; trying the one before", error.what()));
        bytes.clear();
        std::filesystem::rename(path, path.string() + ".damaged");
        continue;
      }
      fail(ErrorKind::usage, "--resume: the checkpoint in {} belongs to a run with other data, net or options",
           options_.folder.string());
    }
  });
  bytes = comm_.broadcast_bytes(std::move(bytes));
  if (bytes.empty()) {
    progress_.line("no usable checkpoint: training starts from the beginning");
    if (comm_.is_root()) metrics_->truncate_to(0);
    return;
  }
  TensorFile file = TensorFile::parse(bytes, checkpoint_name, Checksum::required);
  const Json notes = Json::parse(file.get_metadata("bitloom.checkpoint"));
  stage_ = notes["stage"];
  earlier_seconds_ = notes["seconds"];
  result_.images = notes["images"];
  for (const Json& each : notes.value("stages", Json::array())) {
    const Json& accuracy = each["validation_accuracy"];
    result_.stages.push_back({each["name"], each["seconds"], each["reused"],
                              accuracy.is_null() ? std::nullopt : std::optional<double>(accuracy.get<double>())});
  }
  for (std::size_t s = 0; s < stage_; ++s) load_stage(file, s);
  if (notes["in_stage"].get<bool>()) resume_from_ = std::move(file);
  if (comm_.is_root()) metrics_->truncate_to(notes["metrics_bytes"]);
}

// Takes stage s from elsewhere, or from the cache, if an equal one was trained before.
bool Run::reuse(std::size_t s) {
  std::vector<std::byte> bytes;
  const auto given = options_.trained.find(keys_[s].hex());
  on_root([&] {
    if (given != options_.trained.end()) {
      bytes = given->second;
      return;
    }
    if (cache_ == nullptr || depends_on_time()) return;
    if (auto found = cache_->get(keys_[s].hex())) bytes = std::move(*found);
  });
  bytes = comm_.broadcast_bytes(std::move(bytes));
  if (bytes.empty()) return false;
  const TensorFile file = TensorFile::parse(bytes, "cached stage", Checksum::required);
  const StageSpec& spec = options_.net.stages[s];
  load_stage(file, s);
  drop_outdated_heads(s);
  // Measured anew: the validation set has no part in the stage's key.
  const bool has_heads = std::all_of(spec.heads.begin(), spec.heads.end(),
                                     [&](const std::string& name) { return result_.model.heads.contains(name); });
  const StageSummary summary{spec.name, 0, true, has_heads ? validate(spec.heads) : std::nullopt};
  progress_.line(fmt::format("{}: taken from {}{}", spec.name,
                             given != options_.trained.end() ? "a run that shares it" : "the cache",
                             validation_text(summary.validation_accuracy)));
  comm_.together([&] { report_stage(summary); });
  return true;
}

}  // namespace bitloom::layerwise
