#include "layerwise/stage_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "core/progress.h"

namespace bitloom::layerwise {
namespace {

using Json = nlohmann::json;

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

double number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return 0;
  const double value = found->get<double>();
  return value >= 0 && value < 1e15 ? value : 0;
}

void read_origin(const Json& origin, StageHistory& history) {
  if (!origin.is_object()) return;
  history.run = text_of(origin, "run");
  history.time = text_of(origin, "time");
  history.seconds = number_of(origin, "seconds");
  history.images = static_cast<std::size_t>(number_of(origin, "images"));
}

}  // namespace

StageHistory history_of(const std::vector<Json>& metrics, const std::string& stage, const std::string& run, double begin) {
  StageHistory history;
  for (const Json& line : metrics) {
    if (text_of(line, "stage") != stage) continue;
    const std::string event = text_of(line, "event");
    if (event == "epoch") {
      history.epochs.push_back(line);
      Json& epoch = history.epochs.back();
      if (epoch.contains("reused")) continue;
      epoch["seconds"] = std::max(0.0, number_of(line, "seconds") - begin);
      epoch["reused"] = true;
    } else if (event == "stage") {
      if (line.contains("trained")) {
        read_origin(line["trained"], history);
      } else if (!line.value("reused", Json(false)).get<bool>()) {
        read_origin(line, history);
        history.run = run;
      }
    }
  }
  return history;
}

Json origin_json(const StageHistory& history) {
  return {{"run", history.run}, {"time", history.time}, {"seconds", history.seconds}, {"images", history.images}};
}

std::string to_text(const StageHistory& history) {
  Json json = origin_json(history);
  json["epochs"] = history.epochs;
  // Paths need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

StageHistory history_from_text(const std::string& text) {
  StageHistory history;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  read_origin(json, history);
  if (!json.is_object() || !json.contains("epochs") || !json["epochs"].is_array()) return history;
  for (const Json& line : json["epochs"]) {
    if (line.is_object() && text_of(line, "event") == "epoch") history.epochs.push_back(line);
  }
  return history;
}

std::string origin_text(const StageHistory& history) {
  if (history.run.empty()) return "";
  const std::filesystem::path near = std::filesystem::path(history.run).lexically_proximate(std::filesystem::current_path());
  const bool inside = !near.empty() && *near.begin() != "..";
  return fmt::format("in {} on {} images by {}{}", format_duration(history.seconds), format_count(history.images),
                     inside ? near.string() : history.run, history.time.empty() ? "" : " (" + history.time + ")");
}

}  // namespace bitloom::layerwise
