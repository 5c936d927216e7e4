#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"
#include "core/field.h"
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
  in_unit("momentum", options.momentum);
  if (!(options.lookahead_keeps >= 0 && options.lookahead_keeps < 1)) {
    fail(ErrorKind::usage, "lookahead_keeps: {}; expected 0 up to 1, without 1", options.lookahead_keeps);
  }
  if (!(options.epsilon > 0)) fail(ErrorKind::usage, "epsilon: {}; expected more than 0", options.epsilon);
  not_negative("weight_decay", options.decay);
  not_negative("clip", options.clip);
  not_negative("variance_limit", options.variance_limit);
  if (options.variance_limit > 0 && options.rule == "sgd") {
    fail_field(ErrorKind::usage, "variance_limit", "{}; expected 0 with `optimizer` sgd, which has no running variance",
               options.variance_limit);
  }
  if (options.narrow_moments && options.rule != "adamw") {
    fail_field(ErrorKind::usage, "optimizer_state", "16-bit with `optimizer` {}; expected `optimizer` adamw", options.rule);
  }
  if (options.average_every == 0) fail(ErrorKind::usage, "average_every: 0; expected at least 1");
  if (options.lookahead > 0 && options.average > 0) {
    fail_field(ErrorKind::usage, "average", "{}; expected 0 with `lookahead` {}", options.average, options.lookahead);
  }
  find_update_rule(options.rule);
}

double average_decay(double largest, std::uint64_t update) {
  const auto t = static_cast<double>(update);
  return std::min(largest, (1 + t) / (10 + t));
}

std::vector<nn::Parameter*> learned(std::span<nn::Parameter* const> parameters) {
  std::vector<nn::Parameter*> learned;
  std::ranges::copy_if(parameters, std::back_inserter(learned), [](const nn::Parameter* p) { return !p->is_frozen; });
  return learned;
}

Optimizer::Optimizer(nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options,
                     std::uint64_t seed, const Buffers& buffers)
    : engine_(engine), parameters_(learned(parameters)), options_(options) {
  check(options);
  steps_.assign(parameters_.size(), 0);
  rule_ = find_update_rule(options.rule).make(engine, parameters_, options, seed);
  const bool keeps_others = options.average > 0 || options.lookahead > 0;
  for (nn::Parameter* parameter : parameters_) {
    const DType type = parameter->gradient.dtype();
    if (keeps_others && parameter->value.dtype() != type) {
      fail_field(ErrorKind::usage, options.average > 0 ? "average" : "lookahead",
                 "{}; expected 0 for '{}', whose values are {} alone",
                 options.average > 0 ? options.average : static_cast<double>(options.lookahead), parameter->name,
                 nn::to_text(parameter->value.dtype()));
    }
    if (options.average > 0) {
      averages_.push_back(
          {parameter->name, &parameter->value, engine.empty(parameter->shape, type, nn::Use::optimizer), parameter});
    }
    if (options.lookahead == 0) continue;
    slow_.push_back({parameter->name, &parameter->value, engine.empty(parameter->shape, type, nn::Use::optimizer), parameter});
  }
  for (const auto& [name, tensor] : buffers) {
    const auto empty = [&] { return engine.empty(tensor->shape(), tensor->dtype(), nn::Use::optimizer); };
    if (options.lookahead > 0) slow_.push_back({name, tensor, empty(), nullptr});
    if (options.average > 0) averages_.push_back({name, tensor, empty(), nullptr});
  }
  restart_averages();
}

void Optimizer::restart_averages() {
  for (Follower& each : averages_) nn::scale_add(engine_, 1, *each.fast, 0, each.slow);
  for (Follower& each : slow_) nn::scale_add(engine_, 1, *each.fast, 0, each.slow);
}

const nn::Parameter* Optimizer::find_bad_gradient() const {
  const auto bad = [&](const nn::Parameter* parameter) {
    return !std::isfinite(nn::sum_of_squares(engine_, std::span(&parameter->gradient, 1)));
  };
  const auto found = std::find_if(parameters_.begin(), parameters_.end(), bad);
  return found == parameters_.end() ? nullptr : *found;
}

