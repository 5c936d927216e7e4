// Models, options and clusters that the tests of float plans share.
#pragma once

#include <fmt/format.h>

#include <string>

#include "models/gpt/config.h"
#include "plan/float_plan.h"
#include "tests/models/dalle_nets.h"

namespace bitloom::test {

inline models::GptConfig small_config() {
  models::GptConfig config;
  config.layers = 2;
  config.heads = 4;
  config.width = 8;
  config.context = 6;
  config.vocabulary = 19;
  config.vocabulary_multiple = 4;
  return config;
}

inline models::DalleConfig small_planned_dalle() {
  models::DalleConfig config = small_dalle();
  config.layers = 5;
  config.heads = 4;
  config.width = 8;
  config.dropout = 0.1;
  return config;
}

// Equal layers of `elements` that each keeps and gives, and that need `operations` in their forward pass.
inline plan::FloatModel equal_layers(std::size_t count, std::uint64_t elements, double operations = 1) {
  plan::FloatModel model;
  model.name = "equal layers";
  model.example = "example";
  model.input = sizeof(float) * elements;
  for (std::size_t i = 0; i < count; ++i) {
    plan::FloatLayer layer;
    layer.name = fmt::format("layer{}", i);
    layer.whole_operations = operations;
    layer.values.whole = elements;
    layer.output = elements;
    model.layers.push_back(layer);
  }
  return model;
}

inline plan::FloatOptions options_of(std::size_t batch, std::size_t micro_batch, const std::string& schedule = "1f1b") {
  plan::FloatOptions options;
  options.batch = batch;
  options.micro_batch = micro_batch;
  options.schedule = schedule;
  return options;
}

// A cluster whose links take no time.
inline plan::FloatCluster fast_links() {
  plan::FloatCluster cluster;
  cluster.link = cluster.inside = {1e30, 0};
  return cluster;
}

}  // namespace bitloom::test
