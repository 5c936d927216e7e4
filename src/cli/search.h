// bitloom train binary --search: the variants of a net and their ranking.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/train_options.h"

namespace bitloom::cli {

// In the folder of a search, when it is done.
inline constexpr const char* search_file = "search.json";

struct Variant {
  std::string name;  // "layer3.width=256,layer2.kernel=5": also its folder
  layerwise::NetSpec net;
};

// Every combination of the axes' values, the last axis changing fastest; none without axes. Throws usage errors.
std::vector<Variant> make_variants(const layerwise::NetSpec& net, const std::vector<SearchAxis>& axes);

// The validation accuracy that the model in a run folder remembers, as text; "" if there is none, or without `wanted`.
std::string accuracy_of_finished(const std::filesystem::path& folder, bool wanted);

// [{name, validation_accuracy}], best first; equals keep their order.
nlohmann::json rank_variants(const std::vector<Variant>& variants, const std::vector<double>& accuracies);

}  // namespace bitloom::cli
