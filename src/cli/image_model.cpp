#include "cli/image_model.h"

#include <memory>

#include "cli/image_evaluation.h"
#include "cli/model_source.h"
#include "core/error.h"
#include "core/softmax.h"
#include "models/cnn/model_file.h"
#include "models/dvae/model_file.h"
#include "models/gpt/model_file.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

using ChooseViews = std::function<layerwise::Views(layerwise::Views)>;

ImageModel open_binary(const std::filesystem::path& file, const ChooseViews& choose) {
  struct Held {
    layerwise::Model model;
    layerwise::Classifier classifier;
    Held(const std::filesystem::path& path, const ChooseViews& choose)
        : model(layerwise::Model::load(path)),
          classifier(layerwise::Classifier::of(simd::kernels(), model, model.net.classifier, choose(model.net.views))) {}
  };
  const auto held = std::make_shared<Held>(file, choose);
  return {held->model.encoder.image_shape(), held->model.class_names, [held](ImageModel::Images images) {
            const std::size_t classes = held->model.class_names.size();
            std::vector<float> all(images.size() * classes);
            const auto count = static_cast<std::ptrdiff_t>(images.size());
#pragma omp parallel if (count > 1)
            {
              layerwise::ForwardWorkspace work = held->classifier.make_workspace();
              std::vector<float> scores;
#pragma omp for schedule(dynamic, 4)
              for (std::ptrdiff_t i = 0; i < count; ++i) {
                const auto k = static_cast<std::size_t>(i);
                held->classifier.scores(images[k].data(), work, scores);
                softmax(scores, std::span(all).subspan(k * classes, classes));
              }
            }
            return all;
          }};
}

ImageModel open_cnn(const std::filesystem::path& file, const ChooseViews& choose, const std::string& values) {
  CnnUse use;
  use.values = values;
  use.views = choose(use.views);
  const auto held = std::make_shared<OpenCnn>(file, use);
  return {held->description().config.image, held->description().class_names, [held](ImageModel::Images images) {
            const std::size_t classes = held->description().class_names.size();
            std::vector<float> all = held->classifier().logits(images);
            for (std::size_t i = 0; i < images.size(); ++i) {
              const std::span<float> row = std::span(all).subspan(i * classes, classes);
              softmax(row, row);
            }
            return all;
          }};
}

}  // namespace

ImageModel open_image_model(const std::filesystem::path& file, const ChooseViews& choose, const std::string& values) {
  const std::string kind = kind_of_model(file);
  if (kind == models::cnn_kind) return open_cnn(file, choose, values);
  require_kind(file, {"binary", models::cnn_kind});
  return open_binary(file, choose);
}

}  // namespace bitloom::cli
