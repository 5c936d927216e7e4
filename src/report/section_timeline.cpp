// Which process did what when in a step, and the pipeline's bubble: the last step in the lines of events.jsonl, which
// src/train/parallel/event_log.h writes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "report/plot.h"
#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

using nlohmann::json;

constexpr std::size_t most_rows = 64;

struct SpanKind {
  std::string_view event;
  const char* name;
  int colour;
  bool thin, has_number;  // of a micro-batch
};
constexpr auto span_kinds = std::to_array<SpanKind>({{"forward", "forward", 0, false, true},
                                                     {"recompute", "forward again", 7, false, true},
                                                     {"backward", "backward", 1, false, true},
                                                     {"optimizer", "optimiser", 4, false, false},
                                                     {"send", "send", 2, true, false},
                                                     {"receive", "wait for a message", grey, true, false},
                                                     {"reduce", "sum over processes", 3, true, false}});

TimelineRow row_of(const json& line, double unit) {
  TimelineRow row{"process " + whole_text(number(line, "rank")), {}};
  const auto events = line.find("events");
  if (events == line.end() || !events->is_array()) return row;
  for (const json& event : *events) {
    if (!event.is_object()) continue;
    const auto kind = std::find_if(span_kinds.begin(), span_kinds.end(),
                                   [name = text(event, "kind")](const SpanKind& each) { return each.event == name; });
    if (kind == span_kinds.end()) continue;
    TimelineBox box{number(event, "begin") * unit, number(event, "end") * unit,
                    static_cast<std::size_t>(kind - span_kinds.begin()), "", false};
    if (kind->has_number) box.label = whole_text(number(event, "micro_batch"));
    box.pale = std::fmod(number(event, "chunk"), 2) == 1;
    row.boxes.push_back(std::move(box));
  }
  return row;
}

// The end of the last event of a line, in seconds.
double end_of(const json& line) {
  double end = 0;
  const auto events = line.find("events");
  if (events == line.end() || !events->is_array()) return end;
  for (const json& event : *events) {
    if (const double each = event.is_object() ? number(event, "end") : missing; each > end) end = each;
  }
  return end;
}

// The lines of the last step, which stand together and by rank; those of a step that was done again after a resumption, once.
std::vector<json> last_step(const std::vector<json>& events) {
  std::vector<json> lines;
  for (const json& line : events) {
    if (line.is_object() && std::isfinite(number(line, "step"))) lines.push_back(line);
  }
  auto begin = lines.empty() ? lines.end() : lines.end() - 1;
  while (begin != lines.begin() && number(*(begin - 1), "step") == number(lines.back(), "step") &&
         number(*(begin - 1), "rank") < number(*begin, "rank")) {
    --begin;
  }
  return {begin, lines.end()};
}

}  // namespace

std::string timeline(const std::vector<json>& events) {
  const std::vector<json> lines = last_step(events);
  if (lines.empty()) return "";
  double seconds = 0;
  for (const json& line : lines) seconds = std::max(seconds, end_of(line));
  const bool is_short = seconds < 2;
  TimelineChart chart;
  chart.title =
      fmt::format("Step {}: bubble {}", whole_text(number(lines.front(), "step")), percent(number(lines.front(), "bubble")));
  chart.x.title = is_short ? "time (ms)" : "time (s)";
  for (const SpanKind& kind : span_kinds) chart.kinds.push_back({kind.name, kind.colour, kind.thin});
  for (const json& line : lines) {
    if (chart.rows.size() == most_rows) break;
    chart.rows.push_back(row_of(line, is_short ? 1000 : 1));
  }
  std::string left_out =
      lines.size() > most_rows ? fmt::format(" The first {} of {} processes are shown.", most_rows, lines.size()) : "";
  double events_left_out = 0;
  for (const json& line : lines) {
    if (const double count = number(line, "left_out"); count > 0) events_left_out += count;
  }
  if (events_left_out > 0) {
    left_out +=
        fmt::format(" The log left out the last {} events, as a process has too many in a step; the bubble is without them.",
                    whole_text(events_left_out));
  }
  return section(
      "timeline", "Who did what when",
      "Passes of micro-batches, by their numbers, through each process's part of the net; a second part of the net on "
      "a process is paler. The bubble is the share of time without any pass, from the first one's begin to the last "
      "one's end." +
          left_out,
      framed(std::move(chart)));
}

}  // namespace bitloom::report
