// The loss of examples with labels, or with distributions over the classes, against its definition.
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/random.h"
#include "nn/floats.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "train/task.h"

using namespace bitloom;
using bitloom::test::compare;

namespace {

constexpr std::size_t examples = 5, classes = 4;
constexpr double smoothing = 0.1, loss_scale = 0.5;

std::vector<float> random_logits() {
  Random random(1, Stream::test, 0);
  std::vector<float> logits(examples * classes);
  // Numbers that 16 bits hold, so that all types start from the same.
  for (float& logit : logits) logit = static_cast<float>(std::round(8 * random.normal()) / 4);
  return logits;
}

std::int32_t label_of(std::size_t example) { return static_cast<std::int32_t>(3 * example % classes); }

double smoothed(std::size_t example, std::size_t c) {
  return (static_cast<std::size_t>(label_of(example)) == c ? 1 - smoothing : 0) + smoothing / classes;
}

// Rows of probabilities in 16ths.
std::vector<double> random_targets() {
  Random random(1, Stream::test, 1);
  std::vector<double> targets(examples * classes);
  for (std::size_t i = 0; i < examples; ++i) {
    for (int part = 0; part < 16; ++part) targets[i * classes + random.below(classes)] += 1.0 / 16;
  }
  return targets;
}

struct Expected {
  std::vector<float> losses, gradients;
};

Expected expected_of(const std::vector<float>& logits, const std::vector<double>& targets) {
  Expected expected;
  for (std::size_t i = 0; i < examples; ++i) {
    double sum = 0, dot = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      const double logit = static_cast<double>(logits[i * classes + c]);
      sum += std::exp(logit);
      dot += targets[i * classes + c] * logit;
    }
    expected.losses.push_back(static_cast<float>(std::log(sum) - dot));
    for (std::size_t c = 0; c < classes; ++c) {
      const double probability = std::exp(static_cast<double>(logits[i * classes + c])) / sum;
      expected.gradients.push_back(static_cast<float>(loss_scale * (probability - targets[i * classes + c])));
    }
  }
  return expected;
}

}  // namespace

TEST_CASE("targets of a classification are smoothed labels, or distributions that differ from them", "[train]") {
  const std::vector<float> logits = random_logits();
  for (const bool has_changes : {false, true}) {
    std::vector<double> targets = random_targets();
    std::vector<float> changes;
    for (std::size_t i = 0; i < examples; ++i) {
      for (std::size_t c = 0; c < classes; ++c) {
        if (!has_changes) targets[i * classes + c] = smoothed(i, c);
        changes.push_back(static_cast<float>(targets[i * classes + c] - smoothed(i, c)));
      }
    }
    const Expected expected = expected_of(logits, targets);
    for (const std::string& backend : test::tested_backends()) {
      for (const DType values : {DType::f32, DType::bf16}) {
        INFO(backend << ' ' << nn::to_text(values) << (has_changes ? " with" : " without") << " changes");
        nn::Engine engine(test::device_of(backend), backend);
        const auto tensor = [&](const std::vector<float>& numbers) {
          return nn::from_floats(engine, numbers, {examples, classes}, values, nn::Use::data);
        };
        const train::Classification::Source source = [&](std::uint64_t, std::uint64_t) {
          std::vector<std::int32_t> labels;
          for (std::size_t i = 0; i < examples; ++i) labels.push_back(label_of(i));
          train::Classification::Batch batch{tensor(logits),
                                             engine.from(std::span<const std::int32_t>(labels), {examples}, nn::Use::data)};
          if (has_changes) batch.target_changes = tensor(changes);
          return batch;
        };
        train::Classification task(std::make_shared<nn::Sequence>(), {examples, classes}, source, smoothing);
        const double limit = values == DType::f32 ? 1e-5 : 0.02;
        nn::Pass pass{engine};
        nn::Tensor gradient;
        const train::PartLoss loss = task.loss(pass, task.input(pass), loss_scale, &gradient);
        CHECK(loss.count == examples);
        CHECK(compare(nn::to_floats(engine, loss.losses), expected.losses, limit) == "");
        CHECK(compare(nn::to_floats(engine, gradient), expected.gradients, limit) == "");
        // A process that asks for losses alone: the last of a pipeline.
        const train::PartLoss alone = task.loss(pass, tensor(logits), loss_scale, nullptr);
        CHECK(compare(nn::to_floats(engine, alone.losses), expected.losses, limit) == "");
      }
    }
  }
}
