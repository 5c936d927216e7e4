// Several runs on one page: what came of each, their curves over each other, what flips would do, and the options in which they
// differ.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "report/float_lines.h"
#include "report/markup.h"
#include "report/plot.h"
#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using nlohmann::json;

// A share of a number of images.
struct Accuracy {
  double share = missing, images = missing;
};

// Results of a run of any kind that are compared; `missing` where a kind has none.
struct Compared {
  std::string title, what;
  Accuracy test, validation;
  double loss = missing;  // of validation, the best
  double seconds = missing, model_bytes = missing, memory_bytes = missing, sent_bytes = missing;
  bool finished = false;
  std::string progress_unit;                                                      // of the last two's x
  Series accuracy_by_time, loss_by_time, accuracy_by_progress, loss_by_progress;  // minutes; percent and nats
};

void add_point(Series& by_time, Series& by_progress, double seconds, double progress, double value) {
  by_time.x.push_back(seconds / 60);
  by_time.y.push_back(value);
  by_progress.x.push_back(progress);
  by_progress.y.push_back(value);
}

Compared compared_binary(const ReportInput& input) {
  const RunLog log = read_run(input.metrics);
  Compared run;
  run.what = "binary " + log.start.net;
  run.progress_unit = "epoch";
  double epochs = 0;
  for (const EpochEvent& epoch : log.epochs) {
    ++epochs;
    double accuracy = missing;
    double loss = missing;
    for (const LayerEpoch& layer : epoch.layers) {
      accuracy = std::fmax(accuracy, layer.validation_accuracy);
      loss = std::fmin(loss, layer.loss);
    }
    add_point(run.accuracy_by_time, run.accuracy_by_progress, epoch.axis_seconds, epochs, 100 * accuracy);
    add_point(run.loss_by_time, run.loss_by_progress, epoch.axis_seconds, epochs, loss);
    run.sent_bytes = epoch.bytes_up;
  }
  if (!log.epochs.empty()) {
    run.seconds = log.epochs.back().axis_seconds;
    run.validation = {run.accuracy_by_time.y.back() / 100, log.start.validation_images};
  }
  if (const auto& result = log.result) {
    run.finished = true;
    run.test = {result->test_accuracy, result->images};
    run.validation = {result->validation_accuracy, log.start.validation_images};
    run.model_bytes = result->model_bytes;
    run.memory_bytes = result->peak_memory_bytes;
    // With what reused stages took when they were trained: what the result costs.
    run.seconds = std::fmax(run.seconds, result->seconds);
  }
  return run;
}

Compared compared_float(const ReportInput& input) {
  const FloatLines lines(input);
  Compared run;
  run.what = lines.kind;
  const json& start = lines.last_start();
  if (const auto net = start.find("net"); net != start.end() && net->is_object()) run.what += " " + text(*net, "name");
  const double steps_per_epoch = lines.steps_per_epoch();
  const bool has_epochs = steps_per_epoch > 0;
  run.progress_unit = has_epochs ? "epoch" : "step";
  const auto seconds_at = [&](const json& line) {
    if (const double own = number(line, "seconds"); std::isfinite(own)) return own;
    for (const json& step : lines.steps) {
      if (number(step, "step") >= number(line, "step")) return number(step, "seconds");
    }
    return missing;
  };
  for (const json& line : lines.evaluations) {
    const double progress = number(line, "step") / (has_epochs ? steps_per_epoch : 1);
    const double seconds = seconds_at(line);
    add_point(run.accuracy_by_time, run.accuracy_by_progress, seconds, progress, 100 * number(line, "accuracy"));
    add_point(run.loss_by_time, run.loss_by_progress, seconds, progress, number(line, "loss"));
  }
  const json& own = lines.evaluation_of_model();
  run.validation = {number(own, "accuracy"), number(own, "targets")};
  run.test = {number(lines.test, "accuracy"), number(lines.test, "images")};
  run.loss = number(lines.best_evaluation(), "loss");
  run.finished = lines.finished();
  const json& last = lines.finished() ? lines.result : lines.last_step();
  run.seconds = number(last, "seconds");
  run.memory_bytes = number(last, "memory_bytes");
  run.model_bytes = number(lines.result, "model_bytes");
  run.sent_bytes = number(lines.last_step(), "sent_bytes");
  return run;
}

Compared compared(const ReportInput& input) {
  Compared run = model_kind(input).empty() ? compared_binary(input) : compared_float(input);
  run.title = input.title;
  return run;
}

