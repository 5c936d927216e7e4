#include "report/report.h"

#include <fmt/format.h>

#include "report/markup.h"
#include "report/page_style.h"
#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {

std::string render_report(const ReportInput& input) {
  const RunLog log = read_run(input.metrics);
  std::string title = input.title.empty() ? log.start.net : input.title;
  if (!title.empty()) title += " · ";
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}Bitloom report</title>\n"
      "<style>{}</style>\n</head>\n<body>\n<main>\n",
      escape(title), page_style);
  page += header(input, log);
  page += headline(input, log);
  page += learning_curves(log);
  page += stage_table(log);
  page += confusion(log);
  page += time_split(log);
  page += weight_activity(log);
  page += messages(log);
  page += filters(input);
  page += layer_table(input, log);
  page += configuration(input);
  page += repeat_command(log);
  const std::string version = log.start.version.empty() ? "" : " " + log.start.version;
  page += fmt::format("<footer>Written by Bitloom{}.</footer>\n</main>\n</body>\n</html>\n", escape(version));
  return page;
}

}  // namespace bitloom::report
