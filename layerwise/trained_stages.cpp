#include "layerwise/trained_stages.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.h"

namespace bitloom::layerwise {
namespace {

using Json = nlohmann::json;

// The name of a layer's accumulators in files.
std::string states_name(const std::string& layer) { return layer + ".states"; }

std::string head_name(const std::string& layer) { return layer + ".head"; }

}  // namespace

std::vector<std::uint64_t> stage_ids(const NetSpec& net) {
  // The keys of random numbers have room for 20 bits beside epochs and steps.
  constexpr std::uint64_t mask = 0xFFFFF;
  std::map<std::string, std::uint64_t> times_trained;
  std::vector<std::uint64_t> ids;
  for (const StageSpec& stage : net.stages) {
    Hasher hasher;
    for (const std::string& name : stage.train) hasher.update(std::string_view(name)).update(times_trained[name]++);
    std::uint64_t id = hasher.finish().low & mask;
    while (std::ranges::find(ids, id) != ids.end()) id = (id + 1) & mask;
    ids.push_back(id);
  }
  return ids;
}

std::vector<Hash128> stage_keys(const NetSpec& net, const TrainOptions& train, const std::string& data_hash,
                                const std::string& soft_labels_hash, const Hash128& encoder) {
  const Json json = to_json(net);
  const std::vector<std::uint64_t> ids = stage_ids(net);
  std::map<std::string, Hash128> trained_by;
  std::vector<Hash128> keys;
  for (std::size_t s = 0; s < net.stages.size(); ++s) {
    Hasher hasher;
    hasher.update(std::string_view(trainer_version)).update(std::string_view(data_hash)).update(ids[s]);
    const TrainOptions options = for_stage(train, net.stages[s]);
    hasher.update(std::string_view(encoder.hex())).update(std::string_view(describe(options)));
    if (options.teacher_share > 0) hasher.update(std::string_view(soft_labels_hash));
    Json stage = json["stages"][s];
    stage.erase("options");  // described with the run's, as is
    stage.erase("augment");
    hasher.update(std::string_view(stage.dump()));
    for (const std::string& name : net.stages[s].train) {
      for (const Json& layer : json["layers"]) {
        if (layer["name"].get_ref<const std::string&>() == name) hasher.update(std::string_view(layer.dump()));
      }
      if (const auto before = trained_by.find(name); before != trained_by.end()) {
        hasher.update(std::string_view(before->second.hex()));
      }
      for (const std::string& input : net.layer(name).inputs) {
        const auto below = trained_by.find(input);
        if (below != trained_by.end()) hasher.update(std::string_view(below->second.hex()));
      }
    }
    keys.push_back(hasher.finish());
    for (const std::string& name : net.stages[s].train) trained_by[name] = keys.back();
  }
  return keys;
}

bool TrainedStages::trains_again(const std::string& layer, std::size_t s, std::size_t begun) const {
  return std::any_of(net_.stages.begin() + static_cast<std::ptrdiff_t>(s) + 1,
                     net_.stages.begin() + static_cast<std::ptrdiff_t>(begun),
                     [&](const StageSpec& stage) { return contains(stage.train, layer); });
}

bool TrainedStages::trains_again(const std::string& layer, std::size_t s) const {
  return trains_again(layer, s, net_.stages.size());
}

// Accumulators of trits suit the dead zone that they were last trained with.
void TrainedStages::drop_states_of_other_zones(std::size_t s) {
  std::map<std::string, double> zones;
  for (std::size_t stage = 0; stage <= s; ++stage) {
    const StageSpec& spec = net_.stages[stage];
    const double zone = for_stage(train_, spec).layer.rule.dead_zone;
    for (const std::string& name : spec.train) {
      const double before = std::exchange(zones.try_emplace(name, zone).first->second, zone);
      if (stage == s && before != zone && net_.layer(name).ternary) states_.erase(name);
    }
  }
}

Earlier TrainedStages::before(std::size_t s) {
  drop_states_of_other_zones(s);
  Earlier earlier;
  for (const StageSpec& stage : std::span(net_.stages).first(s)) {
    earlier.layers.insert(earlier.layers.end(), stage.train.begin(), stage.train.end());
  }
  earlier.heads = &model_.heads;
  earlier.states = &states_;
  return earlier;
}

void TrainedStages::hand_over(std::size_t s) {
  for (const std::string& name : net_.stages[s].train) states_.erase(name);
}

void TrainedStages::take(mpi::Comm& comm, const Stage& stage, std::size_t s) {
  drop_outdated_heads(s);
  for (std::size_t h = 0; h < stage.heads(); ++h) model_.heads.insert_or_assign(stage.head_layer(h), stage.head(h));
  // With sparse messages rank 0 alone knows the accumulators; where its replies travel for some steps, it is ahead of the
  // weights.
  if (train_.sparse && train_.exchange.staleness != 0) return;
  for (const auto& trainer : stage.trainers()) {
    const std::string& name = trainer->layer().spec().name;
    std::vector<std::int16_t>& states = states_[name];
    states.assign(trainer->states().begin(), trainer->states().end());
    if (train_.sparse && trains_again(name, s)) comm.broadcast(std::span(states));
  }
}

void TrainedStages::drop_states(std::size_t s) {
  std::erase_if(states_, [&](const auto& each) { return !trains_again(each.first, s); });
}

void TrainedStages::drop_outdated_heads(std::size_t s) {
  const StageSpec& spec = net_.stages[s];
  for (const std::string& name : spec.train) {
    if (!contains(spec.heads, name)) model_.heads.erase(name);
  }
}

// Whether a layer that stages up to s trained has learned again since.
bool TrainedStages::is_changed(std::size_t s, std::size_t begun) const {
  return std::any_of(
      net_.stages.begin(), net_.stages.begin() + static_cast<std::ptrdiff_t>(s) + 1, [&](const StageSpec& stage) {
        return std::ranges::any_of(stage.train, [&](const std::string& name) { return trains_again(name, s, begun); });
      });
}

std::vector<std::byte> TrainedStages::bytes(std::size_t s, std::size_t begun, const std::string& history) const {
  const StageSpec& spec = net_.stages[s];
  TensorFile file;
  file.metadata[history_key] = history;
  if (is_changed(s, begun)) file.metadata[changed_key] = "yes";
  for (const BinaryLayer& layer : model_.layers) {
    if (contains(spec.train, layer.spec().name)) layer.save(file);
  }
  for (const std::string& name : spec.heads) {
    const auto head = model_.heads.find(name);
    if (head != model_.heads.end()) head->second.save(file, head_name(name), false);
  }
  for (const std::string& name : spec.train) {
    const auto states = states_.find(name);
    if (states != states_.end()) file.put(states_name(name), {states->second.size()}, states->second);
  }
  return file.serialize();
}

void TrainedStages::save(TensorFile& file, std::size_t stages) const {
  const auto finished = std::span(net_.stages).first(stages);
  for (const BinaryLayer& layer : model_.layers) {
    const bool trained = std::any_of(finished.begin(), finished.end(),
                                     [&](const StageSpec& stage) { return contains(stage.train, layer.spec().name); });
    if (trained) layer.save(file);
  }
  for (const auto& [name, head] : model_.heads) head.save(file, head_name(name), false);
  for (const auto& [name, states] : states_) file.put(states_name(name), {states.size()}, states);
}

void TrainedStages::load(const TensorFile& file, std::size_t s) {
  const StageSpec& spec = net_.stages[s];
  for (BinaryLayer& layer : model_.layers) {
    const std::string& name = layer.spec().name;
    if (contains(spec.train, name)) {
      layer.load(file);
      states_.erase(name);
      if (file.contains(states_name(name)) && trains_again(name, s)) {
        const auto states = file.get(states_name(name), DType::i16, {layer.channels() * layer.patch_bits()}).as<std::int16_t>();
        states_[name].assign(states.begin(), states.end());
      }
    }
    // A layer that learned again without a head has none.
    if (!contains(spec.heads, name) || !file.contains(head_name(name) + ".centre")) continue;
    Head head(spec.head, layer.geometry().output, model_.class_names.size(), 0, 0);
    head.load(file, head_name(name), false);
    model_.heads.insert_or_assign(name, std::move(head));
  }
}

}  // namespace bitloom::layerwise
