#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/differences.h"
#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/text.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {
namespace {

using Json = nlohmann::json;

// To be raised with every change of the program that changes what training gives: cached stages of before are not used.
constexpr std::string_view trainer_version = "bitloom stage 5";

// To be raised when checkpoints hold other tensors: older ones are not read.
constexpr std::string_view checkpoint_version = "checkpoint 5";

// In the metadata of the encoder's file: what it was fitted to.
constexpr const char* encoder_key = "bitloom.encoder_of";

// Hash of all that a stage's result depends on: data, encoder as fitted, options, its own description, and the stages that
// trained the layers below it, or its own layers before. Stages with equal keys have equal results, whatever net they belong
// to.
std::vector<Hash128> stage_keys(const NetSpec& net, const TrainOptions& train, const std::string& data_hash,
                                const std::string& soft_labels_hash, const Hash128& encoder) {
  const Json json = to_json(net);
  const std::vector<std::uint64_t> ids = stage_ids(net);
  std::map<std::string, Hash128> trained_by;
  std::vector<Hash128> keys;
  for (std::size_t s = 0; s < net.stages.size(); ++s) {
    Hasher hasher;
    hasher.update(trainer_version).update(std::string_view(data_hash)).update(ids[s]);
    const TrainOptions options = for_stage(train, net.stages[s]);
    hasher.update(std::string_view(encoder.hex())).update(std::string_view(describe(options)));
    if (options.teacher_share > 0) hasher.update(std::string_view(soft_labels_hash));
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

Run::Run(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
         ProgressSink& progress)
    : kernels_(kernels), comm_(comm), options_(options), data_(data), progress_(progress) {
  result_.model.net = options.net;
  result_.model.class_names = data.train.class_names;
  check_frozen_option();
}

// Checkpoints are read by runs of the same alone.
Json Run::identity(const Hash128& encoder) const {
  Json data = {{"images", data_.train.size()}, {"content", data_hash_}};
  if (!soft_labels_hash_.empty()) data["soft_labels"] = soft_labels_hash_;
  return {{"version", fmt::format("{}, {}", trainer_version, checkpoint_version)},
          {"data", data},
          {"encoder", encoder.hex()},
          {"options", Json::parse(describe(options_.train))},
          {"net", to_json(options_.net)}};
}

// Collective: what stages and checkpoints are known by. Throws a data error if the ranks do not hold the same images.
void Run::identify(const Hash128& encoder) {
  keys_ = stage_keys(options_.net, options_.train, data_hash_, soft_labels_hash_, encoder);
  identity_ = identity(encoder).dump();
  const std::string roots = comm_.broadcast_text(identity_);
  comm_.together([&] {
    if (roots == identity_) return;
    const Json root = Json::parse(roots);
    if (root["data"]["content"] != data_hash_) {
      fail_field(ErrorKind::data, "data", "the training images in {} differ from those that rank 0 has", options_.data_name);
    }
    fail(ErrorKind::usage, "this process has other options or another net (given) than rank 0 (stored):{}",
         describe_differences(find_differences(root, Json::parse(identity_)), options_.field_name));
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

// Makes the folder if it is missing, locks it, and sees that it may be used.
void Run::lock_folder() {
  const auto& folder = options_.folder;
  lock_ = std::make_unique<FileLock>(run::claim_folder(folder, options_.resume));
  if (options_.resume && std::filesystem::exists(folder / run::model_name)) {
    fail_field(ErrorKind::usage, "resume", "the run in {} is finished: {} is there; other options need another folder",
               folder.string(), run::model_name);
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / next_model_name, ignored))) {
    std::filesystem::remove(folder / next_model_name, ignored);
  }
  checkpoints_.emplace(folder, options_.resume);
}

// Before any work is done, where there is a folder already.
void Run::claim_folder() {
  on_root([&] {
    if (std::filesystem::exists(options_.folder)) {
      lock_folder();
    } else {
      run::check_folder(options_.folder, options_.resume);
    }
  });
}

void Run::open_folder() {
  on_root([&] {
    const auto& folder = options_.folder;
    if (lock_ == nullptr) lock_folder();
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
    metrics_ = std::make_unique<MetricsWriter>(folder / run::metrics_name);
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
  cache_ = std::make_unique<Cache>(options_.cache, options_.cache_limit,
                                   [this](const std::filesystem::path& file, const std::string& what) {
                                     progress_.line(fmt::format("cache: {} {}", file.string(), what));
                                   });
}

// The layers and heads of finished stage s.
void Run::load_stage(const TensorFile& file, std::size_t s) {
  const StageSpec& spec = options_.net.stages[s];
  for (BinaryLayer& layer : result_.model.layers) {
    const std::string& name = layer.spec().name;
    if (contains(spec.train, name)) {
      layer.load(file);
      states_.erase(name);
      if (file.contains(states_name(name)) && trains_again(name, s)) {
        const auto states = file.get(states_name(name), DType::i16, {layer.channels() * layer.patch_bits()}).as<std::int16_t>();
        states_[name].assign(states.begin(), states.end());
      }
    }
    // A layer that learned again without a head has none.
    if (!contains(spec.heads, name) || !file.contains(name + ".head.centre")) continue;
    Head head(spec.head, layer.geometry().output, data_.train.classes(), 0, 0);
    head.load(file, name + ".head", false);
    result_.model.heads.insert_or_assign(name, std::move(head));
  }
}

// Whether a stage after s trains a layer.
bool Run::trains_again(const std::string& layer, std::size_t s) const {
  const auto& stages = options_.net.stages;
  return std::any_of(stages.begin() + static_cast<std::ptrdiff_t>(s) + 1, stages.end(),
                     [&](const StageSpec& stage) { return contains(stage.train, layer); });
}

// Collective: what a finished stage knows of its weights, for the cache and for later stages. With sparse messages rank 0 alone
// knows it; where its replies travel for some steps, it is ahead of the weights.
void Run::keep_states(const Stage& stage) {
  if (options_.train.sparse && options_.train.exchange.staleness != 0) return;
  for (const auto& trainer : stage.trainers()) {
    const std::string& name = trainer->layer().spec().name;
    std::vector<std::int16_t>& states = states_[name];
    states.assign(trainer->states().begin(), trainer->states().end());
    if (options_.train.sparse && trains_again(name, stage_)) comm_.broadcast(std::span(states));
  }
}

void Run::drop_states() {
  std::erase_if(states_, [&](const auto& each) { return !trains_again(each.first, stage_); });
}

// A layer that learns again without a head loses the one that read what it gave before.
void Run::drop_outdated_heads(std::size_t s) {
  const StageSpec& spec = options_.net.stages[s];
  for (const std::string& name : spec.train) {
    if (!contains(spec.heads, name)) result_.model.heads.erase(name);
  }
}

void Run::mark_progress(std::size_t step, bool now) {
  if (comm_.is_root()) progress_file_.mark(stage_, step, now);
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
  StageSummary summary;
  summary.name = spec.name;
  summary.reused = true;
  if (has_heads) validate(spec.heads, summary);
  const auto history = file.metadata.find(history_key);
  if (history != file.metadata.end()) summary.trained_by = history_from_text(history->second);
  const std::string origin = origin_text(summary.trained_by);
  progress_.line(fmt::format("{}: not trained, taken from {}{}{}", spec.name,
                             given != options_.trained.end() ? "a run that shares it" : "the cache",
                             origin.empty() ? "" : "; it was trained " + origin, validation_text(summary)));
  comm_.together([&] {
    for (const Json& epoch : summary.trained_by.epochs) {
      if (comm_.is_root()) metrics_->write(epoch);
    }
    summary.trained_by.epochs.clear();
    report_stage(summary);
  });
  return true;
}

}  // namespace bitloom::layerwise
