// The metrics of a run as typed rows. Unknown events and keys are ignored; what is missing or of the wrong type is an empty
// optional, an empty string or NaN, since a report of half a run is better than none.
#pragma once

#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bitloom::report {

inline constexpr double missing = std::numeric_limits<double>::quiet_NaN();

// A value of a line; `missing` or "" where it is not there or of another type.
double number(const nlohmann::json& line, const char* key);
std::string text(const nlohmann::json& line, const char* key);

struct StartEvent {
  std::string time, version, command, kernels, net, data;
  double ranks = missing, threads = missing;
  double train_images = missing, validation_images = missing, test_images = missing;
};

// One layer at the end of an epoch: its head and its weights.
struct LayerEpoch {
  std::string layer;
  double loss = missing, train_accuracy = missing, validation_accuracy = missing;
  double flips_per_step = missing, active_share = missing;
};

struct EpochEvent {
  std::string stage;
  double epoch = missing, epochs = missing;
  double seconds = missing;  // since the run began
  double images_per_second = missing;
  // With sparse messages: payload of a logical worker's messages and of the answers, per update; share of gradients sent.
  double bytes_up = missing, bytes_down = missing, sent_share = missing;
  std::vector<LayerEpoch> layers;
  std::vector<std::pair<std::string, double>> times;  // seconds of this epoch by part, in the order of the parts table
};

struct StageEvent {
  std::string stage;
  double seconds = missing;  // how long the stage took
  bool reused = false;
  double validation_accuracy = missing;
};

struct ResultEvent {
  double validation_accuracy = missing, test_accuracy = missing, images = missing, seconds = missing;
  double peak_memory_bytes = missing, model_bytes = missing, weight_bits = missing, bit_macs = missing;
  std::vector<std::string> classes;            // as many as confusion has rows
  std::vector<std::vector<double>> confusion;  // square: true class, predicted class
};

struct RunLog {
  StartEvent start;  // the command of the first start (later ones resume it), all else of the last
  std::size_t starts = 0;
  std::vector<EpochEvent> epochs;
  std::vector<StageEvent> stages;     // the last event of each stage, in the order of their first
  std::optional<ResultEvent> result;  // the last one

  std::vector<std::string> stage_names() const;  // of epochs and stage events, in the order of appearance
  std::vector<std::string> layer_names() const;  // of epochs, likewise
};

RunLog read_run(const std::vector<nlohmann::json>& metrics);

}  // namespace bitloom::report
