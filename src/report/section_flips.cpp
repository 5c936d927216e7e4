// Findings of `bitloom inspect RUN --flips`: how well changes of the loss by many flips at once are foretold.
#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "report/markup.h"
#include "report/plot.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using Json = nlohmann::json;

std::string chart(const Json& layer, const std::string& others) {
  LineChart lines;
  lines.title = fmt::format("{}: {} of {} flips lower the loss by themselves", text(layer, "layer"),
                            percent(number(layer, "lower")), whole_text(number(layer, "moves")));
  lines.x = {"the best flips, made at once", true};
  lines.y = {"drop of the loss, % of what they promise", false};
  lines.width = half_width;
  const std::array<std::pair<const char*, std::string>, 2> curves{
      {{"realised", "on the same images"}, {"on_others", fmt::format("on {} images", others)}}};
  for (std::size_t i = 0; i < curves.size(); ++i) {
    Series series;
    series.name = curves[i].second;
    series.colour = static_cast<int>(i);
    for (const Json& each : objects(layer, "together")) {
      series.x.push_back(number(each, "flips"));
      series.y.push_back(100 * number(each, curves[i].first) / number(each, "predicted"));
    }
    lines.series.push_back(std::move(series));
  }
  return framed(lines);
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

}  // namespace bitloom::report
