// bitloom compare: how far two sets of images are apart, in features of a trained net.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/image_source.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/safetensors.h"
#include "models/quality/blur.h"
#include "models/quality/distance.h"
#include "models/quality/features.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

struct CompareSettings {
  std::vector<std::string> sets;
  std::string features, dvae, write_features;
  std::size_t count = 0, parts = 1;
  double blur = 0;
  std::string values = "f32", device = "cpu", backend;
  bool json = false;

  void declare(Options& options) {
    options.arguments(sets, "IMAGES", 2, 2);
    options.text(
        "features", features, "RUN|MODEL",
        "Net whose features these are: a contrastive model, by its embeddings, or a convolutional net, by what its last "
        "layer gets");
    options.text("dvae", dvae, "RUN|MODEL", "Discrete VAE that draws the images of a file of tokens");
    options.count("count", count, 0, std::numeric_limits<std::int64_t>::max(),
                  "Largest number of images of each set, the first ones; 0: all");
    options.number("blur", blur, 0, 1000,
                   "Standard deviation, in pixels of images as the net takes them, of the Gaussian by which all images are "
                   "blurred; 0 disables it");
    options.count("parts", parts, 1, 100000,
                  "Number of parts of each set, whose inception scores have a mean and a standard deviation");
    options.text("write-features", write_features, "FILE",
                 "Safetensors file for the features a and b (images x features) and, of a convolutional net, probabilities_a "
                 "and probabilities_b of its classes");
    options.flag("json", json, "One JSON object instead of text");
    declare_dtype(options, values);
    declare_device(options, device);
    options.text("backend", backend, "NAME", "Implementation that computes; \"\": the device's own");
  }
};

models::ImageFeatures::Found features_of(Terminal& terminal, const CompareSettings& settings, const std::string& spec,
                                         ImageSource& source, models::ImageFeatures& net) {
  models::ImageFeatures::Found all;
  const std::size_t count = settings.count == 0 ? source.size() : settings.count;
  for_each_batch(terminal, spec, source, count, net.side(), [&](std::vector<std::uint8_t>& images) {
    models::blur(images, net.side(), settings.blur);
    const models::ImageFeatures::Found some = net.of(images);
    all.features.insert(all.features.end(), some.features.begin(), some.features.end());
    all.probabilities.insert(all.probabilities.end(), some.probabilities.begin(), some.probabilities.end());
  });
  return all;
}

models::FeatureStatistics statistics_of(const std::string& spec, const std::vector<double>& features, std::size_t columns) {
  try {
    return models::feature_statistics(features, columns);
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", spec, error.what());
  }
}

void write_features(const CompareSettings& settings, const models::ImageFeatures& net,
                    const std::vector<models::ImageFeatures::Found>& found) {
  TensorFile file;
  const std::vector<std::string> names{"a", "b"};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::size_t images = found[i].features.size() / net.columns();
    file.put(names[i], {images, net.columns()}, found[i].features);
    if (net.classes() > 0) file.put("probabilities_" + names[i], {images, net.classes()}, found[i].probabilities);
  }
  file.save(settings.write_features);
}

void print_comparison(Terminal& terminal, const Json& json) {
  const auto set = [&](const char* which) { return json[which]["images"].get<std::size_t>(); };
  terminal.print("{}: {} images; {}: {} images{}", json["a"]["name"].get<std::string>(), set("a"),
                 json["b"]["name"].get<std::string>(), set("b"),
                 json["blur"].get<double>() > 0 ? fmt::format("; all blurred by {} pixels", json["blur"].get<double>()) : "");
  const std::string net = json["features"].get<std::string>();
  terminal.print("Frechet distance in {} features of {}: {:.6g}", json["columns"].get<std::size_t>(), net,
                 json["frechet_distance"].get<double>());
  if (!json["a"].contains("inception_score")) return;
  for (const char* which : {"a", "b"}) {
    const Json& each = json[which];
    terminal.print("inception score by the {} classes of {}, {}: {:.4f}{}", json["classes"].get<std::size_t>(), net,
                   each["name"].get<std::string>(), each["inception_score"].get<double>(),
                   json["parts"] == 1 ? "" : fmt::format(" +- {:.4f}", each["inception_score_deviation"].get<double>()));
  }
}

void compare_sets(Terminal& terminal, const CompareSettings& settings) {
  nn::Engine engine(choose_device(settings.device), settings.backend);
  const std::filesystem::path model = find_model(settings.features);
  terminal.note(checkpoint_note(model));
  if (!settings.write_features.empty()) require_other_output("--write-features", settings.write_features, model);
  const auto net = models::load_image_features(engine, model, choose_dtype(engine, settings.values));
  std::vector<std::unique_ptr<ImageSource>> sources;
  for (const std::string& spec : settings.sets) sources.push_back(open_images(spec, settings.dvae));
  Json json{{"features", settings.features}, {"kind", kind_of_model(model)}, {"columns", net->columns()},
            {"classes", net->classes()},     {"blur", settings.blur},        {"parts", settings.parts}};
  std::vector<models::ImageFeatures::Found> found;
  std::vector<models::FeatureStatistics> statistics;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string& spec = settings.sets[i];
    found.push_back(features_of(terminal, settings, spec, *sources[i], *net));
    statistics.push_back(statistics_of(spec, found[i].features, net->columns()));
    Json& set = json[i == 0 ? "a" : "b"];
    set = {{"name", spec}, {"images", statistics[i].images}};
    if (net->classes() == 0) continue;
    const models::InceptionScore score = models::inception_score(found[i].probabilities, net->classes(), settings.parts);
    set["inception_score"] = score.mean;
    set["inception_score_deviation"] = score.deviation;
  }
  json["frechet_distance"] = models::frechet_distance(statistics[0], statistics[1]);
  if (!settings.write_features.empty()) write_features(settings, *net, found);
  const std::size_t fewest = std::min(statistics[0].images, statistics[1].images);
  if (fewest <= net->columns()) {
    terminal.note(fmt::format("{} images have no full covariance of {} features: the distance is larger than with more of them",
                              fewest, net->columns()));
  }
  settings.json ? terminal.json(json) : print_comparison(terminal, json);
}

}  // namespace

int compare(Session& session, std::span<const std::string> args) {
  CompareSettings settings;
  Options options(
      "bitloom compare IMAGES IMAGES --features RUN|MODEL [options]",
      "Tells how far two sets of images are apart: the Frechet distance of normal distributions of their features and, where\n"
      "the net classifies, the inception score of each set. Features are those of a net of one's own, not of the Inception "
      "network that published figures take: compare figures of the same net alone. IMAGES: a folder of PNG and JPEG files, of "
      "images with captions, or a file of `bitloom encode`.");
  settings.declare(options);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (settings.features.empty()) {
    fail(ErrorKind::usage, "--features: missing; expected a run or model of `bitloom train clip` or `bitloom train cnn`");
  }
  choose_threads(session.comm);
  session.on_root([&] { compare_sets(session.terminal, settings); });
  return exit_done;
}

}  // namespace bitloom::cli
