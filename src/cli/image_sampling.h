// bitloom sample of a text-to-image transformer: images drawn for prompts, ranked, in one picture or a folder.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/options.h"
#include "models/dalle/sampler.h"
#include "models/dvae/model_file.h"

namespace bitloom::cli {

struct ImageSampling {
  std::string prompts;  // file
  std::string out;      // picture
  std::string folder;
  std::string dvae, clip;  // runs or models; dvae "": that of the run
  std::string rerank = "none";
  std::size_t best = 0;  // images of a prompt that are shown; 0: all
  std::size_t columns = 8;
  std::string image_prompt;
  std::size_t rows = 0;  // of it, in tokens
  std::size_t at_once = 32;
  bool json = false;

  void declare(Options& options);
  static std::vector<std::string> names();
};

// The discrete VAE whose codes a transformer was trained with: that of --dvae or, where `given` is empty, of the run. expected:
// its hash. Throws Error(usage) where nothing says it, Error(data) for another one.
models::LoadedDvae open_dvae_of(nn::Engine& engine, const std::string& given, const std::string& model_or_run,
                                const std::string& expected);

// Draws images with the model in a file. draw: how codes are drawn, and how many images of a prompt. prompt "": those of
// settings.prompts.
int sample_images(Session& session, const std::string& model_or_run, const std::string& prompt, models::ImageOptions draw,
                  const ImageSampling& settings, const std::string& values, const std::string& device,
                  const std::string& backend);

}  // namespace bitloom::cli
