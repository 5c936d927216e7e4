// How the run went: learning curves, activity of the weights, where the time went, the stages.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "core/text.h"
#include "report/markup.h"
#include "report/plot.h"
#include "report/sections.h"

namespace bitloom::report {

namespace {

struct TimeUnit {
  double seconds = 1;
  std::string title;
};

double latest_second(const RunLog& log) {
  double latest = 0;
  for (const EpochEvent& epoch : log.epochs) {
    if (epoch.axis_seconds < 1e12) latest = std::max(latest, epoch.axis_seconds);
  }
  return latest;
}

TimeUnit time_unit(const RunLog& log) {
  const double latest = latest_second(log);
  const char* what = log.any_reused() ? "training time, reused stages included" : "time since the start";
  if (latest > 3 * 3600) return {3600, fmt::format("{} (h)", what)};
  if (latest > 180) return {60, fmt::format("{} (min)", what)};
  return {1, fmt::format("{} (s)", what)};
}

// Stages one after the other on the time axis, each from the end of the one before to its last epoch.
std::vector<Band> stage_bands(const RunLog& log, const TimeUnit& unit) {
  std::vector<Band> bands;
  double from = 0;
  for (const EpochEvent& epoch : log.epochs) {
    const double to = epoch.axis_seconds / unit.seconds;
    if (!std::isfinite(to)) continue;
    const std::string label = epoch.reused ? epoch.stage + " (reused)" : epoch.stage;
    if (bands.empty() || bands.back().label != label) bands.push_back({from, to, label, epoch.reused});
    bands.back().to = std::max(bands.back().to, to);
    from = bands.back().to;
  }
  return bands;
}

using Field = double LayerEpoch::*;

// One curve per layer that has any value of the field. `scale` turns shares into percent.
std::vector<Series> layer_curves(const RunLog& log, Field field, double scale, bool faint, const TimeUnit& unit) {
  std::vector<Series> curves;
  const std::vector<std::string> names = log.layer_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    Series series;
    series.name = names[i].empty() ? "(no name)" : names[i];
    series.colour = static_cast<int>(i % palette_size);
    series.faint = faint;
    bool any = false;
    for (const EpochEvent& epoch : log.epochs) {
      for (const LayerEpoch& layer : epoch.layers) {
        if (layer.layer != names[i]) continue;
        series.x.push_back(epoch.axis_seconds / unit.seconds);
        series.y.push_back(layer.*field * scale);
        any = any || std::isfinite(series.y.back());
      }
    }
    if (any) curves.push_back(std::move(series));
  }
  return curves;
}

// One of two charts side by side, over the time of the run.
std::string half_chart(const RunLog& log, const TimeUnit& unit, const char* title, const Axis& y, std::vector<Series> series) {
  LineChart half;
  half.title = title;
  half.x.title = unit.title;
  half.y = y;
  half.width = half_width;
  half.bands = stage_bands(log, unit);
  half.series = std::move(series);
  return framed(half);
}

// A layer may have trained in several stages, and a stage may train several layers; what a layer has is its last value.
double last_validation(const RunLog& log, const std::string& stage) {
  double value = missing;
  for (const EpochEvent& epoch : log.epochs) {
    if (epoch.stage != stage) continue;
    for (const LayerEpoch& layer : epoch.layers) {
      if (std::isfinite(layer.validation_accuracy)) value = layer.validation_accuracy;
    }
  }
  return value;
}

struct StageTotals {
  double epochs = 0;
  double planned = missing;
  double measured = 0;  // seconds in the parts
  std::string layers;
};

StageTotals totals_of(const RunLog& log, const std::string& stage) {
  StageTotals totals;
  std::vector<std::string> names;
  for (const EpochEvent& epoch : log.epochs) {
    if (epoch.stage != stage) continue;
    ++totals.epochs;
    if (std::isfinite(epoch.epochs)) totals.planned = epoch.epochs;
    for (const auto& [part, seconds] : epoch.times) totals.measured += seconds > 0 ? seconds : 0;
    for (const LayerEpoch& layer : epoch.layers) {
      if (!contains(names, layer.layer)) names.push_back(layer.layer);
    }
  }
  for (const std::string& name : names) totals.layers += (totals.layers.empty() ? "" : ", ") + name;
  return totals;
}

// How long a stage was trained, by whomever.
double stage_seconds(const StageEvent* event) {
  if (event == nullptr) return missing;
  return event->reused && std::isfinite(event->trained_seconds) ? event->trained_seconds : event->seconds;
}

// The time of an update by sparse messages: a bar for each stage and row of update_rows.
std::string update_chart(const RunLog& log) {
  BarChart bars;
  bars.title = "Time of an update";
  bars.x.title = "milliseconds";
  for (std::size_t p = 0; p < update_parts.size(); ++p) {
    bars.series.push_back({std::string(update_parts[p]), {}, static_cast<int>(p)});
  }
  for (const std::string& stage : log.stage_names()) {
    for (std::size_t row = 0; row < update_rows.size(); ++row) {
      if (row > 0 && log.start.ranks == 1) continue;
      const std::optional<UpdateTimes> times = log.update_times(stage, row);
      if (!times) continue;
      bars.rows.push_back(log.start.ranks == 1 ? stage : fmt::format("{}: {}", stage, update_rows[row]));
      for (std::size_t p = 0; p < times->size(); ++p) bars.series[p].values.push_back(1e3 * (*times)[p]);
      bars.row_notes.push_back(fmt::format("{:.3g} ms", 1e3 * std::accumulate(times->begin(), times->end(), 0.0)));
    }
  }
  if (bars.rows.empty()) return "";
  return framed(bars) +
         "<p class=\"note\">Compute is passes over images; encode is making, decoding and merging messages; update is choosing "
         "and "
         "making changes of weights; wait is for messages of others. Mean is that of the ranks, root is rank 0, busiest is "
         "the rank that waits least.</p>\n";
}

const StageEvent* event_of(const RunLog& log, const std::string& stage) {
  const auto found = std::find_if(log.stages.begin(), log.stages.end(), [&](const StageEvent& s) { return s.stage == stage; });
  return found == log.stages.end() ? nullptr : &*found;
}

// "Taken from the cache and not trained here: layer1, by runs/first on 2026-11-20T23:44:00Z." as markup.
std::string reused_note(const RunLog& log) {
  std::string list;
  for (const StageEvent& stage : log.stages) {
    if (!stage.reused) continue;
    list += (list.empty() ? "" : "; ") + escape(stage.stage);
    if (!stage.trained_by.empty()) list += " by " + escape(stage.trained_by);
    if (!stage.trained_at.empty()) list += " on " + escape(stage.trained_at);
  }
  return list.empty() ? list : " Taken from the cache, not trained by this run: " + list + ".";
}

}  // namespace

