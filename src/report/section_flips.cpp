// Findings of `bitloom inspect RUN --flips`: how well changes of the loss by many flips at once are foretold; of one run, and
// of several over each other.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "report/float_lines.h"
#include "report/markup.h"
#include "report/plot.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using Json = nlohmann::json;

// Changes of the loss in percent of what the flips promise; `images`: "realised" of those that the flips were chosen for,
// "on_others" of others.
Series kept_promises(const Json& layer, const char* images) {
  Series series;
  for (const Json& each : objects(layer, "together")) {
    series.x.push_back(number(each, "flips"));
    series.y.push_back(100 * number(each, images) / number(each, "predicted"));
  }
  return series;
}

LineChart promises_chart(const std::string& title) {
  LineChart lines;
  lines.title = title;
  lines.x = {"the best flips, made at once", true};
  lines.y = {"drop of the loss, % of what they promise", false};
  lines.width = half_width;
  return lines;
}

std::string chart(const Json& layer, const std::string& others) {
  LineChart lines = promises_chart(fmt::format("{}: {} of {} flips lower the loss by themselves", text(layer, "layer"),
                                               percent(number(layer, "lower")), whole_text(number(layer, "moves"))));
  const std::array<std::pair<const char*, std::string>, 2> curves{
      {{"realised", "on the same images"}, {"on_others", fmt::format("on {} images", others)}}};
  for (std::size_t i = 0; i < curves.size(); ++i) {
    Series series = kept_promises(layer, curves[i].first);
    series.name = curves[i].second;
    series.colour = static_cast<int>(i);
    lines.series.push_back(std::move(series));
  }
  return framed(lines);
}

// A run with a study of its flips.
struct StudiedRun {
  std::string title;
  int colour = 0;  // as in the page's other charts
  const Json* study = nullptr;
  std::vector<Json> layers;
};

std::vector<std::string> names_of(const std::vector<Json>& layers) {
  std::vector<std::string> names;
  for (const Json& layer : layers) names.push_back(text(layer, "layer"));
  return names;
}

// The layer at this place of every run's study: both charts of it.
std::string layer_of_all(const std::vector<StudiedRun>& runs, std::size_t from_last, const std::string& name) {
  LineChart lines = promises_chart(name + ": what many flips at once keep of their promise");
  lines.solid_note = "on the same images";
  lines.faint_note = "on others";
  BarChart bars;
  bars.title = name + ": flips that lower the loss by themselves";
  bars.x = {"% of all flips", false};
  bars.series = {{"flips that lower the loss", {}, 0}};
  bars.limit = 50;  // of a net at random
  bars.width = half_width;
  for (const StudiedRun& run : runs) {
    const Json& layer = run.layers[run.layers.size() - 1 - from_last];
    for (const bool faint : {false, true}) {
      Series series = kept_promises(layer, faint ? "on_others" : "realised");
      series.name = run.title;
      series.colour = run.colour;
      series.faint = faint;
      if (has_value(series)) lines.series.push_back(std::move(series));
    }
    bars.rows.push_back(run.title);
    bars.series[0].values.push_back(100 * number(layer, "lower"));
    bars.row_notes.push_back(percent(number(layer, "lower")));
  }
  return (lines.series.empty() ? "" : framed(lines)) + framed(bars);
}

// "512", or "100 to 512" where the runs differ.
std::string images_of_all(const std::vector<StudiedRun>& runs, const char* key) {
  const auto less = [&](const StudiedRun& a, const StudiedRun& b) { return number(*a.study, key) < number(*b.study, key); };
  const auto [low, high] = std::minmax_element(runs.begin(), runs.end(), less);
  const std::string least = whole_text(number(*low->study, key));
  const std::string most = whole_text(number(*high->study, key));
  return least == most ? least : least + " to " + most;
}

}  // namespace

std::string flips(const ReportInput& input) {
  if (!input.flips.is_object()) return "";
  std::string charts;
  for (const Json& layer : objects(input.flips, "layers")) charts += chart(layer, text(input.flips, "others_are"));
  if (charts.empty()) return "";
  return section(
      "flips", "What flips would do",
      fmt::format(
          "The exact change of the loss by every single flip of a weight, over {} training images, with the "
          "thresholds as they are. Then the best of them are made at once: 100% is the sum of what each does by itself; "
          "below 0 the loss has grown. Also on {} images that they were not chosen for.",
          whole_text(number(input.flips, "images")), whole_text(number(input.flips, "others"))),
      pair(charts));
}

std::string flips_of_runs(const std::vector<const ReportInput*>& inputs) {
  std::vector<StudiedRun> runs;
  std::vector<std::string> without;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!model_kind(*inputs[i]).empty()) continue;  // float nets have no flips
    StudiedRun run = {inputs[i]->title, static_cast<int>(i % palette_size), &inputs[i]->flips, {}};
    if (inputs[i]->flips.is_object()) run.layers = objects(inputs[i]->flips, "layers");
    if (run.layers.empty()) {
      without.push_back(escape(run.title));
    } else {
      runs.push_back(std::move(run));
    }
  }
  if (runs.empty()) return "";
  const std::vector<std::string> names = names_of(runs.front().layers);
  const bool alike =
      std::all_of(runs.begin(), runs.end(), [&](const StudiedRun& run) { return names_of(run.layers) == names; });
  std::string charts;
  if (alike) {
    for (std::size_t i = 0; i < names.size(); ++i) charts += layer_of_all(runs, names.size() - 1 - i, names[i]);
  } else {
    charts = layer_of_all(runs, 0, "the last layer");
  }
  std::string note = fmt::format(
      "The best flips are made at once: 100% is the sum of what each does to the loss by itself, below 0 the loss has "
      "grown. Over {} training images, and on {} others that the flips were not chosen for. Beside it stands the share of "
      "single flips that lower the loss: of a random net about half.",
      images_of_all(runs, "images"), images_of_all(runs, "others"));
  if (!alike) note += " The studied layers of these nets differ: shown is the last of each.";
  if (!without.empty()) {
    note += fmt::format(" Without a study (<code>bitloom inspect RUN --flips</code>): {}.", fmt::join(without, ", "));
  }
  return section("flips", "What flips would do", note, pair(charts));
}

}  // namespace bitloom::report
