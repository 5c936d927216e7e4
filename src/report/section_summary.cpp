// Top and bottom of the page: headline figures; configuration and command.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "core/progress.h"
#include "report/markup.h"
#include "report/scale.h"
#include "report/sections.h"

namespace bitloom::report {

namespace {

using nlohmann::json;

// "10,000 images"; nothing when the number is missing.
std::string images_note(double images) { return std::isfinite(images) ? whole_text(images) + " images" : std::string(); }

// Which images vote, and what it is without those that were made of the image: ", with mirror images; 76.60% without".
std::string vote_note(const ResultEvent& result, double plain) {
  const bool shifted = result.shift > 0;
  if (!result.mirror && !shifted) return "";
  std::string note = fmt::format(", with {} images", !shifted ? "mirror" : result.mirror ? "mirror and shifted" : "shifted");
  if (result.sure < 1) note += fmt::format(" until a class has a probability of {}", result.sure);
  if (std::isfinite(plain)) note += "; " + percent(plain) + " without";
  if (result.members.size() > 1) note += fmt::format("; ensemble of {} layers", result.members.size());
  return note;
}

// Sum over stages that this run trained, or that it reused.
double stage_sum(const RunLog& log, bool reused, double StageEvent::*field) {
  double sum = 0;
  for (const StageEvent& stage : log.stages) {
    if (stage.reused == reused && std::isfinite(stage.*field)) sum += stage.*field;
  }
  return sum;
}

double median_images_per_second(const RunLog& log) {
  std::vector<double> rates;
  for (const EpochEvent& epoch : log.epochs) {
    if (std::isfinite(epoch.images_per_second) && !epoch.reused) rates.push_back(epoch.images_per_second);
  }
  if (rates.empty()) return missing;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

// Without a result: what the last epoch that measured it says.
struct Latest {
  double accuracy = missing;
  std::string layer;
};

Latest latest_validation(const RunLog& log) {
  Latest latest;
  for (const EpochEvent& epoch : log.epochs) {
    for (const LayerEpoch& layer : epoch.layers) {
      if (std::isfinite(layer.validation_accuracy)) latest = {layer.validation_accuracy, layer.layer};
    }
  }
  return latest;
}

std::string accuracy_cards(const RunLog& log) {
  if (log.epochs.empty() && !log.result) return "";
  if (log.result) {
    const ResultEvent& result = *log.result;
    const double images = std::isfinite(result.images) ? result.images : log.start.test_images;
    return card("Test accuracy", percent(result.test_accuracy), images_note(images) + vote_note(result, result.test_plain),
                true) +
           card("Validation accuracy", percent(result.validation_accuracy),
                images_note(log.start.validation_images) + vote_note(result, result.validation_plain), true);
  }
  const Latest latest = latest_validation(log);
  return card("Test accuracy", nothing, "measured at the end of the run", true) +
         card("Validation accuracy so far", percent(latest.accuracy),
              latest.layer.empty() ? "" : "head of " + latest.layer + ", latest epoch", true);
}

// "compute 80%, encode 5%, update 3%, wait 12%".
std::string update_shares(const UpdateTimes& times, double sum) {
  std::string text;
  for (std::size_t p = 0; p < times.size() && sum > 0; ++p) {
    text += fmt::format("{}{} {:.0f}%", p == 0 ? "" : ", ", update_parts[p], 100 * times[p] / sum);
  }
  return text;
}

std::string banner(const RunLog& log) {
  std::string text;
  if (log.epochs.empty() && log.stages.empty() && !log.result) {
    text = log.starts == 0 ? "<b>Nothing has been recorded yet.</b> The run has no metrics."
                           : "<b>No epoch has finished yet.</b> The run has begun, and there are no measurements.";
  } else if (!log.result) {
    const EpochEvent* last = log.epochs.empty() ? nullptr : &log.epochs.back();
    text = "<b>This run is unfinished:</b> it has no result.";
    if (last != nullptr) {
      text += fmt::format(" The last thing recorded is epoch {}{} of stage {}, {} after the start.", whole_text(last->epoch),
                          std::isfinite(last->epochs) ? " of " + whole_text(last->epochs) : "", escape(last->stage),
                          duration_text(last->seconds));
    }
  }
  return text.empty() ? text : R"(<p class="banner">)" + text + "</p>\n";
}

std::string scalar_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

bool is_list_of_scalars(const json& value) {
  return value.is_array() && value.size() <= 16 &&
         std::none_of(value.begin(), value.end(), [](const json& item) { return item.is_structured(); });
}

std::string option_row(std::string_view key, const json& value) {
  std::string text;
  if (is_list_of_scalars(value)) {
    for (const json& item : value) text += (text.empty() ? "" : ", ") + scalar_text(item);
  } else {
    text = scalar_text(value);
  }
  if (text.empty()) text = nothing;
  return fmt::format(R"(<div><span class="key">{}</span><span class="value">{}</span></div>)", escape(key), escape(text));
}

}  // namespace

std::string card(std::string_view label, std::string_view value, std::string_view note, bool lead) {
  return fmt::format(R"(<div class="card{}"><span class="label">{}</span><b>{}</b><span>{}</span></div>)", lead ? " lead" : "",
                     escape(label), escape(value), escape(note));
}

std::string section(std::string_view id, std::string_view heading, std::string_view note, const std::string& body) {
  if (body.empty()) return "";
  const std::string note_markup = note.empty() ? "" : fmt::format(R"(<p class="note">{}</p>)", note);
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>{}\n{}</section>\n", id, heading, note_markup, body);
}

std::string pair(const std::string& charts) { return charts.empty() ? charts : "<div class=\"pair\">" + charts + "</div>\n"; }

std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows,
                  const std::vector<std::string>& totals) {
  const auto row_of = [&](const std::vector<std::string>& cells) {
    std::string row;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      row += fmt::format(R"(<td{} data-heading="{}">{}</td>)", columns[c].is_number ? R"( class="num")" : "",
                         escape(columns[c].heading), cells[c]);
    }
    return "<tr>" + row + "</tr>";
  };
  constexpr std::size_t most_narrow = 4;  // columns that a narrow screen has room for
  std::string html =
      fmt::format("<div class=\"scroll\"><table{}><thead><tr>", columns.size() > most_narrow ? R"( class="listed")" : "");
  for (const Column& column : columns) {
    html += fmt::format("<th{}>{}</th>", column.is_number ? R"( class="num")" : "", escape(column.heading));
  }
  html += "</tr></thead><tbody>";
  for (const std::vector<std::string>& row : rows) html += row_of(row) + "\n";
  html += "</tbody>";
  if (!totals.empty()) html += "<tfoot>" + row_of(totals) + "</tfoot>";
  return html + "</table></div>\n";
}

