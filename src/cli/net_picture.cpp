#include "cli/net_picture.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "cli/model_source.h"
#include "core/bits.h"
#include "core/error.h"
#include "core/file.h"
#include "core/metrics.h"
#include "core/progress.h"
#include "core/softmax.h"
#include "data/image.h"
#include "layerwise/model.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t shown_channels = 16;

struct Subject {
  std::vector<std::uint8_t> pixels;  // planar
  std::string truth;                 // "": unknown
};

std::size_t likeliest(const std::vector<float>& scores) {
  return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

Subject choose_subject(const fs::path& run, const std::string& file, const layerwise::Model& model,
                       const layerwise::Classifier& classifier) {
  const data::ImageShape& shape = model.encoder.image_shape();
  if (!file.empty()) {
    return {data::fit(data::read_image(file, shape.channels), shape.height, shape.width).pixels, ""};
  }
  const data::Dataset test = data_of_run(run).test;
  if (test.size() == 0 || test.shape != shape || test.class_names != model.class_names) {
    fail(ErrorKind::data, "{}: the run's data has no test images for its model; expected an image", run.string());
  }
  layerwise::ForwardWorkspace work = classifier.make_workspace();
  std::vector<float> scores;
  std::size_t chosen = 0;
  std::vector<std::uint8_t> room;
  for (std::size_t i = 0; i < test.size(); ++i) {
    classifier.scores(test.image(i, room).data(), work, scores);
    if (likeliest(scores) != test.labels[i]) continue;
    chosen = i;
    break;
  }
  const auto image = test.image(chosen, room);
  test.check_reads();
  return {{image.begin(), image.end()}, test.class_names[test.labels[chosen]]};
}

// Channels spread over the whole map: neighbours of the encoder's are both signs of one filter.
report::BitMaps maps_of(const std::string& name, const layerwise::MapShape& shape, const std::uint64_t* bits) {
  report::BitMaps maps{
      name, fmt::format("{} x {} x {}", shape.height, shape.width, shape.channels), shape.height, shape.width, {}};
  const std::size_t count = std::min(shown_channels, shape.channels);
  for (std::size_t c = 0; c < count; ++c) {
    const std::size_t channel = c * shape.channels / count;
    std::vector<std::uint8_t> of_channel;
    for (std::size_t pixel = 0; pixel < shape.height * shape.width; ++pixel) {
      of_channel.push_back(get_bit(bits + pixel * shape.words(), channel) ? 1 : 0);
    }
    maps.channels.push_back(std::move(of_channel));
  }
  return maps;
}

}  // namespace

report::NetPicture picture_of_run(const fs::path& run, const std::string& image) {
  const fs::path file = find_model(run.string());
  if (const std::string kind = kind_of_model(file); kind != "binary") {
    fail(ErrorKind::usage, "--picture: {}: not for a model of kind {}", run.string(), kind);
  }
  const layerwise::Model model = layerwise::Model::load(file);
  const layerwise::Classifier classifier = layerwise::Classifier::of(simd::kernels(), model);
  const Subject subject = choose_subject(run, image, model, classifier);

  report::NetPicture picture;
  const data::ImageShape& shape = model.encoder.image_shape();
  picture.title = fmt::format("{}: one image on its way through one-bit layers", model.net.name);
  picture.subtitle =
      fmt::format("{} one-bit weights; 16 channels of each map, set bits dark", format_count(model.weight_bits()));
  picture.height = shape.height;
  picture.width = shape.width;
  const std::size_t area = shape.height * shape.width;
  for (std::size_t pixel = 0; pixel < area; ++pixel) {
    for (std::size_t colour = 0; colour < 3; ++colour) {
      picture.rgb.push_back(subject.pixels[std::min(colour, shape.channels - 1) * area + pixel]);
    }
  }
  const layerwise::NetForward forward(simd::kernels(), model.encoder, model.layers);
  layerwise::ForwardWorkspace work = forward.make_workspace();
  forward.encode(subject.pixels.data(), work);
  picture.maps.push_back(maps_of("encoder", model.encoder.output(), work.maps[0]));
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    forward.run_layer(i, work);
    picture.maps.push_back(maps_of(model.layers[i].spec().name, model.layers[i].geometry().output, work.maps[i + 1]));
  }
  layerwise::ForwardWorkspace own = classifier.make_workspace();
  std::vector<float> scores;
  classifier.scores(subject.pixels.data(), own, scores);
  softmax(scores, scores);
  for (std::size_t l = 0; l < scores.size(); ++l) picture.scores.emplace_back(model.class_names[l], scores[l]);
  std::stable_sort(picture.scores.begin(), picture.scores.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  picture.truth = subject.truth;
  if (fs::exists(run / metrics_file)) picture.metrics = read_metrics(run / metrics_file);
  return picture;
}

}  // namespace bitloom::cli