std::string learning_curves(const RunLog& log) {
  if (log.epochs.empty()) return "";
  const TimeUnit unit = time_unit(log);
  const auto curves = [&](const char* title, const char* y, Field solid, Field faint, double scale) {
    LineChart plot;
    plot.title = title;
    plot.x.title = unit.title;
    plot.y = {y, false, scale == 100};
    plot.bands = stage_bands(log, unit);
    plot.series = layer_curves(log, solid, scale, false, unit);
    if (faint != nullptr) {
      for (Series& series : layer_curves(log, faint, scale, true, unit)) plot.series.push_back(std::move(series));
      plot.solid_note = "validation";
      plot.faint_note = "training";
    }
    return framed(plot);
  };
  return section(
      "learning", "Learning curves",
      "The classifying head of each layer by itself on images as they are, without mirror images, measured at the end "
      "of every epoch. The columns are the stages of training; a layer is frozen when its stage ends." +
          reused_note(log),
      curves("Accuracy", "accuracy (%)", &LayerEpoch::validation_accuracy, &LayerEpoch::train_accuracy, 100) +
          curves("Training loss", "cross-entropy (nats)", &LayerEpoch::loss, nullptr, 1));
}

std::string weight_activity(const RunLog& log) {
  if (log.epochs.empty()) return "";
  const TimeUnit unit = time_unit(log);
  const auto plot = [&](const char* title, const char* y, bool logarithmic, Field field, double scale) {
    return half_chart(log, unit, title, {y, logarithmic, scale == 100}, layer_curves(log, field, scale, false, unit));
  };
  // Runs that learn from the exact loss change of every flip know it.
  const bool exact = std::ranges::any_of(log.epochs, [](const EpochEvent& epoch) {
    return std::ranges::any_of(epoch.layers, [](const LayerEpoch& layer) { return std::isfinite(layer.lower_share); });
  });
  return section(
      "activity", "What the weights do",
      "How many weights change sign in a step, and for what share of the pixels the count lies close enough to its "
      "threshold (in the surrogate-gradient window) to take part in learning.",
      pair(plot("Flips per step", "weights that flip", true, &LayerEpoch::flips_per_step, 1) +
           plot("Pixels in the surrogate-gradient window", "share of pixels (%)", false, &LayerEpoch::active_share, 100) +
           (exact
                ? plot("Flips that would lower a minibatch's loss", "share of flips (%)", false, &LayerEpoch::lower_share, 100)
                : "")));
}

