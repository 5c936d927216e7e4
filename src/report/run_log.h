// The metrics of a run as typed rows. Unknown events and keys are ignored; what is missing or of the wrong type is an empty
// optional, an empty string or NaN, since a report of half a run is better than none.
#pragma once

#include <array>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bitloom::report {

inline constexpr double missing = std::numeric_limits<double>::quiet_NaN();

// A value of a line; `missing` or "" where it is not there or of another type.
double number(const nlohmann::json& line, const char* key);
std::string text(const nlohmann::json& line, const char* key);
// The objects of an array, nothing where it is missing or something else.
std::vector<nlohmann::json> objects(const nlohmann::json& object, const char* key);

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
  double lower_share = missing;  // of flips, those that lower a minibatch's loss
};

// Where the time of an update by sparse messages goes: seconds per part, of the mean of the ranks, of rank 0, or of the rank
// that waits least.
inline constexpr std::array<std::string_view, 4> update_parts = {"compute", "encode", "update", "wait"};
inline constexpr std::array<std::string_view, 3> update_rows = {"mean", "root", "busiest"};
using UpdateTimes = std::array<double, update_parts.size()>;

struct EpochEvent {
  std::string stage;
  double epoch = missing, epochs = missing;
  double seconds = missing;  // since the run began; of a reused stage: since that stage began, in the run that trained it
  // On the time axis of charts: as if this run had trained its reused stages itself.
  double axis_seconds = missing;
  bool reused = false;
  double images_per_second = missing;
  // With sparse messages: payload of a logical worker's messages and of the replies, per update; share of gradients sent.
  double bytes_up = missing, bytes_down = missing, sent_share = missing;
  double updates = missing;
  std::array<std::optional<UpdateTimes>, update_rows.size()> update_times;
  std::vector<LayerEpoch> layers;
  std::vector<std::pair<std::string, double>> times;  // seconds of this epoch by part, in the order of the parts table
};

struct StageEvent {
  std::string stage;
  double seconds = missing;  // how long the stage took in this run
  double images = missing;   // images that passed through training steps in this run
  bool reused = false;
  // For a reused one: the run that trained it, when, how long, on how many images.
  std::string trained_by, trained_at;
  double trained_seconds = missing, trained_images = missing;
  // The vote of the stage's heads, over mirror images too where the net has it; and on images as they are.
  double validation_accuracy = missing, plain_accuracy = missing;
};

// A test image that the net of a finished run was surely wrong about.
struct RunMistake {
  double image = missing, label = missing;  // its number in the set; the class that it was taken for
  double probability = missing;             // of that class
};

struct ResultEvent {
  double validation_accuracy = missing, test_accuracy = missing, images = missing, seconds = missing;
  double validation_plain = missing, test_plain = missing;  // without mirror and shifted images
  std::vector<std::string> members;                         // layers whose heads vote
  bool mirror = false;
  double shift = missing;  // pixels
  double sure = missing;   // probability with which an image had no more views
  double peak_memory_bytes = missing, model_bytes = missing, weight_bits = missing, bit_macs = missing;
  std::vector<std::string> classes;            // as many as confusion has rows
  std::vector<std::vector<double>> confusion;  // square: true class, predicted class
  std::vector<RunMistake> mistakes;            // the surest
  std::string test_hash;                       // of the test images; empty: unknown
};

struct RunLog {
  StartEvent start;  // the command of the first start (later ones resume it), all else of the last
  std::size_t starts = 0;
  std::vector<EpochEvent> epochs;
  std::vector<StageEvent> stages;     // the last event of each stage, in the order of their first
  std::optional<ResultEvent> result;  // the last one

  std::vector<std::string> stage_names() const;  // names in epochs and stage events, in the order of appearance
  std::vector<std::string> layer_names() const;  // names in epochs, in the same order
  bool any_reused() const;
  // The mean over the updates of a stage, or of all for "", of a row of update_rows.
  std::optional<UpdateTimes> update_times(const std::string& stage, std::size_t row) const;
};

RunLog read_run(const std::vector<nlohmann::json>& metrics);

}  // namespace bitloom::report
