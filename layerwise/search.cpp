#include "layerwise/search.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

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

std::vector<Variant> better_half(const std::vector<Variant>& variants, const nlohmann::json& ranking) {
  std::set<std::string> chosen;
  for (std::size_t i = 0; i < (ranking.size() + 1) / 2; ++i) chosen.insert(ranking[i]["name"].get<std::string>());
  std::vector<Variant> half;
  std::copy_if(variants.begin(), variants.end(), std::back_inserter(half),
               [&](const Variant& variant) { return chosen.contains(variant.name); });
  return half;
}

NetSpec with_fewer_epochs(const NetSpec& net, std::size_t divisor) {
  NetSpec shorter = net;
  for (StageSpec& stage : shorter.stages) {
    if (stage.epochs > 0) stage.epochs = std::max<std::size_t>(1, (stage.epochs + divisor / 2) / divisor);
  }
  return shorter;
}

void check_rounds(const std::vector<Variant>& variants, std::size_t rounds) {
  if (rounds == 0) fail(ErrorKind::usage, "`search_rounds`: 0; expected at least 1");
  const auto halvings = static_cast<std::size_t>(std::bit_width(variants.size() - 1));
  if (rounds > halvings + 1) {
    fail(ErrorKind::usage,
         "`search_rounds`: {} rounds for {} net{}; expected at most {}, since each keeps only the better half", rounds,
         variants.size(), variants.size() == 1 ? "" : "s", halvings + 1);
  }
  const std::size_t divisor = std::size_t{1} << (rounds - 1);
  std::map<std::string, std::string> first_round;
  for (const Variant& variant : variants) {
    std::size_t epochs = 0;
    for (const StageSpec& stage : variant.net.stages) epochs = std::max(epochs, stage.epochs);
    if (rounds > 1 && epochs < divisor) {
      fail(ErrorKind::usage,
           "`search_rounds`: {} rounds, each half as long as the next, need {} epochs; no stage of '{}' has more than {}",
           rounds, divisor, variant.name, epochs);
    }
    const auto [same, is_new] = first_round.try_emplace(to_json(with_fewer_epochs(variant.net, divisor)).dump(), variant.name);
    if (!is_new) {
      fail(ErrorKind::usage,
           "`search_rounds`: '{}' and '{}' are the same net in the first of {} rounds, which has fewer epochs", same->second,
           variant.name, rounds);
    }
  }
}

}  // namespace bitloom::layerwise
