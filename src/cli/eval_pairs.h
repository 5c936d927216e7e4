// The part of `bitloom eval` that measures models of images and captions.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "cli/command.h"

namespace bitloom::cli {

struct PairEvaluationOptions {
  std::string model_or_run;
  std::string spec;        // images; "": the run's
  std::string split;       // train, validation or test, which such data have not
  std::string validation;  // share of the images; "": the run's
  std::string split_seed;  // "": the run's
  std::string values, device, backend;
  double temperature = 0.0625;  // of a discrete VAE's relaxed lower bound
  bool json = false;
  std::string dvae;       // of a text-to-image transformer; "": the run's
  std::string logits;     // safetensors file to write, "" for none
  std::size_t pairs = 8;  // whose logits it gets
};

// Each writes the logits that are asked for, in f32. Of a discrete VAE: images (N,side,side,3), logits (N,grid,grid,K), codes
// (N,grid,grid), maps (N,side,side,6). Of a transformer: text (N,text) with -1 after its end, codes (N,grid,grid), text_logits
// (N,text-1,V) of all text tokens but the first, image_logits (N,image,K). Of a contrastive model: images, texts (N,text) with
// its first token and padding, image_embeddings and text_embeddings (N,E) of length 1, similarities (N,N) of images (rows) and
// texts, with their factor.

// Quality of reconstructions, lower bounds, codes. Collective: the processes share the images.
void eval_dvae(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options);
// Losses of text and image, and of images under captions of others. By rank 0.
void eval_dalle(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options);
// How often an image's own caption, or a caption's own image, is the nearest of all. By rank 0.
void eval_clip(Session& session, const std::filesystem::path& file, const PairEvaluationOptions& options);

}  // namespace bitloom::cli
