#include "cli/pair_options.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <sstream>

#include "cli/model_source.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/text.h"
#include "data/pairs/pair_batches.h"

namespace bitloom::cli {
namespace {

// Notes the pairs left out: each reason with the first pair that it left out.
void tell_left_out(const data::Pairs& pairs, Terminal& terminal) {
  for (const data::LeftOut& each : pairs.left_out()) {
    terminal.note(fmt::format("{} pairs left out: {}; the first is {}", each.count, each.reason, each.first));
  }
}

}  // namespace

void PairOptions::declare(Options& options) {
  static const std::vector<Options::Need> needs{{"split-seed", "validation", {"!0"}}};
  options.needs(needs);
  options.text(
      "data", spec, "PATH",
      "Images with captions: a folder with captions.jsonl, such a file, or a folder where a.txt has the captions of a.png");
  options.number("validation", validation, 0, 0.9, "Share of the images that is held back for validation; 0: none");
  options.count("split-seed", split_seed, 0, std::numeric_limits<std::int64_t>::max(),
                "Seed of the choice of images that are held back");
}

void read_pair_options(Options& options, PairOptions& pairs, const std::string& model_or_run, const std::string& option) {
  const std::filesystem::path run = find_run(model_or_run);
  if (!run.empty()) {
    std::string kept;
    for (const auto& [name, value] : options_of_run(run)) {
      if (name == "data" || name == "validation" || name == "split-seed") kept += fmt::format("{} = {}\n", name, value);
    }
    options.read_ini(kept, (run / options_file).string(), Options::Source::run);
  }
  options.finish();
  if (pairs.spec.empty()) {
    fail(ErrorKind::usage, "--data: missing; {} belongs to no run that could say it", model_or_run);
  }
  if (options.source("data") == Options::Source::run) require_there(run, pairs.spec, option);
}

data::PairSplits load_pairs(const PairOptions& options, Terminal& terminal) {
  const data::Pairs all = data::Pairs::open(options.spec);
  tell_left_out(all, terminal);
  return data::split_pairs(all, options.validation, options.split_seed);
}

data::Pairs part_of(const PairOptions& options, const std::string& split, Terminal& terminal) {
  if (split == "all") {
    data::Pairs all = data::Pairs::open(options.spec);
    tell_left_out(all, terminal);
    return all;
  }
  data::PairSplits splits = load_pairs(options, terminal);
  data::Pairs& part = split == "train" ? splits.train : splits.validation;
  if (part.size() == 0) fail(ErrorKind::data, "--split: {}: no pairs; --validation is {}", split, options.validation);
  return part;
}

std::vector<std::string> captions_of(const data::Pairs& pairs) { return captions_of(pairs, data::first_indexes(pairs.size())); }

std::vector<std::string> captions_of(const data::Pairs& pairs, std::span<const std::size_t> indexes) {
  std::vector<std::string> captions;
  for (const std::size_t index : indexes) captions.push_back(pairs[index].caption);
  return captions;
}

models::EqualParts equal_parts(const data::Pairs& pairs) { return equal_parts(pairs, data::first_indexes(pairs.size())); }

models::EqualParts equal_parts(const data::Pairs& pairs, std::span<const std::size_t> indexes) {
  models::EqualParts equal;
  std::map<Hash128, std::size_t> images;
  std::map<std::string, std::size_t> captions;
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    equal.image.push_back(images.try_emplace(pairs[indexes[i]].content, i).first->second);
    equal.text.push_back(captions.try_emplace(lower_case(pairs[indexes[i]].caption), i).first->second);
  }
  return equal;
}

}  // namespace bitloom::cli
