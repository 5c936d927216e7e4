// The page of a float model's run: what src/train/run.h records. Loss, learning rate, gradient norm, speed and memory over the
// tokens (or images) that were trained on.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "report/markup.h"
#include "report/plot.h"
#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using nlohmann::json;

// The lines by event.
struct Lines {
  std::vector<json> starts, steps, evaluations;
  json result;

  explicit Lines(const std::vector<json>& metrics) {
    for (const json& line : metrics) {
      if (!line.is_object()) continue;
      const std::string event = text(line, "event");
      if (event == "start") starts.push_back(line);
      if (event == "step") steps.push_back(line);
      if (event == "evaluation") evaluations.push_back(line);
      if (event == "result") result = line;
    }
  }
  bool finished() const { return result.is_object(); }
  json last_step() const { return steps.empty() ? json::object() : steps.back(); }
};

// x: steps.
Series curve(const std::vector<json>& lines, const char* key, const char* name, int colour, double scale = 1) {
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

std::string chart(const char* title, const Axis& y, std::vector<Series> series, bool wide) {
  std::erase_if(series, [](const Series& each) { return !has_value(each); });
  if (series.empty()) return "";
  LineChart line;
  line.title = title;
  line.x.title = "step";
  line.y = y;
  if (!wide) line.width = half_width;
  line.series = std::move(series);
  return framed(line);
}

std::string heading(const ReportInput& input, const Lines& lines) {
  const json& start = lines.starts.front();
  std::string line = text(start, "kind");
  const double parameters = number(start, "parameters");
  if (std::isfinite(parameters)) line += " · " + count_text(parameters) + " parameters";
  if (!text(start, "dtype").empty()) line += " · " + text(start, "dtype");
  if (!text(start, "time").empty()) line += " · started " + text(start, "time");
  if (lines.starts.size() > 1) line += fmt::format(" · resumed, {} starts", lines.starts.size());
  std::string html = fmt::format("<header><h1>{}</h1><p>{}</p></header>\n",
                                 escape(input.title.empty() ? "training run" : input.title), escape(line));
  if (!lines.finished()) {
    const double step = number(lines.last_step(), "step");
    html += fmt::format(R"(<p class="banner"><b>This run is unfinished:</b> {}.</p>)",
                        std::isfinite(step) ? fmt::format("{} of {} steps are recorded", whole_text(step),
                                                          whole_text(number(lines.starts.back(), "steps")))
                                            : "no step has been recorded yet") +
            "\n";
  }
  return html;
}

std::string cards(const Lines& lines) {
  double best = missing;
  double best_step = missing;
  for (const json& line : lines.evaluations) {
    const double loss = number(line, "loss");
    if (std::isfinite(best) && !(loss < best)) continue;
    best = loss;
    best_step = number(line, "step");
  }
  const json last = lines.last_step();
  const json& start = lines.starts.back();
  std::string html;
  const auto add = [&](std::string_view label, const std::string& value, const std::string& note, bool lead = false) {
    if (value != nothing) html += card(label, value, note, lead);
  };
  const auto nats = [](double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string(nothing); };
  add("Validation loss", nats(best),
      std::isfinite(best) ? fmt::format("nats, best, after step {}; perplexity {:.2f}", whole_text(best_step), std::exp(best))
                          : "",
      true);
  add("Training loss", nats(number(last, "loss")), "nats, last recorded", true);
  const double seconds = number(lines.finished() ? lines.result : last, "seconds");
  const double targets = number(last, "targets");
  add("Time", duration_text(seconds), lines.finished() ? "everything included" : "so far");
  add("Tokens", count_text(targets), "trained on");
  std::vector<double> rates;
  for (const json& line : lines.steps) {
    if (const double rate = number(line, "targets_per_second"); std::isfinite(rate)) rates.push_back(rate);
  }
  if (!rates.empty()) {
    const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
    std::nth_element(rates.begin(), middle, rates.end());
    const double share = *middle * number(start, "operations_per_token") / number(start, "peak_operations");
    add("Speed", count_text(*middle) + "/s",
        std::isfinite(share) ? fmt::format("tokens, median; {:.0f}% of the matmul peak", 100 * share) : "tokens, median");
  }
  add("Peak memory", bytes_text(number(last, "memory_bytes")), "of tensors");
  add("Kept for backward", bytes_text(number(last, "stash_bytes")), "of a micro-batch");
  add("Model file", bytes_text(number(lines.result, "model_bytes")), "tokenizer included");
  return html.empty() ? "" : "<div class=\"cards\" id=\"headline\">" + html + "</div>\n";
}

std::string curves(const Lines& lines) {
  const std::string loss = chart(
      "Loss", {"nats"}, {curve(lines.steps, "loss", "training", 0), curve(lines.evaluations, "loss", "validation", 1)}, true);
  const std::string rest =
      chart("Learning rate", {"per step"}, {curve(lines.steps, "rate", "", 2)}, false) +
      chart("Gradient norm", {"before clipping, largest", true}, {curve(lines.steps, "gradient_norm", "", 3)}, false) +
      chart("Speed", {"thousand tokens/s"}, {curve(lines.steps, "targets_per_second", "", 4, 1e-3)}, false) +
      chart("Memory of tensors", {"MiB, peak"},
            {curve(lines.steps, "memory_bytes", "all", 5, 0x1p-20),
             curve(lines.steps, "stash_bytes", "kept for backward", 6, 0x1p-20)},
            false);
  return section("curves", "Training", "", loss + pair(rest));
}

}  // namespace

std::string float_report(const ReportInput& input) {
  const Lines lines(input.metrics);
  const json& start = lines.starts.front();
  std::string body = heading(input, lines) + cards(lines) + curves(lines);
  ReportInput options;
  options.config = input.config;
  // A 0 or -1 that was given may stand for what the run found by itself.
  const json& latest = lines.starts.back();
  if (const auto found = latest.find("options"); found != latest.end() && found->is_object() && options.config.is_object()) {
    for (const auto& [key, value] : found->items()) {
      if (options.config.contains(key)) options.config[key] = value;
    }
  }
  body += configuration(options);
  RunLog log;
  log.start.command = text(start, "command");
  log.start.version = text(start, "version");
  body += repeat_command(log, "");
  return page(input.title, text(start, "version"), body);
}

}  // namespace bitloom::report
