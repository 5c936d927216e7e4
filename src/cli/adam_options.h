// Options of trainings by AdamW or RMSProp with a warm-up and half a cosine or halvings, and what follows from them.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/float_options.h"
#include "train/trainer.h"

namespace bitloom::cli {

struct AdamSettings : FloatSettings {
  std::size_t steps = 2000;
  double rate = 0;          // 0: the net's
  double rate_floor = 0.1;  // of the peak
  std::string warmup = "auto";
  std::string halve_at;  // steps, "1000,2000"; "": none, but half a cosine
  train::OptimizerOptions optimizer{0.9, 0.999, 1e-8, 0.01, 1.0, 0, 1, "adamw", 0.95};
  std::string optimizer_state = "f32";
  std::string master_weights = "f32";
  std::string loss_scale = "net";

  static constexpr const char* usual_micro_batch_text = "auto: what suits the memory. Another number rounds otherwise";

  // examples: "Sequences". micro_batch_text: what their number at once means.
  void declare_training(Options& options, const std::string& examples,
                        const std::string& micro_batch_text = usual_micro_batch_text);
  // Those that decide what a training takes, for a plan.
  void declare_plan_training(Options& options, const std::string& examples);
  // Declares --loss-scale, for nets all of whose residual blocks can have scales of their own.
  void declare_loss_scale(Options& options);
  // A run that begins with variances in 16 bits, and is told no --variance-limit, cuts them off as Ramesh et al. 2021, appendix
  // B.2, do.
  void settle_variance_limit(const Options& options);
  // All but the number of micro-batches; peak: the learning rate that suits the net. Throws Error(usage).
  train::TrainOptions make_options(double peak) const;
  // Tokens of a micro-batch beyond which the device is hardly faster.
  std::size_t enough_tokens() const;
  // Part of a run's identity; options: what make_options() gave.
  nlohmann::json identity(const train::TrainOptions& options) const;
  // Adds what earlier versions had no options for, where it is not as they had it: their runs go on.
  void add_newer(const train::TrainOptions& options, nlohmann::json& identity) const;
};

// Options of plans for a transformer's training in one process. examples: number at once; 0: what suits the memory.
template <typename Settings>
plan::FloatOptions planned_training(const Settings& settings, std::size_t examples) {
  plan::FloatOptions options;
  options.batch = settings.batch;
  options.micro_batch = examples;
  options.recompute = plan::find_recompute(settings.recompute);
  options.activation_bits = static_cast<unsigned>(settings.activation_bits);
  options.activation_quantiser = nn::find_quantiser(settings.activation_quantiser);
  options.train = settings.make_options();
  return options;
}

}  // namespace bitloom::cli
