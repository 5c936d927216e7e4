// The part of `bitloom eval` that measures models of images and captions.
#pragma once

#include <filesystem>
#include <string>

#include "cli/command.h"

namespace bitloom::cli {

struct PairEvaluationOptions {
  std::string model_or_run;
  std::string spec;        // images; "": the run's
  std::string split;       // train, validation or test, which such data have not
  std::string validation;  // share of the images; "": the run's
  std::string values, device, backend;
  double temperature = 0.0625;  // of a discrete VAE's relaxed lower bound
  bool json = false;
};

// Quality of reconstructions, lower bounds, codes. Collective: the processes share the images.
void eval_dvae(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options);
// Losses of text and image, and of images under captions of others. By rank 0.
void eval_dalle(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options);
// How often an image's own caption, or a caption's own image, is the nearest of all. By rank 0.
void eval_clip(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options);

}  // namespace bitloom::cli
