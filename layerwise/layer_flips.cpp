// Rules and limits by which the flips of a whole layer are chosen among those that its weights want.
#include <bit>
#include <cstdlib>

#include "layerwise/layer_trainer.h"

namespace bitloom::layerwise {
namespace {

// The `most` largest of numbers that were counted in a histogram; of equals, those that are asked about first.
class Largest {
 public:
  Largest(const std::vector<std::size_t>& histogram, std::size_t most) : edge_(histogram.size()), left_(most) {
    while (edge_ > 0 && histogram[edge_ - 1] <= left_) left_ -= histogram[--edge_];
  }
  bool takes(std::size_t number) {
    if (number >= edge_) return true;
    if (number + 1 < edge_ || left_ == 0) return false;
    --left_;
    return true;
  }

 private:
  std::size_t edge_;  // from here on all are taken,
  std::size_t left_;  // and this number of those just below
};

}  // namespace

void LayerTrainer::flip_highest_scores(std::size_t most) {
  const std::size_t bits = layer_.patch_bits();
  const auto for_each_candidate = [&](auto&& visit) {
    for (std::size_t o = 0; o < layer_.channels(); ++o) {
      std::uint64_t* sign = new_sign_.data() + o * layer_.patch_words();
      for (std::size_t k = 0; k < bits; ++k) {
        if (!get_bit(layer_.valid_bits().data(), k)) continue;
        const std::int32_t score = rule_.score(state_[o * bits + k], get_bit(sign, k));
        if (score > 0) visit(sign, k, state_[o * bits + k], static_cast<std::size_t>(score));
      }
    }
  };
  histogram_.assign(1U << 15U, 0);  // scores are 15-bit integers
  for_each_candidate([&](std::uint64_t*, std::size_t, std::int16_t&, std::size_t score) { ++histogram_[score]; });
  Largest highest(histogram_, most);
  for_each_candidate([&](std::uint64_t* sign, std::size_t k, std::int16_t& state, std::size_t score) {
    if (!highest.takes(score)) return;
    set_bit(sign, k, !get_bit(sign, k));
    state = 0;
  });
}

// Undoes the flips whose accumulators are nearest to 0, but for the surest `flip_limit`; they stay wanted. Equals are taken in
// the order of the weights.
void LayerTrainer::limit_flips() {
  const std::size_t words = layer_.patch_words();
  const std::size_t bits = layer_.patch_bits();
  const auto for_each_flip = [&](auto&& visit) {
    for (std::size_t i = 0; i < new_sign_.size(); ++i) {
      for (std::uint64_t changed = layer_.rows()[i] ^ new_sign_[i]; changed != 0; changed &= changed - 1) {
        const auto bit = static_cast<std::size_t>(std::countr_zero(changed));
        visit(i, bit, static_cast<std::size_t>(std::abs(std::int32_t{state_[i / words * bits + i % words * word_bits + bit]})));
      }
    }
  };
  histogram_.assign((1U << 15U) + 1, 0);
  for_each_flip([&](std::size_t, std::size_t, std::size_t sureness) { ++histogram_[sureness]; });
  Largest surest(histogram_, options_.flip_limit);
  for_each_flip([&](std::size_t word, std::size_t bit, std::size_t sureness) {
    if (!surest.takes(sureness)) new_sign_[word] ^= std::uint64_t{1} << bit;
  });
}

}  // namespace bitloom::layerwise
