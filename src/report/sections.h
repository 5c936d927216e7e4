// The parts of the page; private to this folder. Each returns markup, and nothing where there is nothing to show.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/markup.h"
#include "report/plot.h"
#include "report/report.h"
#include "report/run_log.h"

namespace bitloom::report {

inline constexpr const char* nothing = "—";  // in place of a figure that was not recorded

// The page around its parts. `title` and `version` may be empty.
std::string page(const std::string& title, const std::string& version, const std::string& body);
// A headline figure.
std::string card(std::string_view label, std::string_view value, std::string_view note, bool lead = false);
// <section> with a heading; `note` is a sentence under it, not escaped.
std::string section(std::string_view id, std::string_view heading, std::string_view note, const std::string& body);
// A table. Where the screen is narrow, rows of many cells become blocks of "heading: cell". Headings are text, cells are
// markup.
struct Column {
  std::string heading;
  bool is_number = false;
};
std::string table(const std::vector<Column>& columns, const std::vector<std::vector<std::string>>& rows,
                  const std::vector<std::string>& totals = {});
// A chart in its frame, and the same for narrow screens, where letters of a shrunk chart could not be read.
template <typename Chart>
std::string framed(Chart chart) {
  std::string html = "<div class=\"chart\"><div class=\"broad\">" + to_svg(chart) + "</div>";
  chart.width = 350;
  return html + "<div class=\"narrow\">" + to_svg(chart) + "</div></div>\n";
}
// Charts of half the page's width, side by side where there is room.
inline constexpr double half_width = 530;
std::string pair(const std::string& charts);
// "83.4%", or a dash.
std::string percent(double share);
// format_duration, format_bytes, format_count and `grouped` for numbers that may be missing: then a dash.
std::string duration_text(double seconds);
std::string bytes_text(double bytes);
std::string count_text(double number);
std::string whole_text(double number);

// section_summary.cpp
std::string header(const ReportInput& input, const RunLog& log);
std::string headline(const ReportInput& input, const RunLog& log);
std::string configuration(const ReportInput& input);
// `promise`: what else may differ without changing the result.
std::string repeat_command(const RunLog& log, std::string_view promise);
// section_training.cpp
std::string learning_curves(const RunLog& log);
std::string weight_activity(const RunLog& log);
std::string messages(const RunLog& log);
// section_flips.cpp
std::string flips(const ReportInput& input);
// The same for all runs of a page; colours go by their order.
std::string flips_of_runs(const std::vector<const ReportInput*>& inputs);
std::string time_split(const RunLog& log);
std::string stage_table(const RunLog& log);
// section_timeline.cpp: of the last step in the lines of events.jsonl.
std::string timeline(const std::vector<nlohmann::json>& events);
// section_pairs.cpp: an image in the page, with words for those who cannot see it. Throws a usage error for sizes that do not
// fit.
std::string image_element(const PageImage& image, std::string_view description);
inline constexpr std::size_t largest_pixelated = 96;  // pixels a side; larger images are not magnified
// section_images.cpp: of nets that classify images
std::string float_layer_table(const std::vector<FloatLayerRow>& layers);
std::string wrong_images(const Classification& test);
std::string mistakes(const ReportInput& input);  // the same of a binary net, or why there are none
// float_report.cpp: the whole page of a float model's run.
std::string float_report(const ReportInput& input);
// section_model.cpp
std::string confusion(const ResultEvent& result, std::string_view note);
// `meaning`: a sentence, not escaped.
std::string filters(const Filters& from, std::string_view meaning);
std::string layer_table(const ReportInput& input, const RunLog& log);

}  // namespace bitloom::report
