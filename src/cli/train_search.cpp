// The options of `bitloom train binary` that train several nets.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/train_options.h"
#include "core/error.h"
#include "core/text.h"

namespace bitloom::cli {

std::pair<std::string, std::string> split_setting(const std::string& option, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    fail(ErrorKind::usage, "{}: '{}' is not KEY=VALUE, such as layer2.width=512", option, text);
  }
  return {std::string(trim(text.substr(0, equals))), std::string(trim(text.substr(equals + 1)))};
}

void TrainSettings::declare_search(Options& options) {
  options.list("search", searches, "KEY=V1,V2,...",
               "Values of the net to search over: every combination is trained, in sub-folders of --out, and ranked by "
               "validation accuracy; layers that they share are trained once (in each round)");
  options.count(
      "search-rounds", search_rounds, 1, 32,
      "Rounds of --search (successive halving): each trains the better half of the nets of the round before, anew and "
      "for twice as many epochs; the last round trains for all of them");
  options.flag("spread", spread,
               "Distribution of the nets of --search over the processes, which train together only what all nets share");
}

std::vector<layerwise::SearchAxis> TrainSettings::search() const {
  std::vector<layerwise::SearchAxis> axes;
  for (const std::string& text : searches) {
    const auto [key, list] = split_setting("--search", text);
    axes.push_back({key, split(list, ',')});
    const std::vector<std::string>& all = axes.back().values;
    for (auto value = all.begin(); value != all.end(); ++value) {
      if (value->empty()) fail(ErrorKind::usage, "--search: '{}' has an empty value", text);
      if (std::find(all.begin(), value, *value) != value) {
        fail(ErrorKind::usage, "--search: '{}' has the value '{}' twice; expected each once", text, *value);
      }
    }
    const auto same = [&](const layerwise::SearchAxis& axis) { return axis.key == axes.back().key; };
    if (std::count_if(axes.begin(), axes.end(), same) != 1) {
      fail(ErrorKind::usage, "--search: '{}' is searched twice; expected all its values in one --search", axes.back().key);
    }
  }
  return axes;
}

}  // namespace bitloom::cli
