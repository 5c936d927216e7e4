#include "layerwise/muon.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace bitloom::layerwise {
namespace {

constexpr float momentum_one = 4096.0F;  // one root mean square of the layer's gradient; more than eight are cut off
constexpr float momentum_limit = 32767.0F;

}  // namespace

Muon::Muon(const BinaryLayer& layer, double momentum)
    : keep_(static_cast<float>(momentum)), rows_(layer.ties().rows()), column_of_word_(layer.patch_words()) {
  const Ties::PixelWords& words = layer.ties().pixel_words();
  const std::size_t pixel_words = words.place.size();
  word_of_column_.resize(layer.patch_words() / pixel_words * words.stored.size());
  for (std::size_t word = layer.patch_words(); word-- > 0;) {  // the first comes last
    column_of_word_[word] = word / pixel_words * words.stored.size() + words.place[word % pixel_words];
    word_of_column_[column_of_word_[word]] = word;
  }
  std::size_t weights_of_row = 0;
  for (const std::size_t word : word_of_column_) {
    weights_of_row += static_cast<std::size_t>(std::popcount(layer.valid_bits()[word]));
  }
  weights_ = static_cast<double>(rows_ * weights_of_row);
  momentum_.assign(rows_ * columns(), 0);
  matrix_.assign(rows_ * columns(), 0);
  orthogonaliser_ = Orthogonaliser(rows_, columns());
}

void Muon::take(std::size_t row, std::span<const float> gradient, float scale) {
  const float add = (1 - keep_) * scale;
  for (std::size_t w = 0; w < word_of_column_.size(); ++w) {
    const float* const from = gradient.data() + word_of_column_[w] * word_bits;
    std::int16_t* const momentum = momentum_.data() + row * columns() + w * word_bits;
    float* const matrix = matrix_.data() + row * columns() + w * word_bits;
    for (std::size_t i = 0; i < word_bits; ++i) {
      const float now = add * from[i];
      const float scaled = keep_ * static_cast<float>(momentum[i]) + now * momentum_one;
      const float limited = std::max(-momentum_limit, std::min(momentum_limit, scaled));
      const auto moved = static_cast<std::int16_t>(limited + std::copysign(0.5F, limited));
      momentum[i] = moved;
      matrix[i] = keep_ * static_cast<float>(moved) * (1 / momentum_one) + now;
    }
  }
}

void Muon::orthogonalise() {
  orthogonaliser_.apply(matrix_);
  // Squares of multiples of 2^-15 add up exactly, in any order.
  double squares = 0;
#pragma omp parallel for schedule(static) reduction(+ : squares)
  for (const float value : matrix_) squares += static_cast<double>(value) * static_cast<double>(value);
  scale_ = squares > 0 ? static_cast<float>(std::sqrt(weights_ / squares)) : 0.0F;
}

void Muon::give(std::size_t row, std::span<float> gradient) const {
  for (std::size_t word = 0; word < column_of_word_.size(); ++word) {
    const float* const from = matrix_.data() + row * columns() + column_of_word_[word] * word_bits;
    float* const to = gradient.data() + word * word_bits;
    for (std::size_t i = 0; i < word_bits; ++i) to[i] = scale_ * from[i];
  }
}

}  // namespace bitloom::layerwise
