#include "layerwise/train_options.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/suggest.h"

namespace bitloom::layerwise {
namespace {

using Json = nlohmann::json;

constexpr const char* training = "Training";
constexpr const char* weights = "Binary weights";
constexpr const char* thresholds = "Thresholds";
constexpr const char* between_workers = "Exchange between workers";

const std::array<RealOption, 21> options_table = {{
    {training, "head-learning-rate", [](TrainOptions& o) -> double& { return o.head_rate; }, 0, 10, true,
     "Adam's learning rate for the heads"},
    {training, "head-decay", [](TrainOptions& o) -> double& { return o.head_decay; }, 0, 1, false,
     "decoupled weight decay of the heads, per step and learning rate"},
    {training, "head-dropout", [](TrainOptions& o) -> double& { return o.head_dropout; }, 0, 0.99, false,
     "probability that a feature of a head is left out of a training image"},
    {training, "label-smoothing", [](TrainOptions& o) -> double& { return o.label_smoothing; }, 0, 0.99, false,
     "probability spread over all classes"},
    {training, "final-rate", [](TrainOptions& o) -> double& { return o.final_rate; }, 0, 1, false,
     "share of the learning rates left at the end of a stage (cosine)"},
    {weights, "learning-rate", [](TrainOptions& o) -> double& { return o.layer.rule.learning_rate; }, 0, 10, true,
     "accumulate: accumulator step per root-mean-square of the gradient"},
    {weights, "momentum", [](TrainOptions& o) -> double& { return o.layer.rule.momentum; }, 0, 0.99999, false,
     "topk, bop: decay of the averaged gradient per step"},
    {weights, "flip-share", [](TrainOptions& o) -> double& { return o.layer.rule.flip_share; }, 0, 1, false,
     "topk: share of a layer's weights flipped per step, at first"},
    {weights, "flip-threshold", [](TrainOptions& o) -> double& { return o.layer.rule.flip_threshold; }, 0, 1000, false,
     "bop: averaged gradient that flips, in root-mean-squares"},
    {weights, "flip-rate", [](TrainOptions& o) -> double& { return o.layer.rule.flip_rate; }, 0, 1, false,
     "stochastic: probability of a flip per root-mean-square of gradient"},
    {weights, "dead-zone", [](TrainOptions& o) -> double& { return o.layer.rule.dead_zone; }, 0, 1, false,
     "ternary layers: accumulators this close to 0 are the weight 0"},
    {thresholds, "threshold-learning-rate", [](TrainOptions& o) -> double& { return o.layer.offset_rate; }, 0, 10, false,
     "Adam's learning rate for thresholds"},
    {thresholds, "initial-offset", [](TrainOptions& o) -> double& { return o.layer.initial_offset; }, -10, 10, false,
     "threshold at the start, in standard deviations from the mean"},
    {thresholds, "smallest-offset", [](TrainOptions& o) -> double& { return o.layer.smallest_offset; }, -10, 10, false,
     "thresholds stay above this, in the same unit"},
    {thresholds, "largest-offset", [](TrainOptions& o) -> double& { return o.layer.largest_offset; }, -10, 10, false,
     "thresholds stay below this"},
    {thresholds, "active-share", [](TrainOptions& o) -> double& { return o.layer.active_share; }, 0, 1, true,
     "share of pixels near enough to the threshold to get gradient"},
    {thresholds, "initial-window", [](TrainOptions& o) -> double& { return o.layer.initial_window; }, 0, 10, true,
     "width of that neighbourhood at the start, in standard deviations"},
    {thresholds, "largest-window", [](TrainOptions& o) -> double& { return o.layer.largest_window; }, 0, 10, true,
     "and at most"},
    {thresholds, "code-target", [](TrainOptions& o) -> double& { return o.layer.code_target; }, 0, 64, true,
     "mean magnitude of gradient codes: how finely gradients are rounded"},
    {between_workers, "head-urgency", [](TrainOptions& o) -> double& { return o.head_urgency; }, 0.01, 100, false,
     "sparse: a worker sends gradients of heads from so many times smaller ones on than those of weights"},
    {between_workers, "threshold-urgency", [](TrainOptions& o) -> double& { return o.threshold_urgency; }, 0.01, 100, false,
     "sparse: likewise gradients of channels' thresholds and heads' biases, which are few"},
}};

std::string in_net_file(const RealOption& option) {
  std::string name = option.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const RealOption* find(const std::string& name) {
  for (const RealOption& option : options_table) {
    if (in_net_file(option) == name) return &option;
  }
  return nullptr;
}

const RealOption& checked(const std::string& where, const std::string& name, double value) {
  const RealOption* option = find(name);
  if (option == nullptr) {
    std::vector<std::string> known;
    for (const RealOption& each : options_table) known.push_back(in_net_file(each));
    fail(ErrorKind::usage, "{}: unknown name '{}'{}", where, name, did_you_mean(name, known));
  }
  if (!(option->open ? value > option->low : value >= option->low) || !(value <= option->high)) {
    fail(ErrorKind::usage, "{}.{}: {} is out of range; expected {} {:g} to {:g}", where, name, value,
         option->open ? "above" : "from", option->low, option->high);
  }
  return *option;
}

// Options that must suit one another.
void check_offsets(const std::string& where, const LayerOptions& layer) {
  if (layer.smallest_offset > layer.largest_offset) {
    fail(ErrorKind::usage, "{}smallest-offset: {:g} is above largest-offset, {:g}", where, layer.smallest_offset,
         layer.largest_offset);
  }
  if (layer.initial_offset < layer.smallest_offset || layer.initial_offset > layer.largest_offset) {
    fail(ErrorKind::usage, "{}initial-offset: {:g} is not between smallest-offset, {:g}, and largest-offset, {:g}", where,
         layer.initial_offset, layer.smallest_offset, layer.largest_offset);
  }
}

}  // namespace

std::span<const RealOption> real_options() { return options_table; }

bool is_stage_option(const std::string& name) { return find(name) != nullptr; }

void check_stage_option(const std::string& where, const std::string& name, double value) { checked(where, name, value); }

TrainOptions for_stage(TrainOptions options, const StageSpec& stage) {
  if (!stage.augment.empty()) options.augment = data::parse_augment(stage.augment);
  for (const auto& [name, value] : stage.options) {
    checked(fmt::format("stage '{}': options", stage.name), name, value).of(options) = value;
  }
  check_offsets(stage.options.empty() ? "--" : fmt::format("stage '{}': ", stage.name), options.layer);
  return options;
}

std::string describe(const TrainOptions& options) {
  const LayerOptions& layer = options.layer;
  const RuleOptions& rule = layer.rule;
  Json json = {{"batch", options.batch},
               {"seed", options.seed},
               {"signal", options.signal},
               {"augment", data::to_string(options.augment)},
               {"head_rate", options.head_rate},
               {"head_decay", options.head_decay},
               {"head_dropout", options.head_dropout},
               {"label_smoothing", options.label_smoothing},
               {"final_rate", options.final_rate},
               {"warmup_steps", options.warmup_steps},
               {"head_warmup_steps", options.head_warmup_steps},
               {"offset_rate", layer.offset_rate},
               {"initial_offset", layer.initial_offset},
               {"smallest_offset", layer.smallest_offset},
               {"largest_offset", layer.largest_offset},
               {"active_share", layer.active_share},
               {"initial_window", layer.initial_window},
               {"largest_window", layer.largest_window},
               {"code_target", layer.code_target},
               {"learn_weights", layer.learn_weights},
               {"rule", rule.name},
               {"learning_rate", rule.learning_rate},
               {"momentum", rule.momentum},
               {"flip_share", rule.flip_share},
               {"flip_threshold", rule.flip_threshold},
               {"flip_rate", rule.flip_rate},
               {"dead_zone", rule.dead_zone}};
  // Without augmentation all copies are the image itself.
  if (!options.augment.none() && options.augment_copies != 0) json["augment_copies"] = options.augment_copies;
  if (options.repeat != 1) json["repeat"] = options.repeat;
  if (options.workers != 1) json["workers"] = options.workers;
  if (layer.flip_limit != 0) json["flip_limit"] = layer.flip_limit;
  if (!options.sparse) return json.dump();
  const mpi::ExchangeOptions& exchange = options.exchange;
  if (exchange.staleness != 0) json["staleness"] = exchange.staleness;
  if (exchange.tree.quorum < 1) {
    json["partial"] = {{"quorum", exchange.tree.quorum},
                       {"deadline", exchange.tree.deadline_seconds},
                       {"late", static_cast<int>(exchange.tree.late)}};
  }
  // Without a threshold, sparse messages give what dense sums do. The tree changes nothing.
  if (!exchange.exact()) {
    // The number is to be raised with every change of what such messages do to training.
    json["exchange"] = {{"version", 3},
                        {"value_bits", exchange.value_bits},
                        {"urgency", {options.threshold_urgency, options.head_urgency}},
                        {"residuals", static_cast<int>(exchange.residuals)},
                        {"statistics_every", exchange.statistics_every}};
    if (exchange.bytes_per_update != 0) {
      json["exchange"]["budget"] = exchange.bytes_per_update;
    } else if (exchange.compression != 0) {
      json["exchange"]["compression"] = {exchange.compression, exchange.last_messages};
    } else {
      json["exchange"]["threshold"] = exchange.threshold;
    }
  }
  return json.dump();
}

}  // namespace bitloom::layerwise
