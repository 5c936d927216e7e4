#include "layerwise/stage_learners.h"

#include <algorithm>
#include <span>

#include "core/text.h"

namespace bitloom::layerwise {
namespace {

std::size_t place_of(const std::string& name, const std::vector<std::string>& names) {
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

}  // namespace

StageLearners::StageLearners(const StageSetup& setup, const Earlier& earlier) {
  const StageSpec& spec = setup.spec;
  const std::uint64_t stream = setup.id * 1000;
  for (const std::string& name : spec.train) {
    const auto found = std::find_if(setup.layers.begin(), setup.layers.end(),
                                    [&](const BinaryLayer& layer) { return layer.spec().name == name; });
    std::span<const std::int16_t> states;
    if (earlier.states != nullptr && earlier.states->contains(name)) states = earlier.states->at(name);
    trainers.push_back(std::make_unique<LayerTrainer>(*found, setup.options.layer, setup.options.seed, stream + layers.size(),
                                                      contains(earlier.layers, name), states));
    layers.push_back({static_cast<std::size_t>(found - setup.layers.begin()), {}, trainers.back()->make_sums()});
  }
  for (const std::string& name : spec.heads) {
    const std::size_t t = place_of(name, spec.train);
    const MapShape& map = trainers[t]->layer().geometry().output;
    auto head = std::make_unique<Head>(spec.head, map, setup.train.classes(), setup.options.seed, stream + heads.size());
    if (earlier.heads != nullptr) {
      const auto found = earlier.heads->find(name);
      if (found != earlier.heads->end()) head->start_from(found->second);
    }
    layers[t].heads.push_back(heads.size());
    Head::Sums sums = head->make_sums();
    heads.push_back({t, std::move(head), std::move(sums)});
  }
}

std::size_t StageLearners::dense_bytes() const {
  std::size_t bytes = (2 * heads.size() + 3) * sizeof(std::int64_t);  // totals
  for (const LearningLayer& layer : layers) {
    bytes += (layer.sums.exact.empty() ? layer.sums.weight.size() * sizeof(std::int32_t) : 0);
    bytes += (layer.sums.exact.size() + layer.sums.statistics.size()) * sizeof(std::int64_t);
  }
  for (const LearningHead& head : heads) {
    Head::Sums sums = head.sums;
    for (const std::span<std::int64_t> part : sums.all()) bytes += part.size_bytes();
  }
  return bytes;
}

void StageLearners::report(std::size_t observed, StepResult& result) {
  result.images += images();
  for (std::size_t t = 0; t < layers.size() && observed > 0; ++t) {
    const MapShape& map = trainers[t]->layer().geometry().output;
    std::int64_t active = 0;
    for (const std::int64_t channel : layers[t].sums.active()) active += channel;
    layers[t].active_share =
        static_cast<double>(active) / static_cast<double>(observed * map.height * map.width * map.channels);
  }
  for (std::size_t h = 0; h < heads.size(); ++h) {
    result.loss[h] += 1e-6 * static_cast<double>(totals[2 * h]);
    result.correct[h] += static_cast<std::size_t>(totals[2 * h + 1]);
  }
  result.stop |= totals[2 * heads.size()] != 0;
  result.checkpoint |= totals[2 * heads.size() + 1] != 0;
}

void StageLearners::save(TensorFile& file, const StageSpec& spec) const {
  for (const auto& trainer : trainers) {
    trainer->layer().save(file);
    trainer->save(file);
  }
  for (std::size_t h = 0; h < heads.size(); ++h) heads[h].head->save(file, spec.heads[h] + ".head", true);
  std::vector<double> shares;
  for (const LearningLayer& layer : layers) shares.push_back(layer.active_share);
  file.put("stage.active_share", {shares.size()}, shares);
}

void StageLearners::load(const TensorFile& file, const StageSpec& spec) {
  const auto shares = file.get("stage.active_share", DType::f64, {layers.size()}).as<double>();
  for (std::size_t t = 0; t < layers.size(); ++t) layers[t].active_share = shares[t];
  for (const auto& trainer : trainers) trainer->load(file);
  for (std::size_t h = 0; h < heads.size(); ++h) heads[h].head->load(file, spec.heads[h] + ".head", true);
}

}  // namespace bitloom::layerwise