std::string percent(double share) { return std::abs(share) < 1e6 ? fmt::format("{:.2f}%", 100 * share) : nothing; }

std::string duration_text(double seconds) { return seconds >= 0 && seconds < 1e15 ? format_duration(seconds) : nothing; }

std::string bytes_text(double bytes) {
  return bytes >= 0 && bytes < 1e18 ? format_bytes(static_cast<std::uint64_t>(bytes)) : nothing;
}

std::string count_text(double number) {
  return number >= 0 && number < 1e18 ? format_count(static_cast<std::uint64_t>(number)) : nothing;
}

std::string whole_text(double number) { return std::isfinite(number) ? grouped(number) : nothing; }

std::string header(const ReportInput& input, const RunLog& log) {
  const StartEvent& start = log.start;
  std::string title = input.title.empty() ? start.net : input.title;
  if (title.empty()) title = "training run";
  std::string line;
  const auto add = [&](const std::string& text) {
    if (!text.empty()) line += (line.empty() ? "" : " · ") + text;
  };
  add(start.net.empty() ? "" : "net " + start.net);
  add(start.data.empty() ? "" : "data " + start.data);
  if (std::isfinite(start.train_images)) add(whole_text(start.train_images) + " training images");
  add(start.time.empty() ? "" : "started " + start.time);
  if (log.starts > 1) add(fmt::format("resumed {}", log.starts == 2 ? "once" : fmt::format("{} times", log.starts - 1)));
  return fmt::format("<header><h1>{}</h1><p>{}</p></header>\n", escape(title), escape(line)) + banner(log);
}

