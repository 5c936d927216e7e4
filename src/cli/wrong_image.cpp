#include "cli/wrong_image.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

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

}  // namespace bitloom::cli
