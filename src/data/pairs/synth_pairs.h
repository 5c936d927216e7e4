// A made-up set of pairs: scenes (scene.h) with captions, some of whose combinations of colour and shape are held out of
// training, so that it can be measured whether a model combines what it knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <utility>

#include "core/progress.h"
#include "data/pairs/scene.h"

namespace bitloom::data {

struct SynthPairs {
  std::size_t count = 1000;
  std::uint64_t seed = 1;
  std::size_t side = 32;  // pixels
  double hold_out = 0.1;  // share of the combinations of colour and shape; at most 0.4
  bool held_out = false;  // pairs of the combinations held out instead of the others
};

using Combination = std::pair<std::uint8_t, std::uint8_t>;  // colour, shape

// The nearest number to share x 64 of them, chosen by the seed; of no colour and no shape more than half. Throws Error(usage)
// unless 0 <= share <= 0.4.
std::set<Combination> held_out_combinations(double share, std::uint64_t seed);

// Scene i of the set: a function of the options but `count`. Throws Error(usage) where no combinations are left.
Scene synth_scene(const SynthPairs& options, const std::set<Combination>& held_out, std::uint64_t i);

// Writes FOLDER/png/000000.png .. and captions.jsonl (as Pairs::open() reads it, with the scene's words as further fields);
// and, where combinations are held out, held-out.jsonl: caption and words of every scene of theirs, prompts for a trained
// model. Throws Error(usage) for options out of range, Error(io) where the disk refuses. Nothing but these files is touched.
void write_synth_pairs(const SynthPairs& options, const std::filesystem::path& folder, ProgressSink* progress = nullptr);

}  // namespace bitloom::data
