// Small GPTs for tests.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/random.h"
#include "models/gpt/gpt.h"
#include "models/gpt/language_task.h"

namespace bitloom::test {

inline models::GptConfig small_gpt() {
  models::GptConfig config;
  config.layers = 2;
  config.heads = 3;
  config.width = 24;
  config.context = 37;
  config.vocabulary = 83;
  config.vocabulary_multiple = 16;
  config.dropout = 0;
  return config;
}

// Sequences in which every token follows from the one before, but for some noise.
inline models::LanguageTask::Source chains(const models::GptConfig& config, std::size_t per_step) {
  return [config, per_step](std::uint64_t step, std::uint64_t micro_batch, std::span<std::int32_t> inputs,
                            std::span<std::int32_t> targets) {
    Random random(5, Stream::test, step * per_step + micro_batch);
    auto token = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(config.vocabulary)));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = token;
      token = static_cast<std::int32_t>((7 * static_cast<std::uint32_t>(token) + 1 + random.below(2)) % config.vocabulary);
      targets[i] = token;
    }
  };
}

// With initial weights, the matrices 8 times as large: what comes next depends on what came before.
struct SharpGpt {
  explicit SharpGpt(const models::GptConfig& config = small_gpt(), DType values = DType::f32,
                    const std::string& backend = "cpu", std::uint64_t seed = 11)
      : engine({}, backend), net(config), parameters(nn::parameters_of(net)) {
    nn::initialise(engine, parameters, values, seed);
    for (nn::Parameter* parameter : parameters) {
      if (parameter->shape.axes() == 2) nn::scale_add(engine, 0, parameter->value, 8, parameter->value);
    }
    nn::refresh_copies(engine, parameters);
  }

  nn::Parameter& parameter(const std::string& name) {
    for (nn::Parameter* each : parameters) {
      if (each->name == name) return *each;
    }
    throw std::out_of_range(name);
  }
  void set(const std::string& name, const std::vector<float>& values) {
    engine.write(parameter(name).value, std::as_bytes(std::span(values)));
  }

  nn::Engine engine;
  models::Gpt net;
  std::vector<nn::Parameter*> parameters;
};

inline std::vector<std::int32_t> random_tokens(std::size_t count, std::size_t vocabulary, std::uint64_t seed) {
  std::vector<std::int32_t> tokens(count);
  Random random(seed, Stream::test);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(vocabulary)));
  return tokens;
}

}  // namespace bitloom::test
