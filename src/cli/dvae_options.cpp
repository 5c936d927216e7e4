#include "cli/dvae_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "cli/device.h"
#include "cli/run_folder.h"
#include "core/error.h"
#include "core/text.h"
#include "data/pairs/square_crop.h"

namespace bitloom::cli {
namespace {

void declare_training(Options& options, DvaeSettings& settings) {
  options.group("Training");
  options.count("steps", settings.steps, 1, any_count, "Number of optimiser steps");
  options.count("batch", settings.batch, 1, 1000000, "Images per step");
  options.text(
      "micro-batch", settings.micro_batch, "N",
      "Images at once, a divisor of the batch; auto: a process's share of the batch, or less where memory is too small");
  options.bytes("memory", settings.memory,
                "Memory that a process may take, and --micro-batch auto plans with; 0: most of what is available");
  options.number("learning-rate", settings.learning_rate, 0, 1e6, "Learning rate at the first step (the paper: 0.0001)", true);
  options.number("last-rate", settings.last_rate, 0, 1e6,
                 "Learning rate at the end of its course; 0: an eightieth of the first one, as in the paper");
  options.count("rate-steps", settings.rate_steps, 0, any_count,
                "Steps of the learning rate's course; 0: all (the paper: 1200000 of 3000000)");
  options.number("temperature", settings.temperature, 0, 100, "Temperature of the relaxation at the end of its course, from 1",
                 true);
  options.count("temperature-steps", settings.temperature_steps, 0, any_count,
                "Steps of the temperature's course; 0: five sixths of --steps (the paper: 150000 of 3000000)");
  options.number("kl-weight", settings.kl_weight, 0, 1e6,
                 "Weight of the divergence from the uniform prior at the end of its course, from 0");
  options.count("kl-steps", settings.kl_steps, 0, any_count,
                "Steps of that weight's course; 0: a fourteenth of --steps (the paper: 5000 of 3000000)");
  options.number(
      "least-log-b", settings.least_log_b, -100, 10,
      "Smallest ln b of the likelihood, which keeps pixels that are certain from outweighing all others; -100: none");
  options.number("weight-decay", settings.weight_decay, 0, 1e3, "Weight decay per learning rate");
  options.number("average", settings.average, 0, 1,
                 "Largest decay of a moving average of the parameters, which becomes the model; 0 disables it");
  options.number("clip", settings.clip, 0, 1e9, "Largest norm of all gradients together; 0 disables clipping");
  options.choice(
      "crop", settings.crop, data::crop_names(),
      "Squares cut of training images: as the paper has it, mirrored every second time (dvae), or of the centre, or as "
      "for the transformer");
  declare_dtype(options, settings.values);
  settings.declare_seed(options);
}

}  // namespace

void DvaeSettings::declare(Options& options) {
  options.everyday({"net", "data", "validation", "steps", "batch", "learning-rate", "temperature", "kl-weight", "least-log-b",
                    "dtype", "seed", "out", "resume", "config", "init", "device", "evaluate-every", "sample-every",
                    "checkpoint-seconds"});
  options.group("Net");
  options.text("net", net, "NAME|FILE",
               fmt::format("Sizes: {}, or a file that describes some", fmt::join(models::dvae_names(), ", ")));
  options.group("Data");
  data.declare(options);
  declare_training(options, *this);
  options.group("Run");
  declare_folder(options);
  declare_engine(options);
  options.count("evaluate-every", evaluate_every, 0, any_count,
                "Steps between evaluations on the validation images; 0: a tenth of the run");
  samples.declare(options);
  declare_run_rest(options);
}

models::DvaeConfig DvaeSettings::make_config() {
  models::DvaeConfig config = models::find_dvae(net);
  if (!contains(models::dvae_names(), net)) {  // a file, so that a run can be continued from another folder
    net = kept_path(net);
  }
  return config;
}

models::DvaeSchedule DvaeSettings::make_schedule() const {
  models::DvaeSchedule schedule;
  const models::DvaeSchedule paper;
  schedule.rate = learning_rate;
  schedule.last_rate = last_rate > 0 ? last_rate : learning_rate * paper.last_rate / paper.rate;
  schedule.rate_steps = rate_steps != 0 ? rate_steps : steps;
  schedule.temperature = temperature;
  schedule.temperature_steps = temperature_steps != 0 ? temperature_steps : std::max<std::uint64_t>(1, steps * 5 / 6);
  schedule.kl_weight = kl_weight;
  schedule.kl_steps = kl_steps != 0 ? kl_steps : std::max<std::uint64_t>(1, steps / 14);
  check(schedule);
  return schedule;
}

train::TrainOptions DvaeSettings::make_options() const {
  const models::DvaeSchedule schedule = make_schedule();
  train::TrainOptions options;
  options.values = dtype();
  if (options.values == DType::f16) options.loss_scale = train::LossScaleOptions();
  options.seed = seed;
  options.optimizer.rule = "adamw";
  options.optimizer.decay = weight_decay;
  options.optimizer.clip = clip;
  options.optimizer.average = average;
  options.rate.peak = schedule.rate;
  options.rate.floor = schedule.last_rate;
  options.rate.decay = schedule.rate_steps;
  check(options);
  return options;
}

}  // namespace bitloom::cli
