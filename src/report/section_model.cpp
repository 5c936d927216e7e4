// The trained model: confusion of the classes, filters of the encoder, the layers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report/markup.h"
#include "report/plot.h"
#include "report/scale.h"
#include "report/sections.h"

namespace bitloom::report {

namespace {

constexpr std::size_t most_classes = 200;  // with more, a cell of the heat map would be smaller than a pixel
constexpr std::size_t most_bars = 20;      // with more classes, only some are shown at first
constexpr std::size_t shown_bars = 12;

struct Mistake {
  std::size_t truth = 0, predicted = 0;
  double count = 0;
};

double row_sum(const std::vector<double>& row) { return std::accumulate(row.begin(), row.end(), 0.0); }

// Share of its images that each class gets right, NaN without images.
std::vector<double> class_accuracies(const ResultEvent& result) {
  std::vector<double> shares;
  for (std::size_t i = 0; i < result.classes.size(); ++i) {
    const double sum = row_sum(result.confusion[i]);
    shares.push_back(sum > 0 ? result.confusion[i][i] / sum : missing);
  }
  return shares;
}

std::string class_bars(const ResultEvent& result, const std::vector<std::size_t>& which, const std::string& title,
                       double width) {
  BarChart bars;
  bars.title = title;
  bars.x.title = "accuracy (%)";
  bars.width = width;
  bars.limit = 100;
  BarSeries series{"accuracy", {}, 0};
  const std::vector<double> shares = class_accuracies(result);
  for (const std::size_t i : which) {
    bars.rows.push_back(result.classes[i]);
    series.values.push_back(100 * shares[i]);
    bars.row_notes.push_back(std::isfinite(shares[i]) ? fmt::format("{:.1f}", 100 * shares[i]) : "no images");
  }
  bars.series.push_back(std::move(series));
  return framed(bars);
}

// The classes with the lowest accuracy, lowest first; classes without images come last.
std::vector<std::size_t> worst_classes(const ResultEvent& result, std::size_t count) {
  const std::vector<double> shares = class_accuracies(result);
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::size_t i) { return std::isfinite(shares[i]) ? shares[i] : 2.0; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  order.resize(std::min(order.size(), count));
  return order;
}

std::string mistake_table(const ResultEvent& result) {
  constexpr std::size_t shown = 6;
  std::vector<Mistake> mistakes;
  for (std::size_t i = 0; i < result.classes.size(); ++i) {
    for (std::size_t j = 0; j < result.classes.size(); ++j) {
      if (i != j && result.confusion[i][j] > 0) mistakes.push_back({i, j, result.confusion[i][j]});
    }
  }
  std::stable_sort(mistakes.begin(), mistakes.end(), [](const Mistake& a, const Mistake& b) { return a.count > b.count; });
  mistakes.resize(std::min(mistakes.size(), shown));
  std::vector<std::vector<std::string>> rows;
  for (const Mistake& mistake : mistakes) {
    rows.push_back({escape(result.classes[mistake.truth]), escape(result.classes[mistake.predicted]), grouped(mistake.count),
                    fmt::format("{:.1f}%", 100 * mistake.count / row_sum(result.confusion[mistake.truth]))});
  }
  if (rows.empty()) return "";
  return table({{"most frequent mistakes"}, {"taken for"}, {"images", true}, {"of the class", true}}, rows);
}

}  // namespace

std::string confusion(const ResultEvent& result, std::string_view note) {
  if (result.confusion.empty()) return "";
  std::string body, text(note);
  if (result.classes.size() <= most_classes) {
    text += " The diagonal counts the correct ones; the mistakes beside it are coloured relative to the most frequent one.";
    HeatMap map;
    map.title = "Confusion matrix";
    map.row_title = "true class";
    map.column_title = "predicted class";
    map.labels = result.classes;
    map.counts = result.confusion;
    body += framed(map);
  }
  const std::size_t n = result.classes.size();
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  const bool few = n <= most_bars;
  body += "<div>" + (few ? class_bars(result, all, "Accuracy per class", half_width)
                         : class_bars(result, worst_classes(result, shown_bars),
                                      fmt::format("Accuracy per class: the {} lowest of {}", shown_bars, n), half_width));
  body = pair(body + mistake_table(result) + "</div>");
  if (!few)
    body += "<details><summary>all classes</summary>" + class_bars(result, all, "Accuracy per class", 2 * half_width) +
            "</details>\n";
  return section("confusion", "Which classes are told apart", text, body);
}

std::string filters(const Filters& from, std::string_view meaning) {
  if (from.count == 0) return "";
  TileChart tiles{fmt::format("{} filters of {} x {} pixels", from.count, from.height, from.width),
                  from.count,
                  from.height,
                  from.width,
                  from.colours,
                  from.taps};
  std::string note = fmt::format("{} Each is scaled on its own: mid-grey is 0, its largest weight is black or white.", meaning);
  if (from.count > tiles.limit) note += fmt::format(" The first {} of {} are shown.", tiles.limit, from.count);
  return section("filters", "First-layer filters", note, framed(tiles));
}

std::string layer_table(const ReportInput& input, const RunLog& log) {
  if (input.layers.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  double weight_bits = 0, bit_macs = 0;
  for (const LayerRow& layer : input.layers) {
    weight_bits += static_cast<double>(layer.weight_bits);
    bit_macs += static_cast<double>(layer.bit_macs);
    double accuracy = missing;
    // A reused stage may have no epochs here; it usually has the name of its layer.
    for (const StageEvent& stage : log.stages) {
      if (stage.stage == layer.name) accuracy = stage.plain_accuracy;
    }
    for (const EpochEvent& epoch : log.epochs) {
      for (const LayerEpoch& entry : epoch.layers) {
        if (entry.layer == layer.name && std::isfinite(entry.validation_accuracy)) accuracy = entry.validation_accuracy;
      }
    }
    rows.push_back({escape(layer.name), escape(layer.inputs), escape(layer.output),
                    grouped(static_cast<double>(layer.weight_bits)), count_text(static_cast<double>(layer.bit_macs)),
                    percent(accuracy), escape(layer.state)});
  }
  return section(
      "layers", "Layers",
      "Output size is height x width x channels; bit multiply-adds (XOR, popcount, add) are per image; the accuracy is "
      "that of the layer's own head on images as they are, without mirror images, as in the learning curves.",
      table({{"layer"},
             {"inputs"},
             {"output size"},
             {"weight bits", true},
             {"bit multiply-adds", true},
             {"validation accuracy", true},
             {"state"}},
            rows, {"total", "", "", grouped(weight_bits), count_text(bit_macs), "", ""}));
}

}  // namespace bitloom::report
