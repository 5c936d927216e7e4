// The options of `bitloom train clip`, and what follows from them.
#pragma once

#include <string>

#include "cli/adam_options.h"
#include "cli/caption_options.h"
#include "cli/pair_options.h"
#include "models/clip/clip.h"

namespace bitloom::cli {

struct ClipSettings : AdamSettings {
  ClipSettings() {
    batch = 64;
    keep = "last";  // cross-entropy of held-out pairs rises long before their retrieval stops to improve
    optimizer = {0.9, 0.98, 1e-8, 0.1, 1.0, 0, 1, "adamw", optimizer.momentum};
  }

  std::string net = "emoji";
  std::size_t side = 64;
  double dropout = 0.1;
  std::size_t activation_bits = 0;
  std::string activation_quantiser = "few-bit";
  PairOptions data;
  CaptionSettings captions;

  void declare(Options& options);
  models::ClipConfig make_config(std::size_t vocabulary) const;
  // All but the number of micro-batches.
  train::TrainOptions make_options() const { return AdamSettings::make_options(1e-3); }
};

}  // namespace bitloom::cli
