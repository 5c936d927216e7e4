#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/differences.h"
#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {
namespace {

using Json = nlohmann::json;

// To be raised when checkpoints hold other tensors: older ones are not read.
constexpr std::string_view checkpoint_version = "checkpoint 5";

// In the metadata of the encoder's file: what it was fitted to.
constexpr const char* encoder_key = "bitloom.encoder_of";

}  // namespace

Run::Run(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
         ProgressSink& progress)
    : kernels_(kernels),
      comm_(comm),
      options_(options),
      data_(data),
      progress_(progress),
      open_(comm, options, progress),
      trained_(options.net, options.train, result_.model),
      checkpoints_(
          comm, open_, options.checkpoint_seconds, [this](const Stage* stage) { return checkpoint_file(stage); }, progress) {
  result_.model.net = options.net;
  result_.model.class_names = data.train.class_names;
  check_frozen_option(options);
}

// Checkpoints are read by runs of the same alone.
Json Run::identity(const Hash128& encoder) const {
  Json data = {{"images", data_.train.size()}, {"content", data_hash_}};
  if (!soft_labels_hash_.empty()) data["soft_labels"] = soft_labels_hash_;
  Json options = Json::parse(describe(options_.train));
  // Where stages alone augment images.
  for (const StageSpec& stage : options_.net.stages) {
    const TrainOptions own = for_stage(options_.train, stage);
    if (!own.augment.none() && own.augment_copies != 0) options["augment_copies"] = own.augment_copies;
  }
  return {{"version", fmt::format("{}, {}", trainer_version, checkpoint_version)},
          {"data", data},
          {"encoder", encoder.hex()},
          {"options", options},
          {"net", to_json(options_.net)}};
}

// Collective: what stages and checkpoints are known by. Throws a data error if the ranks do not hold the same images.
void Run::identify(const Hash128& encoder) {
  keys_ = stage_keys(options_.net, options_.train, data_hash_, soft_labels_hash_, encoder);
  identity_ = identity(encoder).dump();
  checkpoints_.identify(identity_);
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
  open_.lock([this] {
    const auto& folder = options_.folder;
    if (options_.resume && std::filesystem::exists(folder / run::model_name)) {
      fail_field(ErrorKind::usage, "resume", "the run in {} is finished: {} is there; other options need another folder",
                 folder.string(), run::model_name);
    }
    std::error_code ignored;
    if (std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / next_model_name, ignored))) {
      std::filesystem::remove(folder / next_model_name, ignored);
    }
  });
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

// By what others, and --resume, know the run.
void Run::write_description() {
  const Json config = {{"net", to_json(options_.net)},
                       {"data", options_.data_name},
                       {"options", describe(options_.train)},
                       {"command", options_.command}};
  // Paths need not be UTF-8, JSON must.
  write_atomically(options_.folder / "config.json", config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  open_.write_files();
}

void Run::open_folder() {
  on_root([&] {
    const auto& folder = options_.folder;
    if (!open_.is_locked()) lock_folder();
    try {
      open_cache();
    } catch (const std::exception& refused) {
      if (options_.needs_cache) throw;
      progress_.line(fmt::format("cache: not used: {}", refused.what()));
    }
    if (!options_.resume) write_description();  // a run that is continued keeps its own
    open_.open_metrics();
    write_atomically(folder / encoder_name, encoder_file_);
    encoder_file_ = {};
  });
  try {
    if (!comm_.is_root()) open_cache();
  } catch (const std::exception&) {
    // The others do without: they use it for what can be computed again.
  }
  inputs_.emplace(comm_, cache_.get(), options_.frozen, data_.train, data_hash_, progress_);
}

void Run::open_cache() {
  if (options_.cache.empty() || options_.cache_limit == 0) return;
  cache_ = std::make_unique<Cache>(options_.cache, options_.cache_limit,
                                   [this](const std::filesystem::path& file, const std::string& what) {
                                     progress_.line(fmt::format("cache: {} {}", file.string(), what));
                                   });
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
  bytes = comm_.broadcast_bytes(std::move(bytes), 0, [&] { open_.mark(s, 0, false); });
  if (bytes.empty()) return false;
  const TensorFile file = TensorFile::parse(bytes, "cached stage", Checksum::required);
  const StageSpec& spec = options_.net.stages[s];
  trained_.load(file, s);
  trained_.drop_outdated_heads(s);
  // Measured anew: the validation set has no part in the stage's key.
  const bool is_whole = !file.metadata.contains(changed_key) &&
                        std::all_of(spec.heads.begin(), spec.heads.end(),
                                    [&](const std::string& name) { return result_.model.heads.contains(name); });
  StageSummary summary;
  summary.name = spec.name;
  summary.reused = true;
  if (is_whole) validate(spec, summary);
  const auto history = file.metadata.find(history_key);
  if (history != file.metadata.end()) summary.trained_by = history_from_text(history->second);
  const std::string origin = origin_text(summary.trained_by);
  progress_.line(fmt::format("{}: not trained, taken from {}{}{}", spec.name,
                             given != options_.trained.end() ? "a run that shares it" : "the cache",
                             origin.empty() ? "" : "; it was trained " + origin, validation_text(summary)));
  comm_.together([&] {
    for (const Json& epoch : summary.trained_by.epochs) {
      if (comm_.is_root()) open_.metrics().write(epoch);
    }
    summary.trained_by.epochs.clear();
    report_stage(summary);
  });
  return true;
}

}  // namespace bitloom::layerwise
