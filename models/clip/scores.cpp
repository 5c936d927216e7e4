#include "models/clip/scores.h"

#include <algorithm>
#include <cmath>

#include "data/pairs/caption_filter.h"
#include "nn/floats.h"

namespace bitloom::models {

std::vector<float> clip_pixels(std::span<const std::uint8_t> images) {
  std::vector<float> numbers(images.size());
  std::ranges::transform(images, numbers.begin(), [](std::uint8_t pixel) { return static_cast<float>(pixel) / 255 * 4 - 2; });
  return numbers;
}

std::vector<std::int32_t> clip_texts(const ClipConfig& config, const data::Tokenizer& tokenizer,
                                     std::span<const std::string> captions) {
  std::vector<std::vector<std::int32_t>> texts;
  for (const std::string& caption : captions) texts.push_back(data::encode(tokenizer, data::lower_cased(caption)));
  return clip_inputs(config, texts);
}

std::vector<double> ClipEncoder::directions(const nn::Tensor& embeddings) const {
  const std::vector<float> numbers = nn::to_floats(engine_, embeddings);
  std::vector<double> all(numbers.begin(), numbers.end());
  for (auto row = all.begin(); row != all.end(); row += static_cast<std::ptrdiff_t>(embedding())) {
    const auto end = row + static_cast<std::ptrdiff_t>(embedding());
    double sum = 0;
    std::for_each(row, end, [&](double x) { sum += x * x; });
    const double length = std::max(std::sqrt(sum), 1e-12);
    std::for_each(row, end, [&](double& x) { x /= length; });
  }
  return all;
}

std::vector<double> ClipEncoder::images(std::span<const std::uint8_t> images) {
  const data::ImageShape& shape = net_.config().image.image;
  std::vector<double> all;
  for (std::size_t first = 0; first < images.size() / shape.size(); first += at_once) {
    const std::size_t count = std::min(at_once, images.size() / shape.size() - first);
    const std::vector<float> numbers = clip_pixels(images.subspan(first * shape.size(), count * shape.size()));
    const nn::Tensor x =
        nn::from_floats(engine_, numbers, {count, shape.height, shape.width, shape.channels}, values_, nn::Use::data);
    const std::vector<double> some = directions(net_.embed_images(engine_, x));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<double> ClipEncoder::texts(std::span<const std::string> captions) {
  std::vector<double> all;
  for (std::size_t first = 0; first < captions.size(); first += at_once) {
    const std::size_t count = std::min(at_once, captions.size() - first);
    const std::vector<std::int32_t> ids = clip_texts(net_.config(), tokenizer_, captions.subspan(first, count));
    const nn::Tensor x = engine_.from(std::span<const std::int32_t>(ids), {count, net_.config().text}, nn::Use::data);
    const std::vector<double> some = directions(net_.embed_texts(engine_, x));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

Retrieval retrieval(std::span<const double> images, std::span<const double> texts, std::size_t embedding) {
  Retrieval found;
  found.pairs = images.size() / embedding;
  const auto cosine = [&](std::size_t image, std::size_t text) {
    double sum = 0;
    for (std::size_t e = 0; e < embedding; ++e) sum += images[image * embedding + e] * texts[text * embedding + e];
    return sum;
  };
  const double share = 1 / static_cast<double>(std::max<std::size_t>(1, found.pairs));
  for (std::size_t i = 0; i < found.pairs; ++i) {
    const double own = cosine(i, i);
    std::size_t nearer_texts = 0;
    std::size_t nearer_images = 0;
    for (std::size_t j = 0; j < found.pairs; ++j) {
      if (j == i) continue;
      nearer_texts += cosine(i, j) >= own ? 1 : 0;  // of equals none is found
      nearer_images += cosine(j, i) >= own ? 1 : 0;
    }
    found.texts_at_1 += nearer_texts < 1 ? share : 0;
    found.texts_at_5 += nearer_texts < 5 ? share : 0;
    found.images_at_1 += nearer_images < 1 ? share : 0;
    found.images_at_5 += nearer_images < 5 ? share : 0;
  }
  return found;
}

}  // namespace bitloom::models
