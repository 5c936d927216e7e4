// A net with random weights whose heads have seen a few images, for tests of what reads trained nets.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/softmax.h"
#include "layerwise/forward.h"
#include "layerwise/model.h"
#include "tests/layerwise/cases.h"

namespace bitloom::test {

// `net`: the description, as in a net file. Each stage has one head.
inline layerwise::Model random_model(const data::Dataset& data, const std::string& net) {
  using namespace layerwise;
  Model model;
  model.net = parse_net(net, "net.json");
  model.class_names = data.class_names;
  model.encoder = Encoder::fit(model.net.encoder, data, 1);
  Random random(1, Stream::test);
  const MapShape input = model.encoder.output();
  const auto geometry = derive_geometry(model.net, input.height, input.width, input.channels);
  for (std::size_t i = 0; i < geometry.size(); ++i) {
    model.layers.emplace_back(model.net.layers[i], geometry[i]);
    draw_weights(model.layers[i], random);
    const auto middle = static_cast<std::int32_t>(geometry[i].valid_bits / (model.net.layers[i].ternary ? 4 : 2));
    for (std::size_t o = 0; o < model.layers[i].channels(); ++o) {
      model.layers[i].thresholds()[o] = middle - 5 + static_cast<std::int32_t>(3 * (o / model.layers[i].ties().rows()));
    }
  }
  const NetForward forward(simd::kernels(), model.encoder, model.layers);
  ForwardWorkspace work = forward.make_workspace();
  for (const StageSpec& stage : model.net.stages) {
    std::size_t i = 0;
    while (model.net.layers[i].name != stage.heads.front()) ++i;
    Head head(stage.head, geometry[i].output, data.classes(), 1, i);
    std::vector<std::int16_t> counts(data.size() * head.features());
    std::vector<float> gradient(counts.size());
    for (std::size_t k = 0; k < data.size(); ++k) {
      forward.encode(data.image(k).data(), work);
      for (std::size_t j = 0; j <= i; ++j) forward.run_layer(j, work);
      head.count(simd::kernels(), work.maps[i + 1], counts.data() + k * head.features());
    }
    Head::Sums sums = head.make_sums();
    for (int step = 0; step < 30; ++step) {
      sums.clear();
      head.backward(simd::kernels(), counts.data(), data.labels.data(), data.size(), {}, sums, gradient.data());
      head.update(sums, data.size(), 0.01, 0);
    }
    model.heads.insert_or_assign(model.net.layers[i].name, head);
  }
  return model;
}

// The probabilities of the images' likeliest classes, in ascending order.
inline std::vector<float> sorted_probabilities(const layerwise::Classifier& classifier, const data::Dataset& data) {
  layerwise::ForwardWorkspace work = classifier.make_workspace();
  std::vector<float> scores, largest;
  for (std::size_t i = 0; i < data.size(); ++i) {
    classifier.scores(data.image(i).data(), work, scores);
    softmax(scores, scores);
    largest.push_back(std::ranges::max(scores));
  }
  std::ranges::sort(largest);
  return largest;
}

}  // namespace bitloom::test
