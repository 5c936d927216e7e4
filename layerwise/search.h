// Architecture search: a net for every combination of settings, each trained in a run of its own, ranked by validation
// accuracy; by successive halving (Jamieson, Talwalkar 2016), if wanted: all are trained for a while, the better half for
// longer.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/progress.h"
#include "layerwise/net.h"
#include "layerwise/trainer.h"
#include "mpi/comm.h"

namespace bitloom::layerwise {

// In the folder of a search, when it is done: the ranking of the last round, then those that earlier rounds left out. In the
// folder of an earlier round: its ranking.
inline constexpr const char* search_file = "search.json";
// How the folder of an earlier round begins, in that of the search: "round-1".
inline constexpr const char* round_prefix = "round-";

// The values that a setting of the net takes.
struct SearchAxis {
  std::string key;  // "layer2.width"
  std::vector<std::string> values;
};

struct Variant {
  std::string name;  // "layer3.width=256,layer2.kernel=5": also its folder
  NetSpec net;
};

struct SearchOptions {
  // Options of every variant, but for net, folder and resume; run.folder has one folder for each variant of the last round.
  RunOptions run;
  bool spread = false;  // with several ranks: each variant is trained by one of them
  // Rounds of successive halving, each with the better half of the variants, rounded up, and twice the epochs of the one
  // before; the last has all epochs. A variant trains anew in every round, for its learning rate falls towards the round's end.
  // The runs of all rounds but the last lie in run.folder/round-N.
  std::size_t rounds = 1;
  std::map<std::string, std::string> files;  // left in the folder of a new search, by name
  std::string begun_file;                    // in the folder of a run that has begun
  std::vector<std::string> result_files;     // files of finished runs, which ranks on other hosts bring to rank 0's
};

// Trains a net with the ranks of `comm`.
using TrainOne = std::function<RunResult(mpi::Comm& comm, const RunOptions& run)>;

// Every combination of the axes' values, the last axis changing fastest; none without axes. Throws usage errors.
std::vector<Variant> make_variants(const NetSpec& net, const std::vector<SearchAxis>& axes);

// [{name, validation_accuracy}], best first; equals keep their order.
nlohmann::json rank_variants(const std::vector<Variant>& variants, const std::vector<double>& accuracies);

// The better half of a ranking, rounded up, in the order of `variants`.
std::vector<Variant> better_half(const std::vector<Variant>& variants, const nlohmann::json& ranking);

// Those of a net whose stages train for a `divisor`th of their epochs, rounded, but for one at least.
NetSpec with_fewer_epochs(const NetSpec& net, std::size_t divisor);

// Throws usage errors for rounds that would begin with less than one epoch, or with two nets that differ in later epochs alone,
// or would train the last net that is left again. `variants` is not empty.
void check_rounds(const std::vector<Variant>& variants, std::size_t rounds);

// Collective: a run for every variant of each round, and the ranking, which is left in the folder as search_file and told.
// Where variants are spread over ranks, the first stages that all have in common are trained by all ranks together. Throws what
// TrainOne and check_rounds() throw; Error(interrupted) when a run was, and goes on with run.resume.
void search(mpi::Comm& comm, const SearchOptions& options, const std::vector<Variant>& variants, const TrainOne& train,
            ProgressSink& progress);

}  // namespace bitloom::layerwise
