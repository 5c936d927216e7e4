#include "cli/cnn_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "cli/device.h"
#include "cli/run_folder.h"
#include "core/error.h"
#include "core/text.h"
#include "nn/activation.h"

namespace bitloom::cli {
namespace {

// Local steps: the root of 16 workers, with more than which nothing has been tried (mpi/RESULTS.md).
constexpr double most_cnn_rate_factor = 4;

// runs: not for a plan, on which the function has no effect.
void declare_net(Options& options, CnnSettings& settings, bool runs) {
  options.group("Net");
  options.text("net", settings.net, "NAME|FILE",
               fmt::format("Net: {}, or a file that describes one", fmt::join(models::cnn_names(), ", ")));
  if (runs) {
    options.text("activation", settings.activation, "NAME",
                 fmt::format("Activation, instead of the net's: {}", fmt::join(nn::activation_names(), ", ")));
  }
  declare_activation_bits(options, settings.activation_bits, settings.activation_quantiser);
}

void declare_sizes(Options& options, CnnSettings& settings) {
  options.without_defaults([&] {
    options.count("batch", settings.training.batch, 1, 1000000,
                  "Images per step; the description's rate, and of SGD its decay, change in proportion");
  });
  options.text("micro-batch", settings.micro_batch, "N",
               "Images at once, a divisor of the batch, whose statistics batch norm takes; auto: a process's share of the "
               "batch, or less where the memory is too small");
  options.bytes("memory", settings.memory,
                "Memory that a process may take, and --micro-batch auto plans with; 0: most of what is available");
  options.without_defaults([&] {
    options.choice("optimizer", settings.training.optimizer, {"adamw", "rmsprop", "sgd"},
                   "Optimiser: SGD with Nesterov momentum, AdamW or RMSProp");
  });
}

void declare_slow_weights(Options& options, CnnSettings& settings) {
  options.without_defaults([&] {
    options.count("lookahead", settings.training.lookahead, 0, 1000000,
                  "Steps between which slow weights follow (Lookahead); 0 disables it");
  });
  options.number("average", settings.average, 0, 1,
                 "Largest decay of a moving average of the parameters, which becomes the model; 0 disables it");
}

void declare_recipe(Options& options, CnnSettings& settings) {
  models::CnnTraining& training = settings.training;
  options.group("Training (the net's description says what is not given and has no default here)");
  options.without_defaults([&] { options.number("epochs", training.epochs, 0, 1e6, "Passes over the training images", true); });
  options.count("steps", settings.steps, 0, any_count, "Number of optimiser steps, instead of --epochs; 0: as the epochs have");
  declare_sizes(options, settings);
  options.without_defaults([&] {
    options.number("learning-rate", training.learning_rate, 0, 1e6, "Peak learning rate", true);
    options.choice("schedule", training.schedule, rate_course_names(), "Course of the learning rate");
    options.number("momentum", training.momentum, 0, 1, "Momentum of SGD");
    options.number("weight-decay", training.weight_decay, 0, 1e3,
                   "Weight decay; SGD: of a step at the peak learning rate, whatever that is; otherwise per learning rate");
    options.number("label-smoothing", training.label_smoothing, 0, 1, "Share of a label that is spread over all classes");
  });
  settings.teacher.declare(options, "the targets");
  options.number("teacher-share", settings.teacher_share, 0, 1, "Share of the teacher in the targets; the labels have the rest",
                 true);
  declare_slow_weights(options, settings);
  options.number("clip", settings.clip, 0, 1e9, "Largest norm of all gradients together; 0 disables clipping");
  options.without_defaults([&] {
    options.text("augment", training.augment, "LIST",
                 "Changes to training images: none, or some of crop[N], contrastN, brightnessN, colourN, cutout[N]");
    options.choice("flip", training.flip, models::flip_names(),
                   "Mirror images; alternating: every second epoch shows an image mirrored");
  });
  declare_dtype(options, settings.values);
  settings.declare_seed(options);
}

void declare_run(Options& options, CnnSettings& settings) {
  options.group("Run");
  settings.declare_folder(options);
  settings.declare_engine(options);
  options.count("evaluate-every", settings.evaluate_every, 0, any_count,
                "Steps between evaluations on the validation images; 0: once an epoch, at most 20 times");
  options.choice("mirror", settings.mirror, {"on", "off"},
                 "Test-time augmentation with mirror images when test images are classified at the end");
  options.count("shift", settings.shift, 0, 1000,
                "Test-time augmentation then with images moved by this number of pixels; 0 disables it");
  settings.declare_run_rest(options);
}

}  // namespace

void CnnSettings::declare(Options& options) {
  options.everyday({"net",
                    "activation",
                    "activation-bits",
                    "data",
                    "validation",
                    "epochs",
                    "batch",
                    "optimizer",
                    "learning-rate",
                    "schedule",
                    "weight-decay",
                    "label-smoothing",
                    "teacher",
                    "augment",
                    "flip",
                    "dtype",
                    "seed",
                    "out",
                    "resume",
                    "config",
                    "init",
                    "device",
                    "checkpoint-seconds",
                    "pipeline",
                    "shard"});
  declare_net(options, *this, true);
  options.group("Data");
  data.declare(options);
  declare_recipe(options, *this);
  options.transient(true);
  layout.declare(options, false);
  options.transient(false);
  local.declare(options);
  declare_run(options, *this);
}

void CnnSettings::declare_plan(Options& options) {
  declare_net(options, *this, false);
  options.group("Training (the net's description says what is not given and has no default here)");
  declare_sizes(options, *this);
  declare_slow_weights(options, *this);
  declare_dtype(options, values);
}

models::CnnConfig CnnSettings::make_planned(const Options& options) {
  models::CnnConfig config = models::find_cnn(net);
  const auto given = [&](const char* name) { return options.source(name) != Options::Source::none; };
  models::CnnTraining recipe = config.training;
  if (given("batch")) recipe.batch = training.batch;
  if (given("optimizer")) recipe.optimizer = training.optimizer;
  if (given("lookahead") || average > 0) recipe.lookahead = training.lookahead;
  training = recipe;
  batch = training.batch;
  add_activation(config);
  config.training = training;
  return config;
}

models::CnnConfig CnnSettings::make_config(const Options& options) {
  models::CnnConfig config = models::find_cnn(net);
  if (!contains(models::cnn_names(), net)) {  // a file, so that a run can be continued from another folder
    net = kept_path(net);
  }
  const auto given = [&](const char* name) { return options.source(name) != Options::Source::none; };
  // Files have both, where the steps were given: those of a run's options.
  if (steps != 0 && options.source("epochs") == Options::Source::command_line &&
      options.source("epochs") == options.source("steps")) {
    fail(ErrorKind::usage, "--epochs: {:g} has no effect; it needs --steps 0", training.epochs);
  }
  // The nearer to the command line, the stronger.
  if (options.source("epochs") < options.source("steps")) steps = 0;
  const models::CnnTraining recipe = config.training;
  if (!given("epochs")) training.epochs = recipe.epochs;
  if (!given("batch")) training.batch = recipe.batch;
  if (!given("optimizer")) training.optimizer = recipe.optimizer;
  if (training.optimizer != recipe.optimizer) {
    for (const char* name : {"learning-rate", "weight-decay"}) {
      if (given(name)) continue;
      fail(ErrorKind::usage, "--{}: missing; the net's description has one for {} alone", name, recipe.optimizer);
    }
  }
  if (training.optimizer != "sgd" && options.asks_for_other("momentum", "optimizer") && training.momentum != recipe.momentum) {
    fail(ErrorKind::usage, "--momentum: {:g} has no effect; it needs --optimizer sgd", training.momentum);
  }
  // As many examples move the parameters as far.
  const double ratio = static_cast<double>(training.batch) / static_cast<double>(recipe.batch);
  if (!given("learning-rate")) training.learning_rate = local.choose_rate(recipe.learning_rate * ratio, most_cnn_rate_factor);
  if (!given("weight-decay")) training.weight_decay = recipe.weight_decay * (recipe.optimizer == "sgd" ? ratio : 1);
  if (!given("schedule")) training.schedule = recipe.schedule;
  if (!given("momentum")) training.momentum = recipe.momentum;
  if (!given("label-smoothing")) training.label_smoothing = recipe.label_smoothing;
  if (taught_share() >= 1 && options.asks_for_other("label-smoothing", "teacher-share")) {
    fail(ErrorKind::usage,
         "--label-smoothing: {:g} has no effect, since labels have no share in the targets; expected a --teacher-share below 1",
         training.label_smoothing);
  }
  if (!given("lookahead")) training.lookahead = average > 0 || local.is_local() ? 0 : recipe.lookahead;
  if (local.is_local() && training.lookahead > 0) {
    fail(ErrorKind::usage,
         "--lookahead: {} with --exchange local, whose shared parameters are slow weights already; expected 0",
         training.lookahead);
  }
  if (!given("augment")) training.augment = recipe.augment;
  if (!given("flip")) training.flip = recipe.flip;
  check(training);
  batch = training.batch;
  add_activation(config);
  config.training = training;
  return config;
}

void CnnSettings::add_activation(models::CnnConfig& config) const {
  if (!activation.empty()) {
    config.activation = nn::find_activation(activation, "--activation").name;
  }
  config.activation_bits = static_cast<unsigned>(activation_bits);
  config.activation_quantiser = nn::find_quantiser(activation_quantiser);
}

train::TrainOptions CnnSettings::make_options(std::uint64_t all_steps) const {
  train::TrainOptions options;
  options.values = dtype();
  if (options.values == DType::f16) options.loss_scale = train::LossScaleOptions();
  options.seed = seed;
  options.draw_seed = local.stream_seed(seed);
  options.optimizer.rule = training.optimizer;
  options.optimizer.decay = training.weight_decay;
  options.optimizer.momentum = training.momentum;
  options.optimizer.clip = clip;
  options.optimizer.average = average;
  options.optimizer.lookahead = training.lookahead;
  options.optimizer.lookahead_steps = all_steps;
  options.rate = find_rate_course(training.schedule).make(training.learning_rate, all_steps);
  check(options);
  return options;
}

plan::FloatOptions CnnSettings::planned(std::size_t images, std::uint64_t all_steps) const {
  plan::FloatOptions options;
  options.batch = batch;
  options.micro_batch = images;
  options.train = make_options(all_steps);
  return options;
}

}  // namespace bitloom::cli