std::string messages(const RunLog& log) {
  const bool any =
      std::any_of(log.epochs.begin(), log.epochs.end(), [](const EpochEvent& epoch) { return std::isfinite(epoch.bytes_up); });
  if (!any) return "";
  const TimeUnit unit = time_unit(log);
  using EpochField = double EpochEvent::*;
  const auto curve = [&](const char* name, EpochField field, double scale, int colour) {
    Series series;
    series.name = name;
    series.colour = colour;
    for (const EpochEvent& epoch : log.epochs) {
      series.x.push_back(epoch.axis_seconds / unit.seconds);
      series.y.push_back(epoch.*field * scale);
    }
    return series;
  };
  const auto plot = [&](const char* title, const char* y, std::vector<Series> series) {
    return half_chart(log, unit, title, {y, true}, std::move(series));
  };
  return section("messages", "What crosses the network",
                 "The mean size of what a logical worker sends in an update and of the server reply that it gets, everything "
                 "counted, and the share of gradients that its messages hold.",
                 pair(plot("Message size", "bytes per update",
                           {curve("sent", &EpochEvent::bytes_up, 1, 0), curve("received", &EpochEvent::bytes_down, 1, 1)}) +
                      plot("Gradients sent", "share (%)", {curve("", &EpochEvent::sent_share, 100, 0)})));
}

std::string time_split(const RunLog& log) {
  BarChart bars;
  bars.title = "Time per stage";
  bars.x.title = "seconds";
  std::vector<std::string> parts;
  for (const EpochEvent& epoch : log.epochs) {
    for (const auto& [part, seconds] : epoch.times) {
      if (!contains(parts, part)) parts.push_back(part);
    }
  }
  if (parts.empty()) return "";
  for (const std::string& stage : log.stage_names()) {
    if (totals_of(log, stage).epochs > 0) bars.rows.push_back(stage);
  }
  std::vector<double> measured(bars.rows.size(), 0), other(bars.rows.size(), 0);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    BarSeries series{parts[p], std::vector<double>(bars.rows.size(), 0), static_cast<int>(p % palette_size)};
    for (const EpochEvent& epoch : log.epochs) {
      const auto row = static_cast<std::size_t>(std::find(bars.rows.begin(), bars.rows.end(), epoch.stage) - bars.rows.begin());
      for (const auto& [part, seconds] : epoch.times) {
        if (part == parts[p] && seconds > 0) series.values[row] += seconds;
      }
    }
    for (std::size_t row = 0; row < measured.size(); ++row) measured[row] += series.values[row];
    bars.series.push_back(std::move(series));
  }
  bool any_other = false;
  for (std::size_t row = 0; row < bars.rows.size(); ++row) {
    const StageEvent* event = event_of(log, bars.rows[row]);
    if (const double seconds = stage_seconds(event); seconds > measured[row]) other[row] = seconds - measured[row];
    any_other = any_other || other[row] > 0;
    bars.row_notes.push_back(duration_text(measured[row] + other[row]));
  }
  if (any_other) bars.series.push_back({"other", other, grey});
  for (std::string& row : bars.rows) {
    const StageEvent* event = event_of(log, row);
    if (event != nullptr && event->reused) row += " (reused)";
  }
  return section("time", "Where the time goes",
                 any_other
                     ? "Seconds of the parts of the training steps; other is the rest of the stage: preparing data and caches, "
                       "measuring the validation accuracy, writing checkpoints."
                     : "Seconds of the parts of the training steps.",
                 framed(bars) + update_chart(log));
}

std::string stage_table(const RunLog& log) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& stage : log.stage_names()) {
    const StageEvent* event = event_of(log, stage);
    const StageTotals totals = totals_of(log, stage);
    const bool reused = event != nullptr && event->reused;
    const double plain =
        event != nullptr && std::isfinite(event->plain_accuracy) ? event->plain_accuracy : last_validation(log, stage);
    std::string epochs = whole_text(totals.epochs);
    if (std::isfinite(totals.planned) && totals.planned != totals.epochs) epochs += " of " + whole_text(totals.planned);
    const char* state = event == nullptr ? "unfinished" : reused ? "reused" : "trained";
    rows.push_back({escape(stage), totals.layers.empty() ? nothing : escape(totals.layers),
                    totals.epochs > 0 ? epochs : nothing, duration_text(stage_seconds(event)), percent(plain),
                    percent(event != nullptr ? event->validation_accuracy : missing), state});
  }
  if (rows.empty()) return "";
  return section(
      "stages", "Stages",
      std::string("The accuracy is that of the ensemble of the stage's heads, once on images as they are and once with "
                  "mirror images as test-time augmentation, if the net has it.") +
          (log.any_reused() ? " A reused stage was taken from the cache: another run trained it with the same "
                              "settings, in the time that is shown."
                            : ""),
      table({{"stage"},
             {"layers"},
             {"epochs", true},
             {"time", true},
             {"validation accuracy", true},
             {"with mirror images", true},
             {"state"}},
            rows));
}

}  // namespace bitloom::report
