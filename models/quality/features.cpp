#include "models/quality/features.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/softmax.h"
#include "models/clip/model_file.h"
#include "models/clip/scores.h"
#include "models/cnn/model_file.h"
#include "models/model_kind.h"
#include "nn/floats.h"

namespace bitloom::models {
namespace {

// Height and width of images that a net takes.
std::size_t side_of(const data::ImageShape& shape, const std::string& name) {
  if (shape.channels != 3 || shape.height != shape.width) {
    fail(ErrorKind::data, "{}: for images of {} x {} pixels of {} channels; expected square ones of 3", name, shape.width,
         shape.height, shape.channels);
  }
  return shape.height;
}

class ClipFeatures final : public ImageFeatures {
 public:
  ClipFeatures(nn::Engine& engine, const std::filesystem::path& path, DType values)
      : loaded_(load_clip(engine, path, values)),
        side_(side_of(loaded_.net->config().image.image, path.string())),
        encoder_(engine, *loaded_.net, *loaded_.tokenizer, values) {}

  std::size_t side() const override { return side_; }
  std::size_t columns() const override { return encoder_.embedding(); }
  std::size_t classes() const override { return 0; }
  Found of(std::span<const std::uint8_t> images) override { return {encoder_.images(images), {}}; }

 private:
  LoadedClip loaded_;
  std::size_t side_;
  ClipEncoder encoder_;
};

class CnnFeatures final : public ImageFeatures {
 public:
  CnnFeatures(nn::Engine& engine, const std::filesystem::path& path, DType values)
      : engine_(engine),
        loaded_(load_cnn(engine, path, values)),
        values_(values),
        side_(side_of(loaded_.description.config.image, path.string())) {
    const std::vector<std::size_t>& ends = loaded_.net->ends;
    last_layer_ = ends.size() < 2 ? 0 : ends[ends.size() - 2];
    nn::Shape shape = loaded_.net->input(1);
    for (std::size_t i = 0; i < last_layer_; ++i) shape = (*loaded_.net->layers)[i].output(shape);
    columns_ = shape.size();
  }

  std::size_t side() const override { return side_; }
  std::size_t columns() const override { return columns_; }
  std::size_t classes() const override { return loaded_.net->config.classes; }

  Found of(std::span<const std::uint8_t> images) override {
    const std::size_t size = 3 * side_ * side_;
    Found all;
    for (std::size_t first = 0; first * size < images.size(); first += at_once) {
      const std::size_t count = std::min(at_once, images.size() / size - first);
      add(images.subspan(first * size, count * size), count, all);
    }
    return all;
  }

 private:
  static constexpr std::size_t at_once = 64;

  void add(std::span<const std::uint8_t> images, std::size_t count, Found& all) {
    const PixelScale& scale = loaded_.description.scale;
    std::vector<float> numbers(images.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = (static_cast<float>(images[i]) - scale.mean[i % 3]) / scale.deviation[i % 3];
    }
    nn::Sequence& layers = *loaded_.net->layers;
    nn::Pass pass{engine_};
    pass.training = false;
    const nn::Tensor x = nn::from_floats(engine_, numbers, loaded_.net->input(count), values_, nn::Use::data);
    const nn::Tensor inside = layers.forward(pass, x, 0, last_layer_);
    const std::vector<float> features = nn::to_floats(engine_, inside);
    all.features.insert(all.features.end(), features.begin(), features.end());
    std::vector<float> logits = nn::to_floats(engine_, layers.forward(pass, inside, last_layer_, layers.size()));
    for (std::size_t i = 0; i < count; ++i) {
      const auto scores = std::span(logits).subspan(i * classes(), classes());
      softmax(scores, scores);
    }
    all.probabilities.insert(all.probabilities.end(), logits.begin(), logits.end());
  }

  nn::Engine& engine_;
  LoadedCnn loaded_;
  DType values_;
  std::size_t side_, last_layer_ = 0, columns_ = 0;
};

}  // namespace

std::unique_ptr<ImageFeatures> load_image_features(nn::Engine& engine, const std::filesystem::path& path, DType values) {
  const TensorMapping file = TensorMapping::open(path);
  const auto found = file.metadata.find(kind_key);
  const std::string kind = found == file.metadata.end() ? "" : found->second;
  if (kind == clip_kind) return std::make_unique<ClipFeatures>(engine, path, values);
  if (kind == cnn_kind) return std::make_unique<CnnFeatures>(engine, path, values);
  fail(ErrorKind::data, "{}: {}; expected one of kind {} or {}, which have features of images", path.string(),
       kind.empty() ? "no float model" : fmt::format("a model of kind {}", kind), clip_kind, cnn_kind);
}

}  // namespace bitloom::models
