#include "report/report.h"

#include <fmt/format.h>

#include "report/markup.h"
#include "report/page_style.h"
#include "report/run_log.h"
#include "report/sections.h"

namespace bitloom::report {

std::string page(const std::string& title, const std::string& version, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}Bitloom report</title>\n"
      "<style>{}</style>\n</head>\n<body>\n<main>\n{}<footer>Written by Bitloom{}.</footer>\n</main>\n</body>\n</html>\n",
      escape(title.empty() ? title : title + " · "), page_style, body, escape(version.empty() ? version : " " + version));
}

std::string render_report(const ReportInput& input) {
  if (!model_kind(input).empty()) return float_report(input);
  const RunLog log = read_run(input.metrics);
  std::string body = header(input, log);
  body += headline(input, log);
  body += learning_curves(log);
  body += stage_table(log);
  if (log.result) body += confusion(*log.result, "Images of the test set.");
  body += mistakes(input);
  body += time_split(log);
  body += weight_activity(log);
  body += flips(input);
  body += messages(log);
  body += filters(input.filters, "The linear filters of the encoder, whose responses become the first bits.");
  body += layer_table(input, log);
  body += configuration(input);
  body += repeat_command(log, " The result does not depend on the number of ranks and threads, nor on the kernels.");
  return page(input.title.empty() ? log.start.net : input.title, log.start.version, body);
}

}  // namespace bitloom::report
