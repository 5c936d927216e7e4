#include "cli/binary_report.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/wrong_image.h"
#include "core/error.h"
#include "report/run_log.h"

namespace bitloom::cli {
namespace {

report::Classification with_mistakes(const report::ResultEvent& result, const data::Dataset& set) {
  if (data::content_hash(set) != result.test_hash) fail(ErrorKind::data, "they are not those of the run any more");
  if (!(result.test_accuracy >= 0 && result.test_accuracy <= 1)) fail(ErrorKind::data, "the metrics have no accuracy of them");
  report::Classification test;
  test.images = set.size();
  test.correct = static_cast<std::size_t>(std::llround(result.test_accuracy * static_cast<double>(set.size())));
  test.classes = set.class_names;
  for (const report::RunMistake& each : result.mistakes) {
    if (!(each.image >= 0 && each.image < static_cast<double>(set.size()) && each.label >= 0 &&
          each.label < static_cast<double>(set.classes()))) {
      fail(ErrorKind::data, "the metrics name image {} and class {}, which there are not", each.image, each.label);
    }
    test.wrong.push_back(
        wrong_image(set, static_cast<std::size_t>(each.image), static_cast<std::size_t>(each.label), each.probability));
  }
  return test;
}

}  // namespace

void add_mistakes(report::ReportInput& input, const std::filesystem::path& run) {
  const std::optional<report::ResultEvent> result = report::read_run(input.metrics).result;
  if (!result) return;
  if (result->images == 0) {
    input.test_missing = "the run had no test images.";
    return;
  }
  if (result->test_hash.empty()) {
    input.test_missing = "the run was made by a version of Bitloom that did not note its mistakes.";
    return;
  }
  add_test_images(input, run, [&](const data::Dataset& set) { return with_mistakes(*result, set); });
}

}  // namespace bitloom::cli
