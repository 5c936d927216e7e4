#include "layerwise/muon.h"

#include <algorithm>
#include <cmath>

#include "core/bits.h"

namespace bitloom::layerwise {
namespace {

constexpr float momentum_one = 4096.0F;  // one root mean square of the layer's gradient; more than eight are cut off
constexpr float momentum_limit = 32767.0F;

}  // namespace

Muon::Muon(const BinaryLayer& layer, double momentum)
    : keep_(static_cast<float>(momentum)), rows_(layer.ties().rows()), column_of_bit_(layer.patch_bits()) {
  const Ties::PixelWords& words = layer.ties().pixel_words();
  const std::size_t pixel_words = words.place.size();
  const std::size_t columns_per_tap = words.stored.size() * word_bits;
  const std::size_t taps = layer.patch_words() / pixel_words;
  bit_of_column_.resize(taps * columns_per_tap);
  for (std::size_t bit = layer.patch_bits(); bit-- > 0;) {  // the first comes last
    const std::size_t word = bit / word_bits;
    const std::size_t column =
        word / pixel_words * columns_per_tap + words.place[word % pixel_words] * word_bits + bit % word_bits;
    column_of_bit_[bit] = static_cast<std::uint32_t>(column);
    bit_of_column_[column] = static_cast<std::uint32_t>(bit);
  }
  const auto is_weight = [&](std::uint32_t bit) { return get_bit(layer.valid_bits().data(), bit); };
  weights_ = static_cast<double>(rows_) * static_cast<double>(std::ranges::count_if(bit_of_column_, is_weight));
  momentum_.assign(rows_ * columns(), 0);
  matrix_.assign(rows_ * columns(), 0);
  orthogonaliser_ = Orthogonaliser(rows_, columns());
}

void Muon::take(std::size_t row, std::span<const float> gradient, float scale) {
  const std::size_t first = row * columns();
  const float add = (1 - keep_) * scale;
  for (std::size_t c = 0; c < columns(); ++c) {
    const float now = add * gradient[bit_of_column_[c]];
    const float scaled = keep_ * static_cast<float>(momentum_[first + c]) + now * momentum_one;
    const float limited = std::clamp(scaled, -momentum_limit, momentum_limit);
    const auto moved = static_cast<std::int16_t>(limited + (limited < 0 ? -0.5F : 0.5F));
    momentum_[first + c] = moved;
    matrix_[first + c] = keep_ * static_cast<float>(moved) * (1 / momentum_one) + now;
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
  const float* const from = matrix_.data() + row * columns();
  for (std::size_t bit = 0; bit < gradient.size(); ++bit) gradient[bit] = scale_ * from[column_of_bit_[bit]];
}

}  // namespace bitloom::layerwise
