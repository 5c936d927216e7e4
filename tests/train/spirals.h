// A small task for tests of the trainer: points on three noisy spirals.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/random.h"
#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "nn/layers/images.h"
#include "train/task.h"

namespace bitloom::test {

struct SpiralOptions {
  std::size_t examples = 16;  // per micro-batch
  std::size_t per_step = 1;   // micro-batches that a step has
  double dropout = 0;
  bool batch_norm = false;
};

inline std::unique_ptr<nn::Sequence> spiral_net(const SpiralOptions& options) {
  nn::LinearOptions linear;
  linear.deviation = 0.4;
  auto net = std::make_unique<nn::Sequence>();
  net->emplace<nn::Linear>("first", 2, 24, linear);
  if (options.batch_norm) net->emplace<nn::BatchNorm>("norm", 24);
  net->emplace<nn::Activate>(nn::find_activation("gelu"));
  auto branch = std::make_unique<nn::Sequence>();
  branch->emplace<nn::Linear>("branch", 24, 24, linear);
  branch->emplace<nn::Activate>(nn::find_activation("tanh"));
  branch->emplace<nn::DropoutLayer>(options.dropout, 1);
  net->emplace<nn::Residual>(std::move(branch), 0);
  net->emplace<nn::Linear>("last", 24, 3, linear);
  return net;
}

// Example n of all: micro-batches of a step follow one another.
template <typename T>
train::Classification::Source spirals(nn::Engine& engine, const SpiralOptions& options, DType values) {
  return [&engine, options, values](std::uint64_t step, std::uint64_t micro_batch) {
    std::vector<T> x;
    std::vector<std::int32_t> labels;
    for (std::size_t i = 0; i < options.examples; ++i) {
      Random random(11, Stream::test, (step * options.per_step + micro_batch) * options.examples + i);
      const auto label = static_cast<std::int32_t>(random.below(3));
      const double radius = 0.2 + 1.5 * random.uniform();
      const double angle = 2.1 * label + 2.5 * radius + 0.1 * random.normal();
      x.push_back(static_cast<T>(radius * std::cos(angle)));
      x.push_back(static_cast<T>(radius * std::sin(angle)));
      labels.push_back(label);
    }
    nn::Tensor points = engine.from(std::span<const T>(x), {options.examples, 2}, nn::Use::data);
    if (values != dtype_of<T>()) {
      nn::Tensor converted = engine.empty(points.shape(), values, nn::Use::data);
      nn::convert(engine, points, converted);
      points = converted;
    }
    return train::Classification::Batch{points,
                                        engine.from(std::span<const std::int32_t>(labels), {options.examples}, nn::Use::data)};
  };
}

}  // namespace bitloom::test
