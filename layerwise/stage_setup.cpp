#include "layerwise/stage_setup.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/field.h"
#include "core/text.h"
#include "layerwise/gradient.h"
#include "layerwise/head.h"
#include "layerwise/stage_exchange.h"
#include "layerwise/workers.h"
#include "optim/schedule.h"

namespace bitloom::layerwise {
namespace {

static_assert(most_weight_words == std::size_t{1} << component_offset_bits);

constexpr std::size_t largest_sum = 0x7FFFFFFF;  // largest value in LayerSums::weight

TrainOptions with_signal(TrainOptions options) {
  options.layer.exact = options.signal == "exact";
  return options;
}

const BinaryLayer& layer_named(const std::vector<BinaryLayer>& layers, const std::string& name) {
  return *std::find_if(layers.begin(), layers.end(), [&](const BinaryLayer& layer) { return layer.spec().name == name; });
}

// The loss change of one flip says nothing of several that flip together; a limit of flips would part them.
void check_ties(const BinaryLayer& layer, const TrainOptions& options) {
  if (!layer.ties().any()) return;
  const auto refuse = [&](const char* field, const auto& value, const char* expected) {
    fail_field(ErrorKind::usage, field, "{} for the tied weights of layer '{}' (several thresholds); expected {}", value,
               layer.spec().name, expected);
  };
  if (options.signal != "window") refuse("signal", options.signal, "window");
  if (options.layer.flip_limit != 0) refuse("flip_limit", options.layer.flip_limit, "0");
}

// Throws unless the gradient of a head comes to every layer of a stage.
void check_reach(const StageSpec& spec, const std::vector<BinaryLayer>& layers) {
  std::vector<std::string> reached;
  for (auto name = spec.train.rbegin(); name != spec.train.rend(); ++name) {
    const auto sends = [&](const std::string& above) {
      const LayerSpec& reader = layer_named(layers, above).spec();
      return spec.lets_pass(reader) && contains(reader.inputs, *name);
    };
    if (contains(spec.heads, *name) || std::any_of(reached.begin(), reached.end(), sends)) {
      reached.push_back(*name);
      continue;
    }
    fail(ErrorKind::usage,
         "stage '{}': no gradient comes to layer '{}'; expected a head of its own, or a layer of the stage that reads it and "
         "passes its gradient",
         spec.name, *name);
  }
}

}  // namespace

void check_stage(const StageSpec& spec, const std::vector<BinaryLayer>& layers, const data::Dataset& train,
                 const TrainOptions& options, std::size_t ranks) {
  const std::size_t batch = std::min(options.batch, train.size());
  if (batch < ranks) {
    fail_field(ErrorKind::usage, "batch", "{} images cannot be shared among {} ranks; expected at least one each", batch,
               ranks);
  }
  check_workers(options.workers, batch);
  const StageExchangeKind& exchange = stage_exchange(options);
  exchange.check(options, ranks);
  if (spec.heads.empty()) {
    fail(ErrorKind::usage, "stage '{}': heads: expected at least one of its layers; without a head it learns nothing",
         spec.name);
  }
  if (options.layer.learn_weights) check_reach(spec, layers);
  try {
    data::check_augment(options.augment, train.shape);
  } catch (const Error& error) {
    fail(ErrorKind::usage, "stage '{}': {}", spec.name, error.what());
  }
  if (options.augment.alternating && options.augment_copies % 2 == 1) {
    fail_field(ErrorKind::usage, "augment_copies",
               "{} with alternating flips in stage '{}'; expected an even number, half of which are mirrored, or 0",
               options.augment_copies, spec.name);
  }
  if (options.signal != "window" && options.signal != "exact") {
    fail_field(ErrorKind::usage, "signal", "'{}' is not a learning signal; expected window or exact", options.signal);
  }
  if (options.teacher_share > 0 && train.soft_labels.empty()) {
    fail_field(ErrorKind::usage, "teacher_share", "{:g} in stage '{}', but there is no teacher", options.teacher_share,
               spec.name);
  }
  if (options.signal == "exact") {
    if (spec.train.size() != 1 || spec.heads.size() != 1) {
      fail_field(ErrorKind::usage, "signal", "stage '{}' trains {} layers under {} heads; 'exact' needs one of each", spec.name,
                 spec.train.size(), spec.heads.size());
    }
    // It is the loss of what the net says.
    if (options.label_smoothing > 0 || options.head_dropout > 0 || options.teacher_share > 0) {
      fail_field(ErrorKind::usage, "signal",
                 "'exact' takes no label smoothing ({:g}), no head dropout ({:g}) and no teacher ({:g}) in stage '{}'",
                 options.label_smoothing, options.head_dropout, options.teacher_share, spec.name);
    }
  }
  const mpi::TreeOptions& tree = options.exchange.tree;
  if (options.sparse && sends_all_exact(options) && tree.quorum < 1 && tree.late == mpi::Late::fold) {
    fail_field(
        ErrorKind::usage, "threshold",
        "0 with `signal` exact and a `quorum` of {:g}: loss changes that arrive late are those of other weights; expected more "
        "than 0, by which slopes are sent, a quorum of 1, or that late messages are dropped",
        tree.quorum);
  }
  const StageLimits limits = exchange.limits(options, batch, ranks);
  for (const std::string& name : spec.train) {
    const BinaryLayer& layer = layer_named(layers, name);
    if (limits.held * layer.geometry().input.size() >= (std::size_t{1} << component_offset_bits)) {
      fail_field(ErrorKind::usage, "batch",
                 "{} images of layer '{}' {} are more than this build can index; expected fewer, or more {}", limits.held, name,
                 options.sparse ? "per worker" : "per rank", options.sparse ? "workers" : "ranks");
    }
    const MapShape& map = layer.geometry().output;
    const std::size_t most = largest_sum / (map.height * map.width * largest_quantised);
    if (limits.summed > most) {
      fail_field(ErrorKind::usage, "batch", "{} images of layer '{}' could overflow sums of 32 bits; expected at most {}{}",
                 limits.summed, name, most, limits.summed_by);
    }
    check_rule(options.layer.rule, layer);
    if (options.sparse && sends_all_exact(options) && layer.spec().ternary) {
      fail_field(
          ErrorKind::usage, "threshold",
          "0 for the ternary weights of layer '{}', whose two loss changes are sent as one with `signal` exact; expected "
          "more than 0",
          name);
    }
    if (options.layer.second_moment_decay != 0 && options.layer.rule.name == "greedy") {
      fail_field(ErrorKind::usage, "second_moment_decay",
                 "{:g} with `rule` greedy, which flips the weight that lowers the loss most; "
                 "expected 0",
                 options.layer.second_moment_decay);
    }
    if (options.layer.muon_momentum != 0 && options.layer.rule.name != "accumulate") {
      fail_field(ErrorKind::usage, "muon_momentum", "{:g} with `rule` {}; expected 0, or `rule` accumulate",
                 options.layer.muon_momentum, options.layer.rule.name);
    }
    if (options.layer.muon_momentum != 0 && options.layer.second_moment_decay != 0) {
      fail_field(ErrorKind::usage, "muon_momentum", "{:g} with `second_moment_decay` {:g}; expected one of them to be 0",
                 options.layer.muon_momentum, options.layer.second_moment_decay);
    }
    check_ties(layer, options);
    if (options.layer.flip_limit != 0 && (options.layer.rule.name != "accumulate" || layer.spec().ternary)) {
      fail_field(ErrorKind::usage, "flip_limit",
                 "{} for layer '{}' of {} weights under `rule` {}; expected 0, or binary weights "
                 "under accumulate",
                 options.layer.flip_limit, name, layer.spec().ternary ? "ternary" : "binary", options.layer.rule.name);
    }
  }
  for (const std::string& name : spec.heads) {
    try {
      check_head(spec.head, layer_named(layers, name).geometry().output);
    } catch (const Error& error) {
      fail(ErrorKind::usage, "stage '{}', layer '{}': {}", spec.name, name, error.what());
    }
  }
}

StageSetup make_setup(const simd::Kernels& kernels, mpi::Comm& comm, const StageSpec& spec, std::vector<BinaryLayer>& layers,
                      const data::Dataset& train, const TrainOptions& options, std::uint64_t id) {
  check_stage(spec, layers, train, options, static_cast<std::size_t>(comm.size()));
  return {kernels, comm, spec, layers, train, with_signal(options), id, std::min(options.batch, train.size())};
}

bool StageSetup::learns(std::size_t step) const { return step >= std::min(options.warmup_steps, total_steps() / 10); }

double StageSetup::progress(std::size_t step) const {
  return static_cast<double>(step) / static_cast<double>(std::max<std::size_t>(total_steps(), 1));
}

double StageSetup::rate(std::size_t step) const { return cosine_decay(progress(step), options.final_rate); }

// The heads' learning rate rises at the start of a stage.
double StageSetup::head_rate(std::size_t step) const {
  const std::size_t rise = std::clamp<std::size_t>(options.head_warmup_steps, 1, std::max<std::size_t>(total_steps() / 5, 1));
  return options.head_learning_rate * std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(rise)) * rate(step);
}

}  // namespace bitloom::layerwise
