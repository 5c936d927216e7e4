// Nets that classify images: the test images that they are most wrong about; the layers of float nets.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "report/markup.h"
#include "report/sections.h"

namespace bitloom::report {
namespace {

// "97.3%"; a probability that is not 1 is not shown as 100%.
std::string probability_text(double probability) {
  if (!(probability >= 0 && probability <= 1)) return nothing;
  return probability >= 0.9995 && probability < 1 ? "over 99.9%" : fmt::format("{:.1f}%", 100 * probability);
}

std::string figure(const WrongImage& image) {
  return fmt::format("<figure>{}<figcaption><b>{}</b>taken for {}<span>{}</span></figcaption></figure>\n",
                     image_element({image.height, image.width, image.channels, image.pixels}, image.truth), escape(image.truth),
                     escape(image.taken_for), probability_text(image.probability));
}

}  // namespace

std::string wrong_images(const Classification& test) {
  if (test.wrong.empty()) return "";
  std::string figures;
  bool is_small = true;
  for (const WrongImage& image : test.wrong) {
    figures += figure(image);
    is_small = is_small && std::max(image.height, image.width) <= largest_pixelated;
  }
  const std::size_t wrong = test.images - std::min(test.correct, test.images);
  return section(
      "mistakes", "The surest mistakes",
      fmt::format("Of the {} test images that were classified wrongly, those with the highest probability of the wrong "
                  "class: the true class, the class that the image was taken for, and its probability.",
                  whole_text(static_cast<double>(wrong))),
      fmt::format("<div class=\"images{}\">{}</div>\n", is_small ? " small" : "", figures));
}

std::string mistakes(const ReportInput& input) {
  if (input.test) return wrong_images(*input.test);
  if (input.test_missing.empty()) return "";
  return section("mistakes", "The surest mistakes", "",
                 fmt::format("<p class=\"note\">There are no images here: {}</p>\n", escape(input.test_missing)));
}

std::string float_layer_table(const std::vector<FloatLayerRow>& layers) {
  if (layers.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  double parameters = 0, multiply_adds = 0;
  for (const FloatLayerRow& layer : layers) {
    const auto own = static_cast<double>(layer.parameters);
    parameters += own;
    multiply_adds += layer.multiply_adds;
    rows.push_back(
        {escape(layer.name), escape(layer.kind), escape(layer.output), whole_text(own), count_text(layer.multiply_adds)});
  }
  return section("layers", "Layers", "Output size is height x width x channels; multiply-adds are those of one image.",
                 table({{"layer"}, {"kind"}, {"output size"}, {"parameters", true}, {"multiply-adds", true}}, rows,
                       {"total", "", "", whole_text(parameters), count_text(multiply_adds)}));
}

}  // namespace bitloom::report
