// Which images and captions a command works on.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/options.h"
#include "data/pairs/pairs.h"
#include "models/clip/scores.h"

namespace bitloom::cli {

struct PairOptions {
  std::string spec;         // --data
  double validation = 0.1;  // share of the images
  std::size_t split_seed = 1;

  void declare(Options& options);
};

// The options of a run that PairOptions declares, as far as they were not given, then finish(). Throws Error(usage) without
// --data.
void read_pair_options(Options& options, PairOptions& pairs, const std::string& model_or_run,
                       const std::string& option = "data");

// Reads what the options say. Throws Error(data), and Error(usage) for a split that leaves nothing.
data::PairSplits load_pairs(const PairOptions& options, Terminal& terminal);
// "train", "validation" or "all" of them. Throws Error(data) for a part without pairs.
data::Pairs part_of(const PairOptions& options, const std::string& split, Terminal& terminal);

// Captions of all pairs, or of some.
std::vector<std::string> captions_of(const data::Pairs& pairs);
std::vector<std::string> captions_of(const data::Pairs& pairs, std::span<const std::size_t> indexes);
// Which of all pairs, or of some, have an image or a caption in common.
models::EqualParts equal_parts(const data::Pairs& pairs);
models::EqualParts equal_parts(const data::Pairs& pairs, std::span<const std::size_t> indexes);

}  // namespace bitloom::cli