std::string headline(const ReportInput& input, const RunLog& log) {
  const ResultEvent result = log.result.value_or(ResultEvent{});
  const StartEvent& start = log.start;
  double seconds = result.seconds, weight_bits = result.weight_bits, bit_macs = result.bit_macs;
  if (!log.result && !log.epochs.empty()) seconds = log.epochs.back().seconds;
  if (!std::isfinite(weight_bits) && !input.layers.empty()) {
    weight_bits = bit_macs = 0;
    for (const LayerRow& layer : input.layers) {
      weight_bits += static_cast<double>(layer.weight_bits);
      bit_macs += static_cast<double>(layer.bit_macs);
    }
  }
  const std::string threads = std::isfinite(start.threads)
                                  ? fmt::format("{} thread{} each", whole_text(start.threads), start.threads == 1 ? "" : "s")
                                  : "";
  std::string cards = accuracy_cards(log);
  // Figures that are not known yet have no card.
  const auto add = [&](std::string_view label, const std::string& value, std::string_view note) {
    if (value != nothing) cards += card(label, value, note);
  };
  const double reused_seconds = stage_sum(log, true, &StageEvent::trained_seconds);
  const double reused_images = stage_sum(log, true, &StageEvent::trained_images);
  add("Time", duration_text(seconds),
      reused_seconds > 0 ? "without " + duration_text(reused_seconds) + " of training in reused stages"
      : log.result       ? "everything included"
                         : "so far");
  const bool counted = std::any_of(log.stages.begin(), log.stages.end(), [](const auto& s) { return std::isfinite(s.images); });
  if (counted) {
    add("Images trained on", count_text(stage_sum(log, false, &StageEvent::images)),
        reused_images > 0 ? "and " + count_text(reused_images) + " by the runs of reused stages" : "augmented, epoch by epoch");
  }
  add("Training speed", count_text(median_images_per_second(log)), "images/s, median of the epochs");
  if (const std::optional<UpdateTimes> times = log.update_times("", 0)) {
    const double seconds_each = std::accumulate(times->begin(), times->end(), 0.0);
    add("Update", fmt::format("{:.3g} ms", 1e3 * seconds_each), update_shares(*times, seconds_each));
  }
  add("Ranks", whole_text(start.ranks), threads);
  add("Kernels", start.kernels.empty() ? nothing : start.kernels, "instruction set of the bit kernels");
  add("Binary weights", count_text(weight_bits), "bits");
  add("Model file", bytes_text(result.model_bytes), "encoder and heads included");
  add("Work per image", count_text(bit_macs), "bit multiply-adds");
  add("Peak memory", bytes_text(result.peak_memory_bytes), "per rank, resident");
  if (cards.empty()) return "";
  return "<div class=\"cards\" id=\"headline\">" + cards + "</div>\n";
}

std::string configuration(const ReportInput& input) {
  if (!input.config.is_object() || input.config.empty()) return "";
  std::string rows, nested;
  for (const auto& [key, value] : input.config.items()) {
    if (value.is_structured() && !is_list_of_scalars(value)) {
      nested += fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n", escape(key),
                            escape(value.dump(2, ' ', false, json::error_handler_t::replace)));
    } else {
      rows += option_row(key, value);
    }
  }
  if (!rows.empty()) rows = "<div class=\"options\">" + rows + "</div>\n";
  return section("configuration", "Configuration", "Every option of the run, defaults included.", rows + nested);
}

std::string repeat_command(const RunLog& log, std::string_view promise) {
  if (log.start.command.empty()) return "";
  const std::string version = log.start.version.empty() ? "" : " " + log.start.version;
  return section("repeat", "Repeat this run", fmt::format("With Bitloom{}.{}", escape(version), promise),
                 fmt::format("<pre class=\"command\">{}</pre>\n", escape(log.start.command)));
}

}  // namespace bitloom::report
