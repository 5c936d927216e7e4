// bitloom train binary --search: the nets of all variants, one after the other or each on a process of its own.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/search.h"
#include "layerwise/trainer.h"

namespace bitloom::cli {

// Trains settings.run with the ranks of the session.
using TrainOne = std::function<layerwise::RunResult(Session& session, TrainSettings& settings)>;

// Collective: a net for every variant, each in a folder of its own in settings.run.folder, where `files` are left first, and a
// ranking. With several ranks and settings.spread, what the variants have in common is trained by all together, the rest of
// each by one rank alone.
void train_variants(Session& session, TrainSettings& settings, const std::vector<Variant>& variants,
                    const std::map<std::string, std::string>& files, const TrainOne& train);

}  // namespace bitloom::cli
