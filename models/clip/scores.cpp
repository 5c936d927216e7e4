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

namespace {

// The first counts of those that are equal, and none of those that pair `i` has in common with another pair. own: what is
// ranked, by pair; other: what it is near to.
struct Place {
  std::size_t rank = 1, among = 1;
};
template <typename Nearness>
Place place_of(std::size_t i, std::span<const std::size_t> own, std::span<const std::size_t> other, Nearness&& nearness) {
  std::vector<bool> is_right(own.size());
  for (std::size_t j = 0; j < own.size(); ++j) {
    if (other[j] == other[i]) is_right[own[j]] = true;
  }
  Place place;
  const double own_nearness = nearness(i);
  for (std::size_t j = 0; j < own.size(); ++j) {
    if (own[j] != j || is_right[j]) continue;
    ++place.among;
    place.rank += nearness(j) < own_nearness ? 0 : 1;  // what is no number is the nearest of all: a broken net finds nothing
  }
  return place;
}

}  // namespace

Ranks ranks(std::span<const double> images, std::span<const double> texts, std::size_t embedding, const EqualParts& equal,
            const std::function<void()>& alive) {
  const auto cosine = [&](std::size_t image, std::size_t text) {
    double sum = 0;
    for (std::size_t e = 0; e < embedding; ++e) sum += images[image * embedding + e] * texts[text * embedding + e];
    return sum;
  };
  Ranks all;
  for (std::size_t i = 0; i < equal.image.size(); ++i) {
    const Place text = place_of(i, equal.text, equal.image, [&](std::size_t j) { return cosine(i, j); });
    const Place image = place_of(i, equal.image, equal.text, [&](std::size_t j) { return cosine(j, i); });
    all.text.push_back(text.rank);
    all.texts.push_back(text.among);
    all.image.push_back(image.rank);
    all.images.push_back(image.among);
    if (alive) alive();
  }
  return all;
}

Retrieval retrieval(const Ranks& ranks) {
  Retrieval found;
  found.pairs = ranks.text.size();
  const double share = 1 / static_cast<double>(std::max<std::size_t>(1, found.pairs));
  for (std::size_t i = 0; i < found.pairs; ++i) {
    found.texts_at_1 += ranks.text[i] <= 1 ? share : 0;
    found.texts_at_5 += ranks.text[i] <= 5 ? share : 0;
    found.images_at_1 += ranks.image[i] <= 1 ? share : 0;
    found.images_at_5 += ranks.image[i] <= 5 ? share : 0;
    found.texts_by_chance += share / static_cast<double>(ranks.texts[i]);
    found.images_by_chance += share / static_cast<double>(ranks.images[i]);
  }
  return found;
}

}  // namespace bitloom::models