// Wilson's interval of 95%: what another draw of as many images would have given.
std::string with_interval(const Accuracy& accuracy) {
  if (!std::isfinite(accuracy.share)) return nothing;
  const std::string share = percent(accuracy.share);
  if (!(accuracy.images >= 1)) return share;
  constexpr double z = 1.959964;
  const double n = accuracy.images;
  const double p = accuracy.share;
  const double centre = (p + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z / (1 + z * z / n) * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  return fmt::format("{} <small>{:.1f} to {:.1f}</small>", share, 100 * (centre - half), 100 * (centre + half));
}

std::string results(const std::vector<Compared>& runs) {
  struct Figure {
    const char* heading;
    std::string (*of)(const Compared& run);
  };
  static constexpr Figure figures[] = {
      {"test accuracy", [](const Compared& run) { return with_interval(run.test); }},
      {"validation accuracy", [](const Compared& run) { return with_interval(run.validation); }},
      {"validation loss", [](const Compared& run) { return nats(run.loss); }},
      {"time", [](const Compared& run) { return duration_text(run.seconds); }},
      {"model file", [](const Compared& run) { return bytes_text(run.model_bytes); }},
      {"peak memory", [](const Compared& run) { return bytes_text(run.memory_bytes); }},
      {"sent in a step", [](const Compared& run) { return bytes_text(run.sent_bytes); }},
  };
  std::vector<Column> columns{{"run", false}, {"net", false}};
  std::vector<std::vector<std::string>> rows;
  for (const Compared& run : runs)
    rows.push_back({escape(run.title) + (run.finished ? "" : " (unfinished)"), escape(run.what)});
  for (const Figure& figure : figures) {
    std::vector<std::string> cells;
    for (const Compared& run : runs) cells.push_back(figure.of(run));
    if (std::all_of(cells.begin(), cells.end(), [](const std::string& cell) { return cell == nothing; })) continue;
    columns.push_back({figure.heading, true});
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].push_back(cells[i]);
  }
  return section(
      "results", "Results",
      "The best on validation images or text first. A binary net's accuracies are those of the views that it votes with, a "
      "convolutional net's is that of images as they are. Beside them stand Wilson's intervals of 95%, by the number of "
      "images alone: two runs on the same images can be told apart by less; other "
      "seeds may differ by more. Times are those of training "
      "and evaluation, of reused stages too.",
      table(columns, rows));
}

std::string overlaid(const std::vector<Compared>& runs, Series Compared::*curve, const char* title, const std::string& x,
                     const Axis& y) {
  LineChart chart;
  chart.title = title;
  chart.x.title = x;
  chart.y = y;
  chart.width = half_width;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series series = runs[i].*curve;
    series.name = runs[i].title;
    series.colour = static_cast<int>(i % palette_size);
    if (has_value(series)) chart.series.push_back(std::move(series));
  }
  return chart.series.empty() ? "" : framed(chart);
}

std::string curves(const std::vector<Compared>& runs) {
  const std::string& unit = runs.front().progress_unit;
  const bool alike = std::all_of(runs.begin(), runs.end(), [&](const Compared& run) { return run.progress_unit == unit; });
  const Axis percent_axis{"%", false, true};
  std::string charts = overlaid(runs, &Compared::accuracy_by_time, "Validation accuracy by time", "time (min)", percent_axis);
  if (alike) charts += overlaid(runs, &Compared::accuracy_by_progress, "Validation accuracy by progress", unit, percent_axis);
  charts += overlaid(runs, &Compared::loss_by_time, "Loss by time", "time (min)", {"nats"});
  if (alike) charts += overlaid(runs, &Compared::loss_by_progress, "Loss by progress", unit, {"nats"});
  if (charts.empty()) return "";
  return section(
      "curves", "Training",
      "Accuracy of validation images as they are; of a binary net that of the best head that trains. Loss: of binary "
      "nets that of training, of others that of validation.",
      pair(charts));
}

// The value of an option as text; "" if the run has none of this name.
std::string option_of(const ReportInput& input, const std::string& name) {
  if (!input.config.is_object()) return "";
  const auto found = input.config.find(name);
  if (found == input.config.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string differences(const std::vector<const ReportInput*>& inputs) {
  std::set<std::string> names;
  for (const ReportInput* input : inputs) {
    if (!input->config.is_object()) continue;
    for (const auto& [name, value] : input->config.items()) names.insert(name);
  }
  std::vector<Column> columns{{"option", false}};
  for (const ReportInput* input : inputs) columns.push_back({input->title, false});
  std::vector<std::vector<std::string>> rows;
  for (const std::string& name : names) {
    std::vector<std::string> row{escape(name)};
    std::set<std::string> values;  // of the runs that have the option: those of other kinds have others
    for (const ReportInput* input : inputs) {
      const bool has_it = input->config.is_object() && input->config.contains(name);
      if (has_it) values.insert(option_of(*input, name));
      row.push_back(has_it ? escape(option_of(*input, name)) : nothing);
    }
    if (values.size() > 1) rows.push_back(std::move(row));
  }
  if (rows.empty()) return section("options", "Options", "None differs.", "");
  return section("options", "Options that differ", "", "<div class=\"even\">" + table(columns, rows) + "</div>\n");
}

// By accuracy, or else by loss, of validation: test images must not choose. What has neither comes last.
bool is_better(const Compared& a, const Compared& b) {
  const auto key = [](const Compared& run) {
    return std::isfinite(run.validation.share) ? run.validation.share
           : std::isfinite(run.loss)           ? -run.loss
                                               : -std::numeric_limits<double>::infinity();
  };
  return key(a) > key(b);
}

}  // namespace

std::string render_comparison(const std::vector<ReportInput>& given) {
  std::vector<std::pair<Compared, const ReportInput*>> sorted;
  for (const ReportInput& input : given) sorted.emplace_back(compared(input), &input);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return is_better(a.first, b.first); });
  std::vector<Compared> runs;
  std::vector<const ReportInput*> inputs;
  for (auto& [run, input] : sorted) {
    runs.push_back(std::move(run));
    inputs.push_back(input);
  }
  const std::string title = fmt::format("{} runs", inputs.size());
  return page(
      title, "",
      "<header><h1>" + title + "</h1></header>\n" + results(runs) + curves(runs) + flips_of_runs(inputs) + differences(inputs));
}

}  // namespace bitloom::report
