#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/file.h"
#include "layerwise/run.h"

namespace bitloom::layerwise {

using Json = nlohmann::json;

// Rank 0's, of the state of now, without what the stage under way saves itself.
TensorFile Run::checkpoint_file(const Stage* stage) {
  open_.metrics().sync();  // which is an error where the folder was deleted or replaced
  TensorFile file;
  Json notes = {{"stage", stage_},
                {"seconds", open_.elapsed()},
                {"images", result_.images},
                {"metrics_bytes", open_.metrics().size()},
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
  trained_.save(file, stage_);
  return file;
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
  const auto read = [&](const std::function<void()>& sign) {
    const run::FoundCheckpoint found = open_.find_checkpoint(identity_, sign);
    if (found.file) {
      bytes = read_bytes(found.path);
    } else {
      run::set_aside(found.damaged);  // the next one needs the place
    }
  };
  const auto alive = [this] { open_.mark(0, 0, false); };
  run::on_root_for_long(comm_, read, alive);
  bytes = comm_.broadcast_bytes(std::move(bytes), 0, alive);
  if (bytes.empty()) {
    progress_.line("no usable checkpoint: training starts from the beginning");
    on_root([&] {
      open_.metrics().truncate_to(0);
      write_description();  // there may be other options now
    });
    return;
  }
  TensorFile file = TensorFile::parse(bytes, run::checkpoint_name, Checksum::required);
  const Json notes = Json::parse(file.get_metadata("bitloom.checkpoint"));
  stage_ = notes["stage"];
  open_.set_earlier(notes["seconds"]);
  result_.images = notes["images"];
  for (const Json& each : notes.value("stages", Json::array())) {
    const auto accuracy = [&](const char* key) {
      return each.contains(key) && !each[key].is_null() ? std::optional<double>(each[key].get<double>()) : std::nullopt;
    };
    result_.stages.push_back({each["name"], each["seconds"], each["reused"], accuracy("validation_accuracy"),
                              accuracy("plain_accuracy"), each.value("images", std::size_t{0}),
                              history_from_text(each.value("trained", Json()).dump())});
  }
  for (std::size_t s = 0; s < stage_; ++s) trained_.load(file, s);
  if (notes["in_stage"].get<bool>()) {
    resume_from_ = std::move(file);
    read_epoch(notes.value("epoch", Json::object()));
  }
  if (comm_.is_root()) open_.metrics().truncate_to(notes["metrics_bytes"]);
}

}  // namespace bitloom::layerwise
