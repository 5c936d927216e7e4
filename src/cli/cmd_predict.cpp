// bitloom predict: the classes of single images.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/command.h"
#include "cli/image_evaluation.h"
#include "cli/image_model.h"
#include "cli/model_source.h"
#include "core/clock.h"
#include "core/error.h"
#include "data/image.h"

namespace bitloom::cli {
namespace {

struct Prediction {
  std::string image;
  std::string error;               // not empty: nothing else holds
  std::vector<float> scores;       // (classes): probabilities
  std::vector<std::size_t> order;  // classes, the likeliest first
  double milliseconds = 0;         // time of encoding and classifying, without reading the file
};

Prediction classify(const std::string& file, const ImageModel& model) {
  Prediction prediction;
  prediction.image = file;
  data::Image image;
  try {
    image = data::resize(data::read_image(file, model.shape.channels), model.shape.height, model.shape.width);
  } catch (const Error& error) {
    prediction.error = error.what();
    return prediction;
  }
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

void print_text(Terminal& terminal, const Prediction& prediction, const ImageModel& model, std::size_t top) {
  std::string line = prediction.image + ":";
  for (std::size_t i = 0; i < std::min(top, prediction.order.size()); ++i) {
    const std::size_t label = prediction.order[i];
    line += fmt::format("{} {} {:.3f}", i == 0 ? "" : ",", model.class_names[label], prediction.scores[label]);
  }
  terminal.line(line + fmt::format("  ({:.2f} ms)", prediction.milliseconds));
}

nlohmann::json to_json(const Prediction& prediction, const ImageModel& model, std::size_t top) {
  if (!prediction.error.empty()) return {{"image", prediction.image}, {"error", prediction.error}};
  nlohmann::json classes = nlohmann::json::array();
  for (std::size_t i = 0; i < std::min(top, prediction.order.size()); ++i) {
    const std::size_t label = prediction.order[i];
    classes.push_back({{"class", model.class_names[label]}, {"score", prediction.scores[label]}});
  }
  return {{"image", prediction.image}, {"classes", classes}, {"milliseconds", prediction.milliseconds}};
}

}  // namespace

int predict(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::size_t top = 3;
  bool json = false;
  ViewOptions views;
  Options options(
      "bitloom predict MODEL|RUN IMAGE... [options]",
      "Classifies PNG and JPEG images, resized to the model's size. Prints, for each, the likeliest classes with their\n"
      "scores (the probabilities that the model gives them) and the time it took.");
  options.arguments(arguments, "MODEL|RUN or IMAGE", 2, 1000000);
  options.count("top", top, 1, 100000, "Number of classes to print");
  views.declare(options);
  options.flag("json", json, "One JSON object per image, a line each");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  int code = exit_done;
  session.on_root([&] {
    const std::filesystem::path file = find_model(arguments.front());
    const ImageModel model = open_image_model(file, [&](const layerwise::Views& own) { return views.over(own, options); });
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      const Prediction prediction = classify(arguments[i], model);
      if (!prediction.error.empty()) {
        session.terminal.error(prediction.error);
        code = exit_data;
      }
      if (json) {
        session.terminal.json(to_json(prediction, model, top));
      } else if (prediction.error.empty()) {
        print_text(session.terminal, prediction, model, top);
      }
    }
  });
  return code;
}

}  // namespace bitloom::cli
