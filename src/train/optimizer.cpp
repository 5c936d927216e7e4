#include "train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/field.h"
#include "core/hash.h"
#include "core/random.h"
#include "nn/ops.h"

namespace bitloom::train {

void check(const OptimizerOptions& options) {
  const auto in_unit = [](const char* field, double value) {
    if (!(value >= 0 && value < 1)) fail_field(ErrorKind::usage, field, "{}; expected 0 up to 1, without 1", value);
  };
  const auto not_negative = [](const char* field, double value) {
    if (!(value >= 0) || !std::isfinite(value)) fail_field(ErrorKind::usage, field, "{}; expected 0 or more", value);
  };
  in_unit("beta1", options.beta1);
  in_unit("beta2", options.beta2);
  in_unit("average", options.average);
  if (!(options.epsilon > 0)) fail(ErrorKind::usage, "epsilon: {}; expected more than 0", options.epsilon);
  not_negative("weight_decay", options.decay);
  not_negative("clip", options.clip);
  if (options.average_every == 0) fail(ErrorKind::usage, "average_every: 0; expected at least 1");
}

Optimizer::Optimizer(nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options,
                     std::uint64_t seed)
    : engine_(engine), parameters_(parameters.begin(), parameters.end()), options_(options), steps_(parameters.size(), 0) {
  check(options);
  for (const nn::Parameter* parameter : parameters_) {
    const DType type = parameter->gradient.dtype();
    if (options.average > 0 && parameter->value.dtype() != type) {
      fail_field(ErrorKind::usage, "average", "{}; expected 0 for '{}', whose values are {} alone", options.average,
                 parameter->name, nn::to_text(parameter->value.dtype()));
    }
    const std::uint64_t name = hash_bytes(std::as_bytes(std::span(parameter->name))).low;
    rounding_keys_.push_back(Random(seed, Stream::weight_rounding, name).next());
    means_.push_back(engine.zeros(parameter->shape, type, nn::Use::optimizer));
    variances_.push_back(engine.zeros(parameter->shape, type, nn::Use::optimizer));
    if (options.average == 0) continue;
    averages_.push_back(engine.empty(parameter->shape, type, nn::Use::optimizer));
    nn::scale_add(engine, 1, parameter->value, 0, averages_.back());
  }
}

double Optimizer::gradient_norm(double scale) const {
  std::vector<nn::Tensor> gradients;
  for (const nn::Parameter* parameter : parameters_) gradients.push_back(parameter->gradient);
  return scale * std::sqrt(nn::sum_of_squares(engine_, gradients));
}

const nn::Parameter* Optimizer::find_bad_gradient() const {
  const auto bad = [&](const nn::Parameter* parameter) {
    return !std::isfinite(nn::sum_of_squares(engine_, std::span(&parameter->gradient, 1)));
  };
  const auto found = std::find_if(parameters_.begin(), parameters_.end(), bad);
  return found == parameters_.end() ? nullptr : *found;
}

void Optimizer::step(double rate, double scale, double norm, const std::function<bool(std::optional<std::size_t>)>& skips) {
  nn::AdamWStep step;
  step.rate = rate;
  step.beta1 = options_.beta1;
  step.beta2 = options_.beta2;
  step.epsilon = options_.epsilon;
  step.decay = options_.decay;
  step.gradient_scale = options_.clip > 0 && norm > options_.clip ? scale * (options_.clip / norm) : scale;
  // Parameters that have taken as many steps go together: nearly always all of them.
  std::vector<std::uint64_t> counts;
  std::vector<bool> left_out(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    left_out[i] = skips && skips(parameters_[i]->block);
    if (left_out[i]) continue;
    if (std::find(counts.begin(), counts.end(), ++steps_[i]) == counts.end()) counts.push_back(steps_[i]);
  }
  for (const std::uint64_t count : counts) {
    std::vector<nn::AdamWTensors> tensors;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (left_out[i] || steps_[i] != count) continue;
      const nn::Parameter& parameter = *parameters_[i];
      nn::AdamWTensors each{parameter.value,  parameter.gradient, means_[i], variances_[i], {},
                            parameter.decays, rounding_keys_[i]};
      if (parameter.copy.dtype() != parameter.value.dtype()) each.copy = parameter.copy;
      tensors.push_back(std::move(each));
    }
    step.step = count;
    nn::adamw(engine_, tensors, step);
  }
  if (++all_steps_ % options_.average_every != 0) return;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    nn::scale_add(engine_, 1 - options_.average, parameters_[i]->value, options_.average, averages_[i]);
  }
}

void Optimizer::swap_averages() {
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    std::swap(averages_[i], parameters_[i]->value);
    if (parameters_[i]->copy.dtype() == parameters_[i]->value.dtype()) parameters_[i]->copy = parameters_[i]->value;
  }
  if (!averages_.empty()) nn::refresh_copies(engine_, parameters_);
}

std::string average_name(const std::string& parameter) { return "optimizer.average." + parameter; }

void save_tensor(nn::Engine& engine, TensorFile& file, const std::string& name, const nn::Tensor& tensor) {
  const auto lengths = tensor.shape().lengths();
  bitloom::Tensor stored{tensor.dtype(), {lengths.begin(), lengths.end()}, Buffer<std::byte>(tensor.bytes())};
  engine.read(tensor, tensor.dtype(), stored.bytes.span());
  file.tensors.insert_or_assign(name, std::move(stored));
}

void load_tensor(nn::Engine& engine, const TensorFile& file, const std::string& name, nn::Tensor& tensor) {
  const auto lengths = tensor.shape().lengths();
  const bitloom::Tensor& stored = file.get(name, tensor.dtype(), {lengths.begin(), lengths.end()});
  engine.write(tensor, stored.bytes.span());
}

void Optimizer::save(TensorFile& file) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i]->name;
    save_tensor(engine_, file, "optimizer.mean." + name, means_[i]);
    save_tensor(engine_, file, "optimizer.variance." + name, variances_[i]);
    if (!averages_.empty()) save_tensor(engine_, file, average_name(name), averages_[i]);
  }
  std::vector<std::uint64_t> steps = steps_;
  steps.push_back(all_steps_);
  file.put("optimizer.steps", {steps.size()}, steps);
}

void Optimizer::load(const TensorFile& file) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i]->name;
    load_tensor(engine_, file, "optimizer.mean." + name, means_[i]);
    load_tensor(engine_, file, "optimizer.variance." + name, variances_[i]);
    if (!averages_.empty()) load_tensor(engine_, file, average_name(name), averages_[i]);
  }
  const auto steps = file.get("optimizer.steps", DType::u64, {steps_.size() + 1}).as<std::uint64_t>();
  std::copy_n(steps.begin(), steps_.size(), steps_.begin());
  all_steps_ = steps.back();
}

}  // namespace bitloom::train
