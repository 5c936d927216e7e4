// The options of `bitloom train dvae`, and what follows from them.
#pragma once

#include <string>

#include "cli/float_options.h"
#include "cli/pair_options.h"
#include "cli/step_samples.h"
#include "models/dvae/config.h"
#include "models/dvae/task.h"
#include "train/trainer.h"

namespace bitloom::cli {

struct DvaeSettings : FloatSettings {
  DvaeSettings() {
    keep = "last";
    batch = 32;
  }

  std::string net = "emoji";
  PairOptions data;
  std::string crop = "dvae";
  std::size_t steps = 2000;
  double learning_rate = 3e-3, last_rate = 0;  // 0: an eightieth of the learning rate
  double kl_weight = 6.6;
  double temperature = 0.0625;
  // 0: in proportion to the run's steps. Short runs use more codes with a slower temperature than the paper's shares give.
  std::size_t kl_steps = 0, temperature_steps = 0, rate_steps = 0;
  double least_log_b = -1;
  double weight_decay = 1e-4, average = 0.999, clip = 0;
  SampleOptions samples;

  void declare(Options& options);
  models::DvaeConfig make_config();
  // Lengths as they are given or, in proportion to the steps of the run, as below.
  models::DvaeSchedule make_schedule() const;
  // All but the number of micro-batches.
  train::TrainOptions make_options() const;
};

}  // namespace bitloom::cli
