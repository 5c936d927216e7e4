// The options of `bitloom train gpt`, and what follows from them.
#pragma once

#include <cstdint>
#include <string>

#include "cli/adam_options.h"
#include "cli/layout_options.h"
#include "cli/local_options.h"
#include "cli/options.h"
#include "cli/text_options.h"
#include "cli/text_samples.h"
#include "models/gpt/config.h"
#include "train/trainer.h"

namespace bitloom::cli {

struct GptSettings : AdamSettings {
  GptSettings() {
    batch = 32;  // sequences per step
    keep = "best";
    local.kept_share = 0.9;  // with AdamW, old differences do harm (models/RESULTS.md)
  }

  // Net.
  std::string net = "tiny";
  std::size_t layers = 0, heads = 0, width = 0, context = 0;  // 0: as the net has them
  std::size_t vocabulary_multiple = 0;
  double dropout = -1;  // less than 0: as the net has it
  std::string activation = "gelu_tanh";
  std::size_t activation_bits = 0;
  std::string activation_quantiser = "few-bit";
  std::string recompute = "none";
  DeepNetSettings deep;
  // Text.
  std::string data;
  std::string tokenizer = "bytes";
  std::string validation = default_validation;
  std::size_t split_seed = 1;
  std::string documents = "file";
  std::string field = "text";
  double merge_dropout = 0;
  // Training.
  LayoutSettings layout;
  LocalSettings local;
  // Run.
  std::size_t evaluate_sequences = 256;  // 0: all
  TextSampleOptions samples;

  // runs: those that say where and how a run goes, besides what it computes.
  void declare(Options& options, bool runs);

  // The net for a vocabulary of this size. Throws Error(usage).
  models::GptConfig make_config(std::size_t vocabulary) const;
  // All but the number of micro-batches.
  train::TrainOptions make_options() const;

  // Fields that take less memory.
  static constexpr const char* savers =
      "`recompute` block, `activation_bits` 3, `dtype` bf16, a smaller net or a shorter `context` take less";
};

}  // namespace bitloom::cli
