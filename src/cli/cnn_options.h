// The options of `bitloom train cnn`, and what follows from them.
#pragma once

#include <string>

#include "cli/float_options.h"
#include "cli/layout_options.h"
#include "cli/local_options.h"
#include "cli/model_source.h"
#include "cli/teacher.h"
#include "models/cnn/config.h"
#include "models/cnn/image_batches.h"
#include "plan/float_plan.h"
#include "train/trainer.h"

namespace bitloom::cli {

struct CnnSettings : FloatSettings {
  CnnSettings() { keep = "last"; }

  std::string net = "airbench94";
  std::string activation;  // "": the net's
  std::size_t activation_bits = 0;
  std::string activation_quantiser = "few-bit";
  DataOptions data;
  // As the net's description has them where they are not given.
  models::CnnTraining training;
  std::size_t steps = 0;  // 0: as many as the epochs have
  double average = 0;
  double clip = 0;
  TeacherSettings teacher;
  double teacher_share = 0.7;
  LayoutSettings layout;
  LocalSettings local;
  std::string mirror = "on";  // of the evaluation at the end
  std::size_t shift = 1;

  void declare(Options& options);
  // Those that decide what a training takes, for a plan.
  void declare_plan(Options& options);
  // Fills in what follows from the net: the recipe of its description where an option was not given. Throws Error(usage).
  models::CnnConfig make_config(const Options& options);
  // For a plan: the net, and its recipe where the batch, the optimiser and slow weights are not given.
  models::CnnConfig make_planned(const Options& options);
  // The share of the targets that the teacher has: 0 without one.
  double taught_share() const { return teacher.net.empty() ? 0 : teacher_share; }
  // All but the number of micro-batches, for a run of `all_steps` steps.
  train::TrainOptions make_options(std::uint64_t all_steps) const;
  // The same as plans take it, without a layout. images: at once.
  plan::FloatOptions planned(std::size_t images, std::uint64_t all_steps) const;

  // Fields that take less memory.
  static constexpr const char* savers = "`activation_bits` 3, `dtype` bf16 or a smaller net take less";

 private:
  void add_activation(models::CnnConfig& config) const;
};

}  // namespace bitloom::cli
