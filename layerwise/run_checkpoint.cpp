#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/file.h"
#include "core/text.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {

using Json = nlohmann::json;

void Run::save_trained(TensorFile& file) const {
  const auto finished = std::span(options_.net.stages).first(stage_);
  for (const BinaryLayer& layer : result_.model.layers) {
    const bool trained = std::any_of(finished.begin(), finished.end(),
                                     [&](const StageSpec& stage) { return contains(stage.train, layer.spec().name); });
    if (trained) layer.save(file);
  }
  for (const auto& [name, head] : result_.model.heads) head.save(file, name + ".head", false);
  for (const auto& [name, states] : states_) file.put(states_name(name), {states.size()}, states);
}

// Rank 0's, of the state of now; of_stage: what the stage under way saved.
TensorFile Run::checkpoint_file(const Stage* stage, TensorFile of_stage) {
  metrics_->sync();  // which is an error where the folder was deleted or replaced
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
                               {"images", summary.images},
                               {"trained", origin_json(summary.trained_by)},
                               {"plain_accuracy", layerwise::to_json(summary.plain_accuracy)},
                               {"validation_accuracy", layerwise::to_json(summary.validation_accuracy)}});
  }
  if (stage != nullptr) notes["epoch"] = epoch_json();
  file.metadata["bitloom.checkpoint"] = notes.dump();
  result_.model.encoder.save(file);
  save_trained(file);
  // Layers and heads that learn again are there as they are now.
  for (auto& [name, tensor] : of_stage.tensors) file.tensors.insert_or_assign(name, std::move(tensor));
  return file;
}

// Collective: it is on the disk when this returns.
void Run::write_checkpoint(Stage* stage) {
  TensorFile of_stage;
  if (stage != nullptr) stage->save(of_stage);
  unfinished_.reset();
  on_root([&] {
    if (checkpoint_error_ != nullptr) std::rethrow_exception(checkpoint_error_);
    checkpoints_->write(checkpoint_file(stage, std::move(of_stage)), identity_);
  });
}

// On all ranks after the same step: the state of now, which is gathered and written while training goes on.
void Run::begin_checkpoint(Stage& stage) {
  const Clock::time_point start = Clock::now();
  TensorFile of_stage;
  stage.begin_save(of_stage);
  if (!comm_.is_root()) return;
  try {
    checkpoints_->finish();
    unfinished_ = checkpoint_file(&stage, std::move(of_stage));
  } catch (...) {
    checkpoint_error_ = std::current_exception();
  }
  unfinished_since_ = start;
  checkpoint_wait_ = seconds_since(start);
}

// At rank 0, when all of it is here.
void Run::end_checkpoint(Stage& stage) {
  const Clock::time_point start = Clock::now();
  stage.end_save(*unfinished_);
  checkpoint_wait_ += seconds_since(start);
  const double together = seconds_since(unfinished_since_);
  // Encoding and sending take their time from training: a quarter of it at most.
  if (options_.checkpoint_seconds > 0) checkpoint_spacing_ = 4 * together;
  if (std::exchange(told_of_checkpoint_, stage_ + 1) != stage_ + 1) {
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : unfinished_->tensors) bytes += tensor.bytes.size();
    progress_.line(
        fmt::format("{}: a checkpoint every {:.3g} s, of {}; the first was gathered in {:.2g} s beside training, which "
                    "waited {:.0f} ms",
                    stage.spec().name, std::max(options_.checkpoint_seconds, checkpoint_spacing_), format_bytes(bytes),
                    together, 1e3 * checkpoint_wait_));
  }
  checkpoints_->begin(*std::exchange(unfinished_, std::nullopt), identity_);
}

Json Run::epoch_json() const {
  const StepResult& sums = epoch_.sums;
  Json json = {{"steps", epoch_.steps},
               {"seconds", epoch_.seconds},
               {"images", sums.images},
               {"loss", sums.loss},
               {"correct", sums.correct},
               {"flips", sums.flips},
               {"active_share", sums.active_share},
               {"lower_share", sums.lower_share},
               {"exact_steps", epoch_.exact_steps}};
  // In sparse runs they would stand beside the updates of one process.
  if (!options_.train.sparse) json["times"] = layerwise::to_json(sums.times);
  return json;
}

void Run::read_epoch(const Json& json) {
  epoch_ = {};
  if (json.empty()) return;
  epoch_.steps = json["steps"];
  epoch_.seconds = json["seconds"];
  StepResult& sums = epoch_.sums;
  sums.images = json["images"];
  const auto numbers = [&](const char* name) {
    std::vector<double> values;  // JSON has null for what is not finite
    for (const Json& value : json[name]) values.push_back(value.is_number() ? value.get<double>() : std::nan(""));
    return values;
  };
  sums.loss = numbers("loss");
  sums.correct = json["correct"].get<std::vector<std::size_t>>();
  sums.flips = json["flips"].get<std::vector<std::size_t>>();
  sums.active_share = numbers("active_share");
  sums.lower_share = numbers("lower_share");
  epoch_.exact_steps = json["exact_steps"];
  if (json.contains("times") && comm_.is_root()) sums.times = times_of(json["times"]);
}

void Run::read_checkpoint() {
  std::vector<std::byte> bytes;
  on_root([&] {
    const run::FoundCheckpoint found = run::find_checkpoint(options_.folder);
    for (const std::string& reason : found.reasons) progress_.line(fmt::format("{}; trying the one before", reason));
    run::set_aside(found.damaged);
    if (!found.file) return;
    run::require_identity(found.file->metadata, found.path, identity_, options_.field_name);
    bytes = read_bytes(found.path);
  });
  bytes = comm_.broadcast_bytes(std::move(bytes));
  if (bytes.empty()) {
    progress_.line("no usable checkpoint: training starts from the beginning");
    if (comm_.is_root()) metrics_->truncate_to(0);
    return;
  }
  TensorFile file = TensorFile::parse(bytes, run::checkpoint_name, Checksum::required);
  const Json notes = Json::parse(file.get_metadata("bitloom.checkpoint"));
  stage_ = notes["stage"];
  earlier_seconds_ = notes["seconds"];
  result_.images = notes["images"];
  for (const Json& each : notes.value("stages", Json::array())) {
    const auto accuracy = [&](const char* key) {
      return each.contains(key) && !each[key].is_null() ? std::optional<double>(each[key].get<double>()) : std::nullopt;
    };
    result_.stages.push_back({each["name"], each["seconds"], each["reused"], accuracy("validation_accuracy"),
                              accuracy("plain_accuracy"), each.value("images", std::size_t{0}),
                              history_from_text(each.value("trained", Json()).dump())});
  }
  for (std::size_t s = 0; s < stage_; ++s) load_stage(file, s);
  if (notes["in_stage"].get<bool>()) {
    resume_from_ = std::move(file);
    read_epoch(notes.value("epoch", Json::object()));
  }
  if (comm_.is_root()) metrics_->truncate_to(notes["metrics_bytes"]);
}

}  // namespace bitloom::layerwise
