#include "report/float_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using nlohmann::json;

double median_rate(const FloatLines& lines) {
  std::vector<double> rates;
  for (const json& line : lines.steps) {
    if (const double rate = number(line, "targets_per_second"); std::isfinite(rate)) rates.push_back(rate);
  }
  if (rates.empty()) return missing;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

// A curve for every residual block.
std::vector<Series> block_scales(const FloatLines& lines) {
  std::vector<Series> all;
  for (const json& line : lines.steps) {
    const auto scales = line.find("block_scales");
    if (scales == line.end() || !scales->is_array()) continue;
    for (std::size_t i = 0; i < scales->size(); ++i) {
      if (i == all.size()) all.push_back({fmt::format("block {}", i), {}, {}, static_cast<int>(i % palette_size)});
      all[i].x.push_back(number(line, "step"));
      all[i].y.push_back((*scales)[i].is_number() ? (*scales)[i].get<double>() : missing);
    }
  }
  // Names of more would hide the curves.
  for (std::size_t i = 1; i + 1 < all.size() && all.size() > 8; ++i) all[i].name.clear();
  return all;
}

}  // namespace

std::string model_kind(const ReportInput& input) {
  // The "start" line of train/run.h names it.
  for (const json& line : input.metrics) {
    if (!line.is_object() || text(line, "event") != "start") continue;
    if (std::string kind = text(line, "kind"); !kind.empty()) return kind;
  }
  return input.kind;
}

FloatLines::FloatLines(const ReportInput& input) : kind(model_kind(input)) {
  for (const json& line : input.metrics) {
    if (!line.is_object()) continue;
    const std::string event = text(line, "event");
    if (event == "start") starts.push_back(line);
    if (event == "step") steps.push_back(line);
    if (event == "samples") samples.push_back(line);
    if (event == "exchange") exchanges.push_back(line);
    if (event == "evaluation") evaluations.push_back(line);
    if (event == "result") result = line;
    if (event == "test") test = line;
  }
  keeps_best = input.config.is_object() && text(input.config, "keep") == "best";
}

const json& FloatLines::best_evaluation() const {
  const json* best = &none_;
  for (const json& line : evaluations) {
    const double loss = number(line, "loss");
    if (std::isfinite(loss) && !(loss >= number(*best, "loss"))) best = &line;
  }
  return *best;
}

double FloatLines::of_net(const char* key) const {
  const auto net = last_start().find("net");
  return net != last_start().end() && net->is_object() ? number(*net, key) : missing;
}

double FloatLines::steps_per_epoch() const { return kind == "cnn" ? number(last_start(), "steps_per_epoch") : missing; }

std::string FloatLines::time_of(double step) const {
  const double epochs = step / steps_per_epoch();
  return std::isfinite(epochs) ? fmt::format("epoch {:.3g}", epochs) : "step " + whole_text(step);
}

Series curve(const std::vector<json>& lines, const char* key, const char* name, int colour, double scale) {
  Series series;
  series.name = name;
  series.colour = colour;
  for (const json& line : lines) {
    series.x.push_back(number(line, "step"));
    series.y.push_back(number(line, key) * scale);
  }
  return series;
}

bool has_value(const Series& series) {
  return std::any_of(series.y.begin(), series.y.end(), [](double y) { return std::isfinite(y); });
}

std::string chart(const FloatLines& lines, const char* title, const Axis& y, std::vector<Series> series, bool wide,
                  const char* faint_note) {
  std::erase_if(series, [](const Series& each) { return !has_value(each); });
  if (std::ranges::all_of(series, &Series::faint)) return "";
  const double steps_per_epoch = lines.steps_per_epoch();
  const bool has_epochs = steps_per_epoch > 0;
  for (Series& each : series) {
    for (double& x : each.x) x = has_epochs ? x / steps_per_epoch : x;
  }
  LineChart line;
  line.title = title;
  line.x.title = has_epochs ? "epoch" : "step";
  line.y = y;
  if (!wide) line.width = half_width;
  line.series = std::move(series);
  line.faint_note = faint_note;
  return framed(line);
}

std::string loss_chart(const FloatLines& lines, bool wide) {
  return chart(lines, "Loss", {"nats"},
               {curve(lines.steps, "loss", "training", 0), curve(lines.evaluations, "loss", "validation", 1)}, wide);
}

std::string engine_curves(const FloatLines& lines, const char* unit, double scale, bool stash) {
  std::vector<Series> memory{curve(lines.steps, "memory_bytes", stash ? "all" : "", 5, 0x1p-20)};
  if (stash) memory.push_back(curve(lines.steps, "stash_bytes", "kept for backward", 6, 0x1p-20));
  return chart(lines, "Learning rate", {"per step"}, {curve(lines.steps, "rate", "", 2)}, false) +
         chart(lines, "Gradient norm", {"before clipping, largest", true}, {curve(lines.steps, "gradient_norm", "", 3)},
               false) +
         chart(lines, "Speed", {unit}, {curve(lines.steps, "targets_per_second", "", 4, scale)}, false) +
         chart(lines, "Memory of tensors", {"MiB, peak"}, memory, false);
}

std::string gradient_scale_chart(const FloatLines& lines) {
  return chart(lines, "Gradient scales", {"of residual blocks", true}, block_scales(lines), true);
}

std::string exchange_charts(const FloatLines& lines) {
  return chart(lines, "Workers", {"whose messages a round has"}, {curve(lines.exchanges, "workers", "", 0)}, false) +
         chart(lines, "Waiting for a round", {"seconds"}, {curve(lines.exchanges, "waited_seconds", "", 1)}, false);
}

std::string nats(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string(nothing); }

void Cards::add(std::string_view label, const std::string& value, const std::string& note, bool lead) {
  if (value != nothing) html_ += card(label, value, note, lead);
}

void add_costs(Cards& cards, const FloatLines& lines, const CostCards& what) {
  const json& last = lines.last_step();
  const json& start = lines.last_start();
  cards.add("Time", duration_text(number(lines.finished() ? lines.result : last, "seconds")),
            lines.finished() ? "everything included" : "so far");
  cards.add(what.heading, count_text(number(last, "targets")), "trained on");
  const double rate = median_rate(lines);
  const double operations = number(start, what.operations);
  const double share = rate * operations / number(start, "peak_operations");
  cards.add("Speed", std::isfinite(rate) ? count_text(rate) + "/s" : nothing,
            share <= 1  // more: the peak was measured while other programs ran; NaN: it was not
                ? fmt::format("{}, median; {:.0f}% of the matmul peak", what.unit, 100 * share)
                : fmt::format("{}, median", what.unit));
  // A forward pass, a third of a training step, whose multiplications and additions come in pairs.
  if (what.per_image) cards.add("Work per image", count_text(operations / 6), "multiply-adds to classify it");
  cards.add("Peak memory", bytes_text(number(last, "memory_bytes")), "of tensors");
  if (last.contains("sent_bytes")) cards.add("Sent", bytes_text(number(last, "sent_bytes")), "by a process in a step");
  if (!lines.exchanges.empty()) {
    cards.add("Message", bytes_text(number(lines.exchanges.back(), "sent_bytes")),
              fmt::format("the last of {}; the reply has {}", lines.exchanges.size(),
                          bytes_text(number(lines.exchanges.back(), "received_bytes"))));
  }
  if (what.stash) cards.add("Kept for backward", bytes_text(number(last, "stash_bytes")), "of a micro-batch");
  cards.add("Model file", bytes_text(number(lines.result, "model_bytes")), what.model_note);
}

}  // namespace bitloom::report
