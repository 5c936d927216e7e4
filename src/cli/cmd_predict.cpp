// bitloom predict: the classes of single pictures.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/command.h"
#include "cli/image_evaluation.h"
#include "cli/image_model.h"
#include "cli/model_source.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/text.h"
#include "data/image.h"

namespace bitloom::cli {
namespace {

struct Prediction {
  std::string file;
  std::string error;               // not empty: nothing else holds
  data::ImageShape picture;        // as the file has it
  data::Part part;                 // what of it the model gets, scaled
  std::vector<float> scores;       // (classes): probabilities
  std::vector<std::size_t> order;  // classes, the likeliest first
  double milliseconds = 0;         // time of encoding and classifying, without reading the file
};

Prediction classify(const std::string& file, const ImageModel& model) {
  Prediction prediction;
  prediction.file = file;
  data::Image image;
  try {
    image = data::read_image(file, model.shape.channels);
  } catch (const Error& error) {
    prediction.error = error.what();
    return prediction;
  }
  prediction.picture = image.shape;
  prediction.part = data::middle_part(image.shape, model.shape.height, model.shape.width);
  image = data::fit(image, model.shape.height, model.shape.width);
  const Clock::time_point start = Clock::now();
  const std::span<const std::uint8_t> pixels(image.pixels);
  prediction.scores = model.probabilities({&pixels, 1});
  prediction.milliseconds = 1e3 * seconds_since(start);
  prediction.order.resize(prediction.scores.size());
  std::iota(prediction.order.begin(), prediction.order.end(), std::size_t{0});
  std::stable_sort(prediction.order.begin(), prediction.order.end(),
                   [&](std::size_t a, std::size_t b) { return prediction.scores[a] > prediction.scores[b]; });
  return prediction;
}

// " (4032 x 3024: middle 3024 x 3024, scaled to 32 x 32)"; "" for a picture that is taken as it is.
std::string fitting_text(const Prediction& prediction, const data::ImageShape& wanted) {
  const data::ImageShape& picture = prediction.picture;
  const data::Part& part = prediction.part;
  std::string steps;
  if (part.height != picture.height || part.width != picture.width) {
    steps = fmt::format("middle {} x {}", part.width, part.height);
  }
  if (part.height != wanted.height || part.width != wanted.width) {
    steps += fmt::format("{}scaled to {} x {}", steps.empty() ? "" : ", ", wanted.width, wanted.height);
  }
  return steps.empty() ? "" : fmt::format(" ({} x {}: {})", picture.width, picture.height, steps);
}

void print_text(Terminal& terminal, const Prediction& prediction, const ImageModel& model, std::size_t top) {
  std::string line = prediction.file + fitting_text(prediction, model.shape) + ":";
  for (std::size_t i = 0; i < std::min(top, prediction.order.size()); ++i) {
    const std::size_t label = prediction.order[i];
    line += fmt::format("{} {} {:.3f}", i == 0 ? "" : ",", model.class_names[label], prediction.scores[label]);
  }
  terminal.line(line + fmt::format("  ({:.2f} ms)", prediction.milliseconds));
}

nlohmann::ordered_json to_json(const Prediction& prediction, const ImageModel& model, std::size_t top) {
  if (!prediction.error.empty()) return {{"file", prediction.file}, {"error", prediction.error}};
  nlohmann::ordered_json probabilities = nlohmann::ordered_json::object();  // the likeliest first
  for (std::size_t i = 0; i < std::min(top, prediction.order.size()); ++i) {
    const std::size_t label = prediction.order[i];
    probabilities[model.class_names[label]] = prediction.scores[label];
  }
  const data::Part& part = prediction.part;
  return {{"file", prediction.file},
          {"width", prediction.picture.width},
          {"height", prediction.picture.height},
          {"crop", {{"left", part.left}, {"top", part.top}, {"width", part.width}, {"height", part.height}}},
          {"class", model.class_names[prediction.order.front()]},
          {"probabilities", probabilities},
          {"milliseconds", prediction.milliseconds}};
}

// Calls visit(name) for each picture until it says no; "-" stands for the names in the lines of the standard input.
void for_each_name(std::span<const std::string> pictures, const std::function<bool(const std::string&)>& visit) {
  for (const std::string& picture : pictures) {
    if (picture != "-") {
      if (!visit(picture)) return;
      continue;
    }
    bool is_first = true;
    for (std::string name; std::getline(std::cin, name); is_first = false) {
      if (name.ends_with('\r')) name.pop_back();  // of lines that end as on Windows
      if (is_first) name = std::string(without_byte_order_mark(name));
      if (!name.empty() && !visit(name)) return;
    }
    if (std::ferror(stdin) != 0) fail(ErrorKind::io, "the standard input cannot be read");
  }
}

}  // namespace

int predict(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::size_t top = 3;
  bool jsonl = false;
  ViewOptions views;
  Options options("bitloom predict MODEL|RUN PICTURE|-... [options]",
                  "Classifies PNG and JPEG pictures of any size up to 134 megapixels, turned upright as their camera says; - "
                  "reads their names from the standard input, a line each. The "
                  "model gets the part in the middle that has its proportions, scaled, as in training on a folder of pictures. "
                  "Prints, for each, what was cut and scaled, the likeliest classes with their scores (the probabilities that "
                  "the model gives them) and the time it took.");
  options.arguments(arguments, "MODEL|RUN or PICTURE", 2, 1000000);
  options.count("top", top, 1, 100000, "Number of classes to print; all with --jsonl where it is not given");
  views.declare(options);
  options.flag("jsonl", jsonl,
               "One JSON object per picture, a line each, in the order of the names: file, width, height, crop, class, "
               "probabilities, milliseconds; or file and error");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (jsonl && options.source("top") == Options::Source::none) top = any_count;
  if (std::ranges::count(arguments, "-") > 1) fail(ErrorKind::usage, "PICTURE: '-' is there twice; expected it once at most");
  int code = exit_done;
  session.on_root([&] {
    const std::filesystem::path file = find_model(arguments.front());
    const ImageModel model = open_image_model(file, [&](const layerwise::Views& own) { return views.over(own, options); });
    for_each_name(std::span(arguments).subspan(1), [&](const std::string& name) {
      const Prediction prediction = classify(name, model);
      if (!prediction.error.empty()) {
        session.terminal.error(prediction.error);
        code = exit_data;
      }
      if (jsonl) {
        session.terminal.json(to_json(prediction, model, top));
      } else if (prediction.error.empty()) {
        print_text(session.terminal, prediction, model, top);
      }
      return session.terminal.output_error() == 0;
    });
  });
  // Results that nobody gets are what main() has to tell first.
  return session.terminal.output_error() == 0 ? code : exit_done;
}

}  // namespace bitloom::cli
