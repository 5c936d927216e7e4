#include "layerwise/search.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"

namespace bitloom::layerwise {

std::vector<Variant> make_variants(const NetSpec& net, const std::vector<SearchAxis>& axes) {
  std::vector<Variant> variants;
  if (!axes.empty()) variants.push_back({"", net});
  for (const SearchAxis& axis : axes) {
    std::vector<Variant> longer;
    for (const Variant& variant : variants) {
      for (const std::string& value : axis.values) {
        const std::string name = fmt::format("{}{}{}={}", variant.name, variant.name.empty() ? "" : ",", axis.key, value);
        if (name.find('/') != std::string::npos) fail(ErrorKind::usage, "`search`: '{}' cannot be the name of a folder", name);
        try {
          longer.push_back({name, with_setting(variant.net, axis.key, value)});
        } catch (const Error& error) {
          fail(ErrorKind::usage, "`search`: {}", error.what());
        }
      }
    }
    variants = std::move(longer);
  }
  // "64" and "064" are one width.
  std::map<std::string, std::string> known;
  for (const Variant& variant : variants) {
    const auto [same, is_new] = known.try_emplace(to_json(variant.net).dump(), variant.name);
    if (!is_new) fail(ErrorKind::usage, "`search`: '{}' and '{}' are the same net", same->second, variant.name);
  }
  return variants;
}

nlohmann::json rank_variants(const std::vector<Variant>& variants, const std::vector<double>& accuracies) {
  std::vector<std::size_t> order(variants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return accuracies[a] > accuracies[b]; });
  nlohmann::json ranking = nlohmann::json::array();
  for (const std::size_t i : order) ranking.push_back({{"name", variants[i].name}, {"validation_accuracy", accuracies[i]}});
  return ranking;
}

}  // namespace bitloom::layerwise
