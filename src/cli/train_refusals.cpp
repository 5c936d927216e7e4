// Options of `train binary` that would have no effect, by what stages and layers of the net say.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/field_names.h"
#include "cli/train_options.h"
#include "core/error.h"
#include "data/augment.h"

namespace bitloom::cli {

// Refuses options on what no stage trains, of any of the nets that a search looks at.
void TrainSettings::refuse_idle(const Options& options) const {
  std::vector<layerwise::NetSpec> nets;
  for (layerwise::Variant& variant : layerwise::make_variants(run.net, search())) nets.push_back(std::move(variant.net));
  if (nets.empty()) nets.push_back(run.net);

  if (freeze_weights) {
    for (const char* name :
         {"learning-rate", "second-moment-decay", "muon-momentum", "momentum", "flip-share", "flip-rate", "flips-per-update"}) {
      if (!options.asks_for_other(name, "freeze-weights")) continue;
      fail(ErrorKind::usage, "--{}: {} has no effect with --freeze-weights, by which no weight learns; expected one of the two",
           name, options.raw(name));
    }
  }
  const auto teacher_decides = [&](const layerwise::NetSpec& each) {
    return std::ranges::all_of(each.stages, [&](const layerwise::StageSpec& stage) {
      return layerwise::for_stage(run.train, stage).teacher_share >= 1;
    });
  };
  if (!teacher.net.empty() && options.asks_for_other("label-smoothing", "teacher-share") &&
      std::ranges::all_of(nets, teacher_decides)) {
    fail(ErrorKind::usage,
         "--label-smoothing: {} has no effect, since labels have no share in heads' targets; expected a "
         "--teacher-share below 1",
         options.raw("label-smoothing"));
  }
  const auto has_trits = [](const layerwise::NetSpec& each) {
    return std::ranges::any_of(each.layers, [](const layerwise::LayerSpec& layer) { return layer.ternary; });
  };
  if (options.asks_for_other("dead-zone", "net") && std::ranges::none_of(nets, has_trits)) {
    fail(ErrorKind::usage,
         "--dead-zone: {} has no effect, since no layer of net '{}' is ternary; expected --set "
         "{}.weights=ternary",
         options.raw("dead-zone"), run.net.name, run.net.layers.front().name);
  }
}

void TrainSettings::refuse_overruled(const Options& options) const {
  if (resume) return;
  refuse_idle(options);
  const std::vector<layerwise::StageSpec>& stages = run.net.stages;
  layerwise::TrainOptions given = run.train;
  for (const layerwise::RealOption& real : layerwise::real_options()) {
    const std::string name = option_of_field(real.name).substr(2);
    if (!options.is_chosen(name)) continue;
    const double asked = real.of(given);
    const auto overrules = [&](const layerwise::StageSpec& stage) {
      const auto own = stage.options.find(real.name);
      return own != stage.options.end() && own->second != asked;
    };
    const auto gives_way = [&](const layerwise::StageSpec& stage) {
      return layerwise::value_of(layerwise::for_stage(run.train, stage), real.name) != asked;
    };
    if (std::ranges::none_of(stages, overrules) && std::ranges::all_of(stages, gives_way)) {
      fail(ErrorKind::usage, "--{}: {:g} has no effect with the run's other options and net '{}'", name, asked, run.net.name);
    }
    if (!std::ranges::all_of(stages, overrules)) continue;
    fail(ErrorKind::usage, "--{}: {:g} has no effect, since the stages of net '{}' have their own; expected --set {}.{}={:g}",
         name, asked, run.net.name, stages.front().name, real.name, asked);
  }
  // With frozen weights, the control of such a run, what moves them may stand.
  for (const std::string& change : changes) {
    const std::string key = split_setting("--set", change).first;
    const std::size_t dot = key.find('.');
    for (const layerwise::StageSpec& stage : stages) {
      if (freeze_weights || dot == std::string::npos || stage.name != key.substr(0, dot)) continue;
      const auto own = stage.options.find(key.substr(dot + 1));
      if (own == stage.options.end() || layerwise::value_of(layerwise::for_stage(run.train, stage), own->first) == own->second)
        continue;
      fail(ErrorKind::usage, "--set: {} has no effect with the run's other options", change);
    }
  }
  const auto has_own = [&](const layerwise::StageSpec& stage) {
    return !stage.augment.empty() && data::parse_augment(stage.augment) != run.train.augment;
  };
  if (options.is_chosen("augment") && std::ranges::all_of(stages, has_own)) {
    fail(ErrorKind::usage, "--augment: {} has no effect, since the stages of net '{}' have their own", augment, run.net.name);
  }
  const bool augments = !run.train.augment.none() || std::ranges::any_of(stages, [](const layerwise::StageSpec& stage) {
    return !stage.augment.empty() && !data::parse_augment(stage.augment).none();
  });
  if (!augments && options.asks_for_other("augment-copies", "augment")) {
    fail(ErrorKind::usage, "--augment-copies: {} has no effect; it needs another --augment than none",
         run.train.augment_copies);
  }
}

}  // namespace bitloom::cli
