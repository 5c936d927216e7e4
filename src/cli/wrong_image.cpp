#include "cli/wrong_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cli/image_evaluation.h"
#include "cli/model_source.h"
#include "core/error.h"
#include "data/image.h"

namespace bitloom::cli {

report::WrongImage wrong_image(const data::Dataset& set, std::size_t image, std::size_t label, double probability) {
  constexpr std::size_t largest_side = 192;  // pixels of an image in the page
  std::vector<std::uint8_t> room;
  const auto pixels = set.image(image, room);
  data::Image shown{set.shape, {pixels.begin(), pixels.end()}};
  const std::size_t side = std::max(shown.shape.height, shown.shape.width);
  if (side > largest_side) {
    const auto smaller = [&](std::size_t now) { return std::max<std::size_t>(1, now * largest_side / side); };
    shown = data::resize(shown, smaller(shown.shape.height), smaller(shown.shape.width));
  }
  return {shown.shape.height,
          shown.shape.width,
          shown.shape.channels,
          std::move(shown.pixels),
          set.class_names[set.labels[image]],
          set.class_names[label],
          probability};
}

void add_test_images(report::ReportInput& input, const std::filesystem::path& run,
                     const std::function<report::Classification(const data::Dataset&)>& classify) {
  try {
    const data::DataSplits data = data_of_run(run);
    if (data.test.size() == 0) {
      input.test_missing = "the run's data has no test images.";
      return;
    }
    input.test = classify(data.test);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data && error.kind() != ErrorKind::io && error.kind() != ErrorKind::usage) throw;
    input.test_missing = fmt::format("the run's test images cannot be used ({}).", error.what());
  }
}

}  // namespace bitloom::cli
