// Small stages with everything they stand on, for the tests of this folder, of tests/mpi and tests/parallel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerwise/stage.h"
#include "tests/layerwise/cases.h"

namespace bitloom::test {

struct StageCase {
  std::string name;
  std::string net;  // JSON
  layerwise::StageSpec stage;
  layerwise::TrainOptions options;
};

// One layer; two joint layers with a head each, or one for both; three with concatenation, ternary weights and a single
// class_conv head; one layer that learns from the exact loss change of every flip.
inline std::vector<StageCase> stage_cases() {
  const std::string begin = std::string("{") + thermometer + R"(, "layers": [{"name": "a", "width": 40})";
  const std::string two = begin + R"(, {"name": "b", "inputs": ["a"], "pool": "or", "width": 24})";
  const std::string three = begin + R"(, {"name": "b", "inputs": ["a", "input"], "pool": "majority", "weights": "ternary",
      "width": 32}, {"name": "c", "inputs": ["b", "a"], "stride": 2, "width": 16})";
  layerwise::TrainOptions options;
  options.batch = 48;
  options.augment = data::parse_augment("crop2,flip,brightness20");
  options.head_learning_rate = 0.01;
  options.layer.rule.learning_rate = 0.02;
  options.label_smoothing = 0.05;
  options.warmup_steps = 2;
  const auto stage = [](std::vector<std::string> train, std::vector<std::string> heads, const layerwise::HeadSpec& head) {
    layerwise::StageSpec spec;
    spec.name = "s";
    spec.train = std::move(train);
    spec.heads = std::move(heads);
    spec.epochs = 10;
    spec.head = head;
    return spec;
  };
  const layerwise::HeadSpec hidden = {"hidden", 2, 16, 3};
  layerwise::TrainOptions exact = options;
  exact.signal = "exact";
  exact.label_smoothing = 0;
  exact.layer.rule.name = "topk";
  exact.layer.rule.flip_share = 0.01;
  return {{"one layer", begin + "]}", stage({"a"}, {"a"}, hidden), options},
          {"two joint layers", two + "]}", stage({"a", "b"}, {"a", "b"}, hidden), options},
          {"two joint layers under one head", two + "]}", stage({"a", "b"}, {"b"}, hidden), options},
          {"three joint layers", three + "]}", stage({"a", "b", "c"}, {"c"}, {"class_conv", 1, 0, 3}), options},
          {"exact signal", begin + "]}", stage({"a"}, {"a"}, {"class_conv", 1, 0, 3}), exact}};
}

// The last of them with ternary weights, under the rule that can train these.
inline StageCase ternary_exact_case() {
  StageCase c = stage_cases()[4];
  c.name = "exact signal, ternary";
  c.net = std::string("{") + thermometer + R"(, "layers": [{"name": "a", "width": 40, "weights": "ternary"}]})";
  c.options.layer.rule.name = "accumulate";
  return c;
}

// Layers of several thresholds, whose weights are tied.
inline StageCase tied_case() {
  StageCase c = stage_cases()[2];
  c.name = "two joint layers of two and three thresholds, space to depth";
  c.net = std::string("{") + thermometer + R"(, "layers": [{"name": "a", "width": 64, "thresholds": 2},
      {"name": "b", "inputs": ["a", "input"], "pool": "space_to_depth", "width": 12, "thresholds": 3}]})";
  return c;
}

// The same and what draws random numbers or moves bits in further ways: dropped features, space to depth, the other rules.
inline std::vector<StageCase> all_stage_cases() {
  std::vector<StageCase> cases = stage_cases();
  StageCase dropping = cases[2];
  dropping.name = "dropped features, space to depth";
  dropping.net = std::string("{") + thermometer + R"(, "layers": [{"name": "a", "width": 40},
      {"name": "b", "inputs": ["a"], "pool": "space_to_depth", "width": 24}]})";
  dropping.options.head_dropout = 0.3;
  cases.push_back(dropping);
  StageCase moments = cases[2];
  moments.name = "two joint layers with second moments";
  moments.options.layer.second_moment_decay = 0.9;
  cases.push_back(moments);
  StageCase muon = cases[2];
  muon.name = "two joint layers by Muon";
  muon.options.layer.muon_momentum = 0.9;
  cases.push_back(muon);
  cases.push_back(tied_case());
  for (const char* rule : {"stochastic", "topk"}) {
    StageCase other = cases[1];
    other.name = std::string("two joint layers by ") + rule;
    other.options.layer.rule.name = rule;
    cases.push_back(other);
  }
  cases.push_back(ternary_exact_case());
  return cases;
}

inline const data::Dataset& stage_images() {
  static const data::Dataset images = small_data(150);
  return images;
}

class SmallStage {
 public:
  // trained: the layers have weights, other than those that the stage would draw, from which it begins.
  SmallStage(const StageCase& c, const simd::Kernels& kernels, mpi::Comm& comm, std::uint64_t id = 7, bool trained = false)
      : net_(layerwise::parse_net(c.net, "net.json")), encoder_(layerwise::Encoder::fit(net_.encoder, stage_images(), 1)) {
    const auto geometry = layerwise::derive_geometry(net_, 12, 12, encoder_.output().channels);
    for (std::size_t i = 0; i < geometry.size(); ++i) layers_.emplace_back(net_.layers[i], geometry[i]);
    layerwise::Earlier earlier;
    Random random(3, Stream::test);
    for (layerwise::BinaryLayer& layer : layers_) {
      if (!trained) continue;
      draw_weights(layer, random);
      earlier.layers.push_back(layer.spec().name);
    }
    stage_ =
        std::make_unique<layerwise::Stage>(kernels, comm, c.stage, encoder_, layers_, stage_images(), c.options, id, earlier);
  }
  SmallStage(const SmallStage&) = delete;
  SmallStage& operator=(const SmallStage&) = delete;

  layerwise::Stage& stage() { return *stage_; }
  // All state after `steps` more steps.
  TensorFile run(std::size_t steps) {
    for (std::size_t i = 0; i < steps; ++i) stage_->step();
    stage_->settle();
    TensorFile file;
    stage_->save(file);
    return file;
  }

 private:
  layerwise::NetSpec net_;
  layerwise::Encoder encoder_;
  std::vector<layerwise::BinaryLayer> layers_;
  std::unique_ptr<layerwise::Stage> stage_;
};

}  // namespace bitloom::test
