#include "cli/binary_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cli/image_model.h"
#include "cli/model_source.h"
#include "cli/wrong_image.h"

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
  for (std::size_t begin = 0; begin < set.size(); begin += at_once) {
    const std::size_t end = std::min(begin + at_once, set.size());
    const std::vector<float> all = probabilities_of(model, set, begin, end);
    for (std::size_t i = begin; i < end; ++i) {
      const std::span<const float> row = std::span(all).subspan((i - begin) * set.classes(), set.classes());
      const auto label = static_cast<std::size_t>(std::ranges::max_element(row) - row.begin());
      if (label == set.labels[i]) {
        ++test.correct;
      } else {
        wrong.push_back({i, label, row[label]});
      }
    }
    terminal.update(fmt::format("classifying the test images: {} of {}", end, set.size()));
  }
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
  add_test_images(input, run, model.shape, model.class_names,
                  [&](const data::Dataset& set) { return with_surest_mistakes(model, set, terminal); });
}

}  // namespace bitloom::cli
