#include "report/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/text.h"

namespace bitloom::report {

namespace {

using nlohmann::json;

// The parts of a step in the order in which they happen; others follow in the order of their names.
constexpr std::array<std::string_view, 8> parts = {"data", "encode",   "prefix", "forward",
                                                   "head", "gradient", "reduce", "update"};
bool is_true(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

// Reused stages have clocks of their own: they are put one after the other, and what this run trained behind them.
void place_on_axis(std::vector<EpochEvent>& epochs) {
  double latest = 0;  // on the axis, so far
  double reused = 0;  // part of it in stages that are complete
  double begin = 0;   // begin of the reused stage at hand
  const EpochEvent* before = nullptr;
  for (EpochEvent& epoch : epochs) {
    const bool same = before != nullptr && before->reused && epoch.reused && before->stage == epoch.stage;
    if (!same) {
      if (before != nullptr && before->reused) reused += latest - begin;
      begin = latest;
    }
    epoch.axis_seconds = (epoch.reused ? begin : reused) + epoch.seconds;
    if (epoch.axis_seconds > latest && epoch.axis_seconds < 1e12) latest = epoch.axis_seconds;
    before = &epoch;
  }
}

void add_unique(std::vector<std::string>& names, const std::string& name) {
  if (!contains(names, name)) names.push_back(name);
}

StartEvent read_start(const json& line, const StartEvent& before) {
  StartEvent start;
  start.time = text(line, "time");
  start.version = text(line, "version");
  start.command = before.command.empty() ? text(line, "command") : before.command;
  start.kernels = text(line, "kernels");
  start.net = text(line, "net");
  start.data = text(line, "data");
  start.ranks = number(line, "ranks");
  start.threads = number(line, "threads");
  start.train_images = number(line, "train_images");
  start.validation_images = number(line, "validation_images");
  start.test_images = number(line, "test_images");
  return start;
}

std::optional<UpdateTimes> read_update_times(const json& exchange, std::string_view who) {
  const auto rows = exchange.find("seconds_per_update");
  if (rows == exchange.end() || !rows->is_object()) return std::nullopt;
  const auto row = rows->find(std::string(who));
  if (row == rows->end() || !row->is_object()) return std::nullopt;
  UpdateTimes times{};
  for (std::size_t p = 0; p < times.size(); ++p) {
    times[p] = number(*row, update_parts[p].data());
    if (!(times[p] >= 0 && times[p] < 1e12)) return std::nullopt;
  }
  return times;
}

EpochEvent read_epoch(const json& line) {
  EpochEvent event;
  event.stage = text(line, "stage");
  event.epoch = number(line, "epoch");
  event.epochs = number(line, "epochs");
  event.seconds = number(line, "seconds");
  event.reused = is_true(line, "reused");
  event.images_per_second = number(line, "images_per_second");
  const auto row = [&](const json& entry) -> LayerEpoch& {
    const std::string name = text(entry, "layer");
    for (LayerEpoch& layer : event.layers) {
      if (layer.layer == name) return layer;
    }
    event.layers.emplace_back();
    event.layers.back().layer = name;
    return event.layers.back();
  };
  for (const json& layer : objects(line, "layers")) {
    LayerEpoch& entry = row(layer);
    entry.flips_per_step = number(layer, "flips_per_step");
    entry.active_share = number(layer, "active_share");
    entry.lower_share = number(layer, "lower_share");
  }
  for (const json& head : objects(line, "heads")) {
    LayerEpoch& entry = row(head);
    entry.loss = number(head, "loss");
    entry.train_accuracy = number(head, "train_accuracy");
    entry.validation_accuracy = number(head, "validation_accuracy");
  }
  const auto exchange = line.find("exchange");
  if (exchange != line.end() && exchange->is_object()) {
    event.bytes_up = number(*exchange, "bytes_per_worker_update");
    // Earlier runs called it an answer.
    event.bytes_down = number(*exchange, exchange->contains("bytes_per_reply") ? "bytes_per_reply" : "bytes_per_answer");
    event.sent_share = number(*exchange, "sent_share");
    event.updates = number(*exchange, "updates");
    for (std::size_t i = 0; i < update_rows.size(); ++i) {
      event.update_times[i] = read_update_times(*exchange, update_rows[i]);
    }
  }
  const auto times = line.find("times");
  if (times != line.end() && times->is_object()) {
    for (const std::string_view part : parts) {
      const double seconds = number(*times, part.data());
      if (seconds >= 0) event.times.emplace_back(part, seconds);
    }
    for (const auto& [name, value] : times->items()) {
      if (std::find(parts.begin(), parts.end(), name) != parts.end() || !value.is_number()) continue;
      event.times.emplace_back(name, value.get<double>());
    }
  }
  return event;
}

StageEvent read_stage(const json& line) {
  StageEvent event;
  event.stage = text(line, "stage");
  event.seconds = number(line, "seconds");
  event.images = number(line, "images");
  event.validation_accuracy = number(line, "validation_accuracy");
  event.plain_accuracy = number(line, "validation_accuracy_plain");
  event.reused = is_true(line, "reused");
  const auto trained = line.find("trained");
  if (trained != line.end() && trained->is_object()) {
    event.trained_by = text(*trained, "run");
    event.trained_at = text(*trained, "time");
    event.trained_seconds = number(*trained, "seconds");
    event.trained_images = number(*trained, "images");
  }
  return event;
}

ResultEvent read_result(const json& line) {
  ResultEvent result;
  result.validation_accuracy = number(line, "validation_accuracy");
  result.test_accuracy = number(line, "test_accuracy");
  result.images = number(line, "images");
  result.seconds = number(line, "seconds");
  result.peak_memory_bytes = number(line, "peak_memory_bytes");
  result.model_bytes = number(line, "model_bytes");
  result.weight_bits = number(line, "weight_bits");
  result.bit_macs = number(line, "bit_macs");
  result.validation_plain = number(line, "validation_accuracy_plain");
  result.test_plain = number(line, "test_accuracy_plain");
  if (const auto views = line.find("views"); views != line.end() && views->is_object()) {
    result.mirror = is_true(*views, "mirror");
    result.shift = number(*views, "shift");
    result.sure = number(*views, "sure");
  }
  // Earlier runs called them voters.
  const auto members = line.find(line.contains("ensemble") ? "ensemble" : "voters");
  if (members != line.end() && members->is_array()) {
    for (const json& member : *members) {
      if (member.is_string()) result.members.push_back(member.get<std::string>());
    }
  }
  result.test_hash = text(line, "test_hash");
  for (const json& each : objects(line, "mistakes")) {
    result.mistakes.push_back({number(each, "image"), number(each, "label"), number(each, "probability")});
  }
  const auto confusion = line.find("confusion");
  if (confusion == line.end() || !confusion->is_array()) return result;
  const std::size_t n = confusion->size();
  const auto classes = line.find("classes");
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> row(n, 0);
    const json& counts = (*confusion)[i];
    for (std::size_t j = 0; j < n && counts.is_array() && j < counts.size(); ++j) {
      if (counts[j].is_number()) row[j] = std::max(0.0, counts[j].get<double>());
    }
    result.confusion.push_back(std::move(row));
    const bool named = classes != line.end() && classes->is_array() && i < classes->size() && (*classes)[i].is_string();
    result.classes.push_back(named ? (*classes)[i].get<std::string>() : fmt::format("class {}", i));
  }
  return result;
}

}  // namespace

std::vector<std::string> RunLog::stage_names() const {
  // Stages run one after the other and end with an event; only the one that runs last can lack it.
  std::vector<std::string> names;
  for (const StageEvent& stage : stages) add_unique(names, stage.stage);
  for (const EpochEvent& epoch : epochs) add_unique(names, epoch.stage);
  return names;
}

bool RunLog::any_reused() const {
  return std::any_of(stages.begin(), stages.end(), [](const StageEvent& stage) { return stage.reused; });
}

std::vector<std::string> RunLog::layer_names() const {
  std::vector<std::string> names;
  for (const EpochEvent& epoch : epochs) {
    for (const LayerEpoch& layer : epoch.layers) add_unique(names, layer.layer);
  }
  return names;
}

std::optional<UpdateTimes> RunLog::update_times(const std::string& stage, std::size_t row) const {
  UpdateTimes sums{};
  double updates = 0;
  for (const EpochEvent& epoch : epochs) {
    if ((!stage.empty() && epoch.stage != stage) || !epoch.update_times[row] || !(epoch.updates > 0)) continue;
    updates += epoch.updates;
    for (std::size_t p = 0; p < sums.size(); ++p) sums[p] += epoch.updates * (*epoch.update_times[row])[p];
  }
  if (updates == 0) return std::nullopt;
  for (double& seconds : sums) seconds /= updates;
  return sums;
}

std::vector<json> objects(const json& object, const char* key) {
  std::vector<json> result;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return result;
  std::copy_if(found->begin(), found->end(), std::back_inserter(result), [](const json& item) { return item.is_object(); });
  return result;
}

double number(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : missing;
}

std::string text(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
}

RunLog read_run(const std::vector<json>& metrics) {
  RunLog log;
  for (const json& line : metrics) {
    if (!line.is_object()) continue;
    const std::string event = text(line, "event");
    if (event == "start") {
      log.start = read_start(line, log.start);
      ++log.starts;
    } else if (event == "epoch") {
      log.epochs.push_back(read_epoch(line));
    } else if (event == "stage") {
      StageEvent stage = read_stage(line);
      const auto same = [&](const StageEvent& other) { return other.stage == stage.stage; };
      const auto found = std::find_if(log.stages.begin(), log.stages.end(), same);
      if (found == log.stages.end()) {
        log.stages.push_back(std::move(stage));
      } else {
        *found = std::move(stage);
      }
    } else if (event == "result") {
      log.result = read_result(line);
    }
  }
  place_on_axis(log.epochs);
  return log;
}

}  // namespace bitloom::report
