#include "layerwise/train_options.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"

namespace bitloom::layerwise {
namespace {

using Json = nlohmann::json;

constexpr const char* training = "Training";
constexpr const char* teacher = "Teacher";
constexpr const char* weights = "Binary weights";
constexpr const char* thresholds = "Thresholds";
constexpr const char* between_workers = "Exchange between workers";

const auto options_table = std::to_array<RealOption>({
    {training, "head_learning_rate", [](TrainOptions& o) -> double& { return o.head_learning_rate; }, 0, 10, true,
     "Learning rate of heads (Adam)"},
    {training, "head_decay", [](TrainOptions& o) -> double& { return o.head_decay; }, 0, 1, false,
     "Decoupled weight decay of heads, per step and learning rate; 0 disables it"},
    {training, "head_dropout", [](TrainOptions& o) -> double& { return o.head_dropout; }, 0, 0.99, false,
     "Probability that a feature of a head is left out of a training image; 0 disables dropout"},
    {training, "label_smoothing", [](TrainOptions& o) -> double& { return o.label_smoothing; }, 0, 0.99, false,
     "Probability of the label that is spread over all classes; 0 disables smoothing"},
    {teacher, "teacher_share", [](TrainOptions& o) -> double& { return o.teacher_share; }, 0, 1, false,
     "Share of heads' targets that the teacher's probabilities have; the label has the rest"},
    {training, "final_rate", [](TrainOptions& o) -> double& { return o.final_rate; }, 0, 1, false,
     "Share of the learning rates at the end of a stage (cosine schedule)"},
    {weights, "learning_rate", [](TrainOptions& o) -> double& { return o.layer.rule.learning_rate; }, 0, 10, true,
     "Learning rate of weights: step of the accumulator, whose range is -1 to 1, per root mean square of gradient"},
    {weights, "second_moment_decay", [](TrainOptions& o) -> double& { return o.layer.second_moment_decay; }, 0, 0.99999, false,
     "Decay per step of mean squares by row and column that divide the gradient of weights (Adafactor), "
     "instead of a net's Muon; 0: one of all"},
    {weights, "muon_momentum", [](TrainOptions& o) -> double& { return o.layer.muon_momentum; }, 0, 0.99, false,
     "Decay per step of the momentum whose orthogonal factor moves weights in the gradient's place (Muon), "
     "also of a net's second moments; 0 disables it"},
    {weights, "momentum", [](TrainOptions& o) -> double& { return o.layer.rule.momentum; }, 0, 0.99999, false,
     "Decay of the averaged gradient per step (for topk)"},
    {weights, "flip_share", [](TrainOptions& o) -> double& { return o.layer.rule.flip_share; }, 0, 1, false,
     "Share of a layer's weights that flip in a step, at the start (for topk)"},
    {weights, "flip_rate", [](TrainOptions& o) -> double& { return o.layer.rule.flip_rate; }, 0, 1, false,
     "Probability of a flip per root mean square of gradient (for stochastic)"},
    {weights, "dead_zone", [](TrainOptions& o) -> double& { return o.layer.rule.dead_zone; }, 0, 1, false,
     "Largest accumulator that is the weight 0 (for ternary layers)"},
    {thresholds, "threshold_learning_rate", [](TrainOptions& o) -> double& { return o.layer.threshold_learning_rate; }, 0, 10,
     false, "Learning rate of thresholds (Adam); 0 disables learning"},
    {thresholds, "initial_offset", [](TrainOptions& o) -> double& { return o.layer.initial_offset; }, -10, 10, false,
     "Threshold at the start, in standard deviations from the mean of the counts; of several, their middle"},
    {thresholds, "smallest_offset", [](TrainOptions& o) -> double& { return o.layer.smallest_offset; }, -10, 10, false,
     "Smallest threshold, in standard deviations"},
    {thresholds, "largest_offset", [](TrainOptions& o) -> double& { return o.layer.largest_offset; }, -10, 10, false,
     "Largest threshold, in standard deviations"},
    {thresholds, "active_share", [](TrainOptions& o) -> double& { return o.layer.active_share; }, 0, 1, true,
     "Share of pixels within the surrogate-gradient window, which get gradient, at the start of a stage"},
    {thresholds, "final_active_share", [](TrainOptions& o) -> double& { return o.layer.final_active_share; }, 0, 1, false,
     "The same at its end, to which it goes along with the learning rates; 0: as at the start"},
    {thresholds, "initial_window", [](TrainOptions& o) -> double& { return o.layer.initial_window; }, 0, 10, true,
     "Half width of the surrogate-gradient window at the start, in standard deviations"},
    {thresholds, "largest_window", [](TrainOptions& o) -> double& { return o.layer.largest_window; }, 0, 10, true,
     "Largest half width of the surrogate-gradient window, in standard deviations"},
    {between_workers, "head_threshold_scale", [](TrainOptions& o) -> double& { return o.head_threshold_scale; }, 0.01, 100,
     false, "Threshold scale of heads: ratio of the smallest gradients that are sent, of weights to heads"},
    {between_workers, "bias_threshold_scale", [](TrainOptions& o) -> double& { return o.bias_threshold_scale; }, 0.01, 100,
     false, "Threshold scale of channels' thresholds and heads' biases, which are few: the same ratio"},
});

const RealOption* find(const std::string& name) {
  // Names in nets of earlier versions.
  const std::string_view now = name == "head_urgency"        ? "head_threshold_scale"
                               : name == "threshold_urgency" ? "bias_threshold_scale"
                                                             : std::string_view(name);
  for (const RealOption& option : options_table) {
    if (option.name == now) return &option;
  }
  return nullptr;
}

const RealOption& checked(const std::string& where, const std::string& name, double value) {
  const RealOption* option = find(name);
  if (option == nullptr) {
    std::vector<std::string> known;
    for (const RealOption& each : options_table) known.emplace_back(each.name);
    fail(ErrorKind::usage, "{}: unknown name '{}'{}", where, name, did_you_mean(name, known));
  }
  if (!(option->open ? value > option->low : value >= option->low) || !(value <= option->high)) {
    fail(ErrorKind::usage, "{}.{}: {} is out of range; expected {} {:g} to {:g}", where, name, value,
         option->open ? "above" : "from", option->low, option->high);
  }
  return *option;
}

// Options that must suit one another, some of which the stage may set itself.
void check_offsets(const StageSpec& stage, const LayerOptions& layer) {
  const auto refuse = [&](const char* field, const std::string& problem) {
    if (stage.options.empty()) fail_field(ErrorKind::usage, field, "{}", problem);
    fail(ErrorKind::usage, "stage '{}': {}: {}", stage.name, field, problem);
  };
  if (layer.smallest_offset > layer.largest_offset) {
    refuse("smallest_offset",
           fmt::format("{:g} is above the largest offset, {:g}", layer.smallest_offset, layer.largest_offset));
  }
  if (layer.initial_offset < layer.smallest_offset || layer.initial_offset > layer.largest_offset) {
    refuse("initial_offset", fmt::format("{:g} is not between the smallest offset, {:g}, and the largest, {:g}",
                                         layer.initial_offset, layer.smallest_offset, layer.largest_offset));
  }
}

// A stage may say by what accumulators move best in it: Muon or second moments. It gives way to a run that asks for the other
// one, or trains in a way for which a net's Muon is not meant.
void choose_momentum(const StageSpec& stage, TrainOptions& options) {
  LayerOptions& layer = options.layer;
  const bool own_muon = stage.options.contains("muon_momentum");
  const bool own_moments = stage.options.contains("second_moment_decay");
  const bool moves = layer.rule.name == "accumulate" && options.signal == "window" && layer.learn_weights;
  if (own_muon && (!moves || (!own_moments && layer.second_moment_decay != 0))) layer.muon_momentum = 0;
  if (own_moments && !own_muon && layer.muon_momentum != 0) layer.second_moment_decay = 0;
}

}  // namespace

std::span<const RealOption> real_options() { return options_table; }

bool is_stage_option(const std::string& name) { return find(name) != nullptr; }

double value_of(TrainOptions options, const std::string& name) { return find(name)->of(options); }

void check_stage_option(const std::string& where, const std::string& name, double value) { checked(where, name, value); }

TrainOptions for_stage(TrainOptions options, const StageSpec& stage) {
  if (!stage.augment.empty()) options.augment = data::parse_augment(stage.augment);
  const LayerOptions run = options.layer;
  for (const auto& [name, value] : stage.options) {
    checked(fmt::format("stage '{}': options", stage.name), name, value).of(options) = value;
  }
  if (run.muon_momentum != 0 && run.second_moment_decay != 0) {
    // A run that asks for both is refused, whatever the stage says.
    options.layer.muon_momentum = run.muon_momentum;
    options.layer.second_moment_decay = run.second_moment_decay;
  } else {
    choose_momentum(stage, options);
  }
  check_offsets(stage, options.layer);
  return options;
}

std::string describe(const TrainOptions& options) {
  const LayerOptions& layer = options.layer;
  const RuleOptions& rule = layer.rule;
  Json json = {{"batch", options.batch},
               {"seed", options.seed},
               {"signal", options.signal},
               {"augment", data::to_string(options.augment)},
               {"head_rate", options.head_learning_rate},
               {"head_decay", options.head_decay},
               {"head_dropout", options.head_dropout},
               {"label_smoothing", options.label_smoothing},
               {"final_rate", options.final_rate},
               {"warmup_steps", options.warmup_steps},
               {"head_warmup_steps", options.head_warmup_steps},
               {"offset_rate", layer.threshold_learning_rate},
               {"initial_offset", layer.initial_offset},
               {"smallest_offset", layer.smallest_offset},
               {"largest_offset", layer.largest_offset},
               {"active_share", layer.active_share},
               {"initial_window", layer.initial_window},
               {"largest_window", layer.largest_window},
               {"code_target", code_target},
               {"learn_weights", layer.learn_weights},
               {"rule", rule.name},
               {"learning_rate", rule.learning_rate},
               {"momentum", rule.momentum},
               {"flip_share", rule.flip_share},
               {"flip_threshold", 0.05},  // of a rule that is gone; earlier runs can be resumed and reused
               {"flip_rate", rule.flip_rate},
               {"dead_zone", rule.dead_zone}};
  // Without augmentation all copies are the image itself.
  if (!options.augment.none() && options.augment_copies != 0) json["augment_copies"] = options.augment_copies;
  if (options.teacher_share != 0) json["teacher_share"] = options.teacher_share;
  if (options.repeat != 1) json["repeat"] = options.repeat;
  if (options.workers != 1) json["workers"] = options.workers;
  if (layer.second_moment_decay != 0) json["second_moment_decay"] = layer.second_moment_decay;
  if (layer.muon_momentum != 0) json["muon_momentum"] = layer.muon_momentum;
  if (layer.final_active_share != 0) json["final_active_share"] = layer.final_active_share;
  if (layer.flip_limit != 0) json["flip_limit"] = layer.flip_limit;
  if (!options.sparse) return json.dump();
  const mpi::ExchangeOptions& exchange = options.exchange;
  if (exchange.staleness != 0) json["staleness"] = exchange.staleness;
  // Since changes that arrive late are turned where a weight has flipped.
  if (exchange.staleness != 0 && options.signal == "exact" && exchange.exact()) json["turned"] = true;
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
                        {"urgency", {options.bias_threshold_scale, options.head_threshold_scale}},
                        {"residuals", static_cast<int>(exchange.error_feedback)},
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