void Optimizer::step(double rate, double share, double scale, double norm,
                     const std::function<std::optional<double>(std::optional<std::size_t>)>& factors) {
  const double clipped = options_.clip > 0 && norm > options_.clip ? scale * (options_.clip / norm) : scale;
  // Parameters that have taken as many steps, and whose gradients have the same factor, go together: nearly always all of them.
  struct Group {
    std::uint64_t count;
    double factor;
    std::vector<std::size_t> which;
  };
  std::vector<Group> groups;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::optional<double> factor = factors ? factors(parameters_[i]->block) : 1.0;
    if (!factor) continue;
    const std::uint64_t count = ++steps_[i];
    auto found = std::ranges::find_if(groups, [&](const Group& g) { return g.count == count && g.factor == *factor; });
    if (found == groups.end()) found = groups.insert(found, {count, *factor, {}});
    found->which.push_back(i);
  }
  for (const Group& group : groups) {
    UpdateRule::Step step;
    step.count = group.count;
    step.rate = rate;
    step.share = share;
    step.scale = clipped * group.factor;
    rule_->move(group.which, step);
  }
  if (on_moved_) on_moved_();
  ++all_steps_;
  if (averages_.empty() || all_steps_ % options_.average_every != 0) return;
  const double decay = average_decay(options_.average, all_steps_ / options_.average_every);
  for (Follower& each : averages_) nn::scale_add(engine_, 1 - decay, *each.fast, decay, each.slow);
}

bool Optimizer::look_ahead(std::uint64_t steps) {
  if (options_.lookahead == 0) return false;
  const bool ends = steps == options_.lookahead_steps;
  if (steps % options_.lookahead != 0 && !ends) return false;
  const double progress =
      static_cast<double>(steps) / static_cast<double>(std::max<std::uint64_t>(options_.lookahead_steps, 1));
  const double keeps = ends ? 1 : options_.lookahead_keeps * std::min(1.0, progress * progress * progress);
  for (Follower& each : slow_) {
    if (keeps != 1) nn::scale_add(engine_, 1 - keeps, *each.fast, keeps, each.slow);
    nn::scale_add(engine_, 1, each.slow, 0, *each.fast);
  }
  nn::refresh_copies(engine_, parameters_);
  return true;
}

bool Optimizer::swap_averages() {
  // Swaps what is in their memory: values may be parts of whole parameters, which others have handles of.
  for (Follower& each : averages_) {
    nn::Tensor& value = *each.fast;
    nn::Tensor kept = engine_.empty(value.shape(), value.dtype(), nn::Use::workspace);
    nn::scale_add(engine_, 1, value, 0, kept);
    nn::scale_add(engine_, 1, each.slow, 0, value);
    nn::scale_add(engine_, 1, kept, 0, each.slow);
  }
  if (averages_.empty()) return false;
  nn::refresh_copies(engine_, parameters_);
  return true;
}

std::string average_name(const std::string& tensor) { return "optimizer.average." + tensor; }

std::string slow_name(const std::string& tensor) { return "optimizer.slow." + tensor; }

void Optimizer::add_state(std::vector<StateTensor>& all) {
  rule_->add_state(all);
  for (Follower& each : averages_) all.push_back({average_name(each.name), &each.slow, each.parameter});
  for (Follower& each : slow_) all.push_back({slow_name(each.name), &each.slow, each.parameter});
}

std::vector<std::uint64_t> Optimizer::step_counts() const {
  std::vector<std::uint64_t> counts = steps_;
  counts.push_back(all_steps_);
  return counts;
}

void Optimizer::set_step_counts(std::span<const std::uint64_t> counts) {
  if (counts.size() != steps_.size() + 1) {
    fail(ErrorKind::data, "numbers of steps of {} parameters; expected {}",
         counts.size() - std::min<std::size_t>(counts.size(), 1), steps_.size());
  }
  std::copy_n(counts.begin(), steps_.size(), steps_.begin());
  all_steps_ = counts.back();
}

}  // namespace bitloom::train
