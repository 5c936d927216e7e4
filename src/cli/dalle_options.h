// The options of `bitloom train dalle`, and what follows from them.
#pragma once

#include <string>

#include "cli/adam_options.h"
#include "cli/caption_options.h"
#include "cli/layout_options.h"
#include "cli/pair_options.h"
#include "cli/step_samples.h"
#include "models/dalle/config.h"

namespace bitloom::cli {

struct DalleSettings : AdamSettings {
  DalleSettings() {
    batch = 32;
    keep = "best";
    // Ramesh et al. 2021, appendix B.2.
    optimizer = {0.9, 0.96, 1e-8, 4.5e-2, 4.0, 0, 25, "adamw", optimizer.momentum};
    optimizer.variance_limit = 5;
  }

  std::string net = "emoji";
  std::size_t layers = 0, heads = 0, width = 0, text = 0;  // 0: as the net has them
  double dropout = 0.1;
  std::size_t activation_bits = 0;
  std::string activation_quantiser = "few-bit";
  std::string recompute = "none";
  DeepNetSettings deep;
  PairOptions data;
  CaptionSettings captions;
  std::string dvae;
  std::string crop = "transformer";
  double merge_dropout = 0.1;
  LayoutSettings layout;
  SampleOptions samples;

  void declare(Options& options);
  // Those of the net and its training alone, for `plan dalle`.
  void declare_plan(Options& options);
  // The net for a vocabulary of text, and images of grid x grid tokens of a number of codes. Throws Error(usage).
  models::DalleConfig make_config(std::size_t vocabulary, std::size_t grid, std::size_t codes) const;
  // Fields that take less memory.
  static constexpr const char* savers = "`recompute` block, `activation_bits` 3, `dtype` bf16 or a smaller net take less";
  // All but the number of micro-batches.
  train::TrainOptions make_options() const { return AdamSettings::make_options(models::find_dalle(net).rate); }
};

}  // namespace bitloom::cli
