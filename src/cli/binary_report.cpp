#include "cli/binary_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cli/image_evaluation.h"
#include "cli/image_model.h"
#include "cli/model_source.h"
#include "cli/wrong_image.h"
#include "core/error.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

struct Sureness {
  std::size_t image = 0, label = 0;  // taken for
  float probability = 0;
};

report::Classification with_surest_mistakes(const ImageModel& model, const data::Dataset& set, Terminal& terminal) {
  constexpr std::size_t at_once = 256;
  report::Classification test;
  test.images = set.size();
  test.classes = set.class_names;
  std::vector<Sureness> wrong;
  std::vector<std::vector<std::uint8_t>> rooms(at_once);
  for (std::size_t first = 0; first < set.size(); first += at_once) {
    std::vector<std::span<const std::uint8_t>> images;
    for (std::size_t i = first; i < std::min(first + at_once, set.size()); ++i)
      images.push_back(set.image(i, rooms[i - first]));
    const std::vector<float> all = model.probabilities(images);
    for (std::size_t i = 0; i < images.size(); ++i) {
      const std::span<const float> row = std::span(all).subspan(i * set.classes(), set.classes());
      const auto label = static_cast<std::size_t>(std::ranges::max_element(row) - row.begin());
      if (label == set.labels[first + i]) {
        ++test.correct;
      } else {
        wrong.push_back({first + i, label, row[label]});
      }
    }
    terminal.update(fmt::format("classifying the test images: {} of {}", first + images.size(), set.size()));
  }
  set.check_reads();
  std::ranges::stable_sort(wrong, std::ranges::greater(), &Sureness::probability);
  wrong.resize(std::min(wrong.size(), shown_mistakes));
  for (const Sureness& each : wrong)
    test.wrong.push_back(wrong_image(set, each.image, each.label, static_cast<double>(each.probability)));
  return test;
}

}  // namespace

void add_mistakes(report::ReportInput& input, const fs::path& run, Terminal& terminal) {
  const fs::path file = run / model_file;
  if (!fs::exists(file)) return;
  const ImageModel model = open_image_model(file, [](const layerwise::Views& own) { return own; });
  try {
    const data::DataSplits data = data_of_run(run);
    check_fit(data.test, model.shape, model.class_names);
    if (data.test.size() != 0) input.test = with_surest_mistakes(model, data.test, terminal);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data && error.kind() != ErrorKind::io && error.kind() != ErrorKind::usage) throw;
    input.test_missing = fmt::format("the run's test images cannot be used ({}).", error.what());
  }
}

}  // namespace bitloom::cli
