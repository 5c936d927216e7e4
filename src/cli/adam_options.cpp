#include "cli/adam_options.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/device.h"
#include "core/error.h"
#include "core/text.h"
#include "models/gpt/memory.h"

namespace bitloom::cli {
namespace {

// GPTs of 0.1 to 1 million parameters learn the most with 4 to 8 times the rate that AdamW bears (models/RESULTS.md).
constexpr double muon_rate_factor = 4;

// "1000,2000": ascending steps between `warmup` and `steps`.
std::vector<std::uint64_t> parse_halvings(const std::string& text, std::uint64_t warmup, std::uint64_t steps) {
  std::vector<std::uint64_t> halvings;
  for (const std::string& part : split(text, ',')) {
    const auto number = parse_int(part);
    const std::uint64_t least = halvings.empty() ? warmup : halvings.back() + 1;
    if (!number || *number < 0 || static_cast<std::uint64_t>(*number) < least || static_cast<std::uint64_t>(*number) >= steps) {
      fail(ErrorKind::usage, "--halve-at: '{}' in '{}'; expected steps in ascending order, from {} after the warm-up to {}",
           part, text, warmup, steps - 1);
    }
    halvings.push_back(static_cast<std::uint64_t>(*number));
  }
  return halvings;
}

// Options that plans take, too.
void declare_sizes(Options& options, AdamSettings& settings, const std::string& examples, const std::string& micro_batch_text) {
  options.count("batch", settings.batch, 1, 1000000, examples + " per step");
  options.text("micro-batch", settings.micro_batch, "N", examples + " at once, a divisor of the batch; " + micro_batch_text);
  options.bytes("memory", settings.memory,
                "Memory that a process may take, and --micro-batch auto plans with; 0: most of what is available");
}

void declare_optimizer(Options& options, AdamSettings& settings) {
  options.choice(
      "optimizer", settings.optimizer.rule, {"adamw", "muon", "rmsprop"},
      "Optimiser; muon: matrices of blocks move by their momentum made orthogonal, all else by adamw; rmsprop keeps no "
      "mean of gradients: 4 bytes less for each parameter");
}

void declare_optimizer_state(Options& options, AdamSettings& settings) {
  static const std::vector<Options::Need> needs{{"optimizer-state", "optimizer", {"adamw"}}};
  options.needs(needs);
  options.choice("optimizer-state", settings.optimizer_state, {"f32", "16-bit"},
                 "Storage of AdamW's means; 16-bit: those of matrices in blocks in 4 bytes a parameter instead of 8 (1-6-9 and "
                 "0-6-10)");
}

void declare_kept(Options& options, AdamSettings& settings) {
  options.number("average", settings.optimizer.average, 0, 1,
                 "Largest decay of a moving average of the parameters, which becomes the model; 0 disables it");
  declare_dtype(options, settings.values);
  declare_master_weights(options, settings.master_weights);
}

}  // namespace

void AdamSettings::declare_plan_training(Options& options, const std::string& examples) {
  options.group("Training");
  declare_sizes(options, *this, examples, usual_micro_batch_text);
  declare_optimizer(options, *this);
  declare_optimizer_state(options, *this);
  declare_kept(options, *this);
}

void AdamSettings::declare_training(Options& options, const std::string& examples, const std::string& micro_batch_text) {
  static const std::vector<Options::Need> needs{{"beta1", "optimizer", {"adamw", "muon"}},
                                                {"momentum", "optimizer", {"muon"}},
                                                {"learning-rate-floor", "halve-at", {""}, "0"}};
  options.needs(needs);
  options.group("Training");
  options.count(
      "steps", steps, 1, any_count,
      "Number of optimiser steps; with --resume another number than before gives the rest of the run its learning rates");
  declare_sizes(options, *this, examples, micro_batch_text);
  options.number("learning-rate", rate, 0, 1e3, "Peak learning rate; 0: what suits the net's size");
  options.number("learning-rate-floor", rate_floor, 0, 1, "Learning rate at the end, as a share of the peak");
  options.text("warmup", warmup, "N",
               "Steps in which the learning rate rises; 0 disables the warm-up; auto: a twentieth of the steps, at most 3000");
  options.text("halve-at", halve_at, "N,N,...",
               "Steps at which the learning rate is halved, instead of its fall along half a cosine");
  declare_optimizer(options, *this);
  options.number("momentum", optimizer.momentum, 0, 1, "Momentum of muon's matrices");
  declare_optimizer_state(options, *this);
  options.number("beta1", optimizer.beta1, 0, 1, "Decay of AdamW's mean of gradients");
  options.number("beta2", optimizer.beta2, 0, 1, "Decay of the mean of squared gradients");
  options.number("variance-limit", optimizer.variance_limit, 0, 1e9,
                 "Largest mean of squared gradients, at which it is cut off, with --optimizer-state 16-bit 5 unless told "
                 "otherwise; 0 disables it");
  options.number("weight-decay", optimizer.decay, 0, 1e3,
                 "Weight decay of matrices, per step and learning rate; 0 disables it");
  options.number("clip", optimizer.clip, 0, 1e9, "Largest norm of all gradients together; 0 disables clipping");
  declare_kept(options, *this);
  declare_seed(options);
}

void AdamSettings::declare_loss_scale(Options& options) {
  static const std::vector<Options::Need> needs{{"loss-scale", "dtype", {"f16"}}};
  options.needs(needs);
  options.choice("loss-scale", loss_scale, {"net", "blocks"},
                 "Factor that keeps gradients of f16 in its range: net, one for all; blocks, one for every residual block");
}

void AdamSettings::settle_variance_limit(const Options& options) {
  // A file with all options of a run in f32 has a limit of 0.
  const Options::Source told = options.source("variance-limit");
  const bool is_told = told != Options::Source::none && told <= options.source("optimizer-state");
  if (optimizer_state == "16-bit" && !resume && !is_told) optimizer.variance_limit = 5;
}

train::TrainOptions AdamSettings::make_options(double peak) const {
  train::TrainOptions options;
  options.values = dtype();
  options.master_weights = master_weights_named(master_weights);
  // Gradients of f16 would vanish: its smallest number is 2^-24.
  if (options.values == DType::f16) options.loss_scale = train::LossScaleOptions();
  if (loss_scale == "blocks") options.block_scales = train::GradientScaleOptions();
  options.optimizer = optimizer;
  options.optimizer.narrow_moments = optimizer_state == "16-bit";
  options.seed = seed;
  options.rate.peak = rate > 0 ? rate : optimizer.rule == "muon" ? muon_rate_factor * peak : peak;
  options.rate.floor = rate_floor * options.rate.peak;
  options.rate.warmup = std::min<std::uint64_t>(3000, steps / 20);
  if (warmup != "auto") {
    const auto number = parse_int(warmup);
    if (!number || *number < 0) fail(ErrorKind::usage, "--warmup: '{}' is neither 'auto' nor a number of steps", warmup);
    options.rate.warmup = static_cast<std::uint64_t>(*number);
  }
  if (options.rate.warmup >= steps) {
    fail(ErrorKind::usage, "--warmup: {}; expected fewer than the {} steps", options.rate.warmup, steps);
  }
  if (halve_at.empty()) {
    options.rate.decay = steps - options.rate.warmup;
  } else {
    options.rate.floor = 0;
    options.rate.halvings = parse_halvings(halve_at, options.rate.warmup, steps);
  }
  check(options);
  return options;
}

nlohmann::json AdamSettings::identity(const train::TrainOptions& options) const {
  const train::OptimizerOptions& rule = options.optimizer;
  nlohmann::json json = {{"batch", batch},
                         {"peak", options.rate.peak},
                         {"learning_rate_floor", rate_floor},
                         {"optimizer", {rule.rule, rule.beta1, rule.beta2, rule.decay, rule.clip, rule.average}},
                         {"dtype", values},
                         {"master_weights", master_weights},
                         {"seed", seed}};
  add_newer(options, json);
  // The steps, on which an automatic warm-up depends, the run itself compares: --steps may change them.
  if (warmup != AdamSettings().warmup) json["warmup"] = options.rate.warmup;
  return json;
}

void AdamSettings::add_newer(const train::TrainOptions& options, nlohmann::json& identity) const {
  if (options.optimizer.variance_limit > 0) identity["variance_limit"] = options.optimizer.variance_limit;
  if (options.block_scales) identity["loss_scale"] = loss_scale;
  if (options.optimizer.average > 0) identity["average"] = average_identity(options.optimizer.average);
  if (!options.rate.halvings.empty()) identity["halve_at"] = options.rate.halvings;
  if (options.optimizer.narrow_moments) identity["optimizer_state"] = optimizer_state;
  if (options.optimizer.rule == "muon") identity["momentum"] = options.optimizer.momentum;
}

std::size_t AdamSettings::enough_tokens() const {
  return device.starts_with("cuda") ? models::enough_tokens_on_gpu : models::enough_tokens;
}

}  // namespace bitloom::cli
