// How near images and texts are to one another, by a trained contrastive model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/text/tokenizer.h"
#include "models/clip/clip.h"

namespace bitloom::models {

// Numbers that the net takes for pixels: (pixel / 255 - 1/2) * 4.
std::vector<float> clip_pixels(std::span<const std::uint8_t> images);
// Inputs for captions, lower-cased.
std::vector<std::int32_t> clip_texts(const ClipConfig& config, const data::Tokenizer& tokenizer,
                                     std::span<const std::string> captions);

// Directions of embeddings (N,E), of length 1.
class ClipEncoder {
 public:
  // The net has its numbers. values: V. All outlive this.
  ClipEncoder(nn::Engine& engine, ClipTowers& net, const data::Tokenizer& tokenizer, DType values)
      : engine_(engine), net_(net), tokenizer_(tokenizer), values_(values) {}

  // images (N,side,side,3).
  std::vector<double> images(std::span<const std::uint8_t> images);
  std::vector<double> texts(std::span<const std::string> captions);
  std::size_t embedding() const { return net_.config().embedding(); }

 private:
  static constexpr std::size_t at_once = 64;
  std::vector<double> directions(const nn::Tensor& embeddings) const;

  nn::Engine& engine_;
  ClipTowers& net_;
  const data::Tokenizer& tokenizer_;
  DType values_;
};

// Pairs that have an image or a text in common: of each pair the number of the first pair with an equal one.
struct EqualParts {
  std::vector<std::size_t> image, text;
};

// Places of pairs' own texts among all by nearness to their image, 1 the nearest, of equals the last; and of their images by
// nearness to their text. Equal texts count once, and those that belong to the image by another pair not at all. alive: called
// after every pair.
struct Ranks {
  std::vector<std::size_t> text, image;    // by pair
  std::vector<std::size_t> texts, images;  // how many there are, the own one among them
};
Ranks ranks(std::span<const double> images, std::span<const double> texts, std::size_t embedding, const EqualParts& equal,
            const std::function<void()>& alive = {});

// Share of pairs whose own text is among the `k` nearest to its image, and whose own image is among the nearest to its text.
struct Retrieval {
  double texts_at_1 = 0, texts_at_5 = 0, images_at_1 = 0, images_at_5 = 0;
  double texts_by_chance = 0, images_by_chance = 0;  // at 1
  std::size_t pairs = 0;
};
Retrieval retrieval(const Ranks& ranks);

}  // namespace bitloom::models
