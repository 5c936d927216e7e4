#include "cli/image_evaluation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/device.h"
#include "core/error.h"

namespace bitloom::cli {
namespace {

double images_per_second(const layerwise::Evaluation& result) {
  return static_cast<double>(result.images) / std::max(result.seconds, 1e-9);
}

}  // namespace

const data::Dataset& choose_split(const data::DataSplits& splits, const std::string& split) {
  const data::Dataset& set = split == "test" ? splits.test : split == "train" ? splits.train : splits.validation;
  if (set.size() == 0) fail(ErrorKind::data, "--split: the data has no {} images", split);
  return set;
}

void check_fit(const data::Dataset& set, const data::ImageShape& shape, const std::vector<std::string>& class_names) {
  if (set.shape != shape) {
    fail(ErrorKind::data, "data '{}': images of {}x{}x{} (height, width, colours), but the model takes {}x{}x{}", set.name,
         set.shape.height, set.shape.width, set.shape.channels, shape.height, shape.width, shape.channels);
  }
  if (set.class_names != class_names) {
    fail(ErrorKind::data, "data '{}': its {} classes ({}) are not the {} of the model ({})", set.name, set.classes(),
         fmt::join(set.class_names, ", "), class_names.size(), fmt::join(class_names, ", "));
  }
}

void require_classes(const std::string& spec, const data::Dataset& train) {
  std::vector<bool> present(train.classes());
  for (const std::uint16_t label : train.labels) present[label] = true;
  const auto classes = std::ranges::count(present, true);
  if (classes >= 2) return;
  fail(ErrorKind::data, "{}: images of {} class{} to train on; expected at least two classes", spec, classes,
       classes == 1 ? "" : "es");
}

nlohmann::json evaluation_json(const std::string& split, const layerwise::Evaluation& result) {
  return {{"split", split},
          {"images", result.images},
          {"correct", result.correct},
          {"accuracy", result.accuracy()},
          {"loss", result.loss},
          {"views", result.views},
          {"images_per_second", images_per_second(result)},
          {"confusion", result.confusion}};
}

namespace {

void print_classes(Terminal& terminal, const std::vector<std::string>& class_names,
                   const std::vector<std::int64_t>& confusion) {
  const std::size_t classes = class_names.size();
  std::size_t width = 5;
  for (const std::string& name : class_names) width = std::max(width, name.size());
  terminal.print("{:<{}}  images  correct  accuracy  precision  most confused with", "class", width);
  for (std::size_t row = 0; row < classes; ++row) {
    std::int64_t images = 0;
    std::int64_t predicted = 0;
    std::size_t rival = row;
    const auto count = [&](std::size_t i, std::size_t j) { return confusion[i * classes + j]; };
    for (std::size_t other = 0; other < classes; ++other) {
      images += count(row, other);
      predicted += count(other, row);
      if (other != row && count(row, other) > (rival == row ? 0 : count(row, rival))) rival = other;
    }
    const auto share = [&](std::int64_t of) {
      return of == 0 ? std::string("-")
                     : fmt::format("{:.2f}%", 100.0 * static_cast<double>(count(row, row)) / static_cast<double>(of));
    };
    terminal.print("{:<{}}  {:>6}  {:>7}  {:>8}  {:>9}  {}", class_names[row], width, images, count(row, row), share(images),
                   share(predicted), rival == row ? "-" : fmt::format("{} ({})", class_names[rival], count(row, rival)));
  }
}

}  // namespace

void print_evaluation(Terminal& terminal, const std::string& split, const std::vector<std::string>& class_names,
                      const layerwise::Evaluation& result) {
  if (result.confusion.empty()) {
    terminal.print("({} classes: more than {} are not counted one by one)", class_names.size(),
                   layerwise::Evaluation::most_confused_classes);
  } else {
    print_classes(terminal, class_names, result.confusion);
  }
  terminal.print("\n{} accuracy {:.2f}% ({} of {} images), loss {:.4f} nats, {:.0f} images/s, {:.3g} view{} of each", split,
                 100 * result.accuracy(), result.correct, result.images, result.loss, images_per_second(result), result.views,
                 result.views == 1 ? "" : "s");
}

std::size_t view_count(const models::CnnViews& views) {
  return (views.mirror ? std::size_t{2} : std::size_t{1}) * (views.shift != 0 ? 3 : 1);
}

void ViewOptions::declare(Options& options, bool binary_alone) {
  const auto help = [&](const char* text, const char* of_binary, const char* of_both) {
    return fmt::format("{}{}", text, binary_alone ? of_binary : of_both);
  };
  options.choice("mirror", mirror, {"on", "off", "model"},
                 help("Test-time augmentation with mirror images; model: as ", "the model says",
                      "a binary model says, on for a convolutional net"));
  options.without_defaults([&] {
    options.count(
        "shift", shift, 0, 1000,
        help("Test-time augmentation with images moved by this number of pixels, ",
             "up, down, left and right; 0: none; without it: as the model says",
             "of a binary model up, down, left and right, of a convolutional net along the diagonal; 0: none; without "
             "it: as the model says, or 1"));
    options.number(
        "sure", sure, 0, 1,
        help("Probability of its likeliest class with which an image has no more views; 1: each has all; without it: ",
             "as the model says; for format c only", "as a binary model says, 1 for a convolutional net"),
        true);
  });
}

layerwise::Views ViewOptions::over(layerwise::Views views, const Options& options) const {
  if (mirror != "model") views.mirror = mirror == "on";
  if (options.source("shift") != Options::Source::none) views.shift = shift;
  if (options.source("sure") != Options::Source::none) views.sure = sure;
  return views;
}

OpenCnn::OpenCnn(const std::filesystem::path& file, const CnnUse& use)
    : engine_(choose_device(use.device), use.backend),
      loaded_(models::load_cnn(engine_, file, choose_dtype(engine_, use.values))),
      classifier_(std::make_unique<models::CnnClassifier>(engine_, *loaded_.net, loaded_.description.scale,
                                                          dtype_named(use.values), use.views)) {}

}  // namespace bitloom::cli
