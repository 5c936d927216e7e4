#include "layerwise/rules.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/bits.h"
#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "core/suggest.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {
namespace {

constexpr float accumulator_one = 32767.0F;  // the accumulator's 1.0
constexpr float initial_range = 0.1F;
constexpr float average_one = 4096.0F;  // the averaged gradient's 1.0 (one root mean square); clipped at +-4
constexpr std::int32_t average_limit = 16383;

std::int32_t round_to_int(float x) { return static_cast<std::int32_t>(x + (x < 0 ? -0.5F : 0.5F)); }

// Uniform in [0, 1) for weight k of a row.
float draw(std::uint64_t key, std::size_t k) { return static_cast<float>(mix64(key + k) >> 40) * 0x1.0p-24F; }

// Packs predicate(k) for the valid weights of a row.
template <typename Predicate>
void pack(const RuleRow& row, std::uint64_t* words, Predicate predicate) {
  for (std::size_t w = 0; w < row.n / word_bits; ++w) {
    std::uint64_t bits = 0;
    for (std::size_t b = 0; b < word_bits; ++b) bits |= std::uint64_t{predicate(w * word_bits + b)} << b;
    words[w] = bits & row.valid[w];
  }
}

void pack_accumulators(const RuleOptions& options, const RuleRow& row) {
  pack(row, row.sign, [&](std::size_t k) { return row.state[k] < 0; });
  if (row.nonzero == nullptr) return;
  const auto zone = static_cast<std::int32_t>(options.dead_zone * static_cast<double>(accumulator_one));
  pack(row, row.nonzero, [&](std::size_t k) { return std::abs(std::int32_t{row.state[k]}) > zone; });
  for (std::size_t w = 0; w < row.n / word_bits; ++w) row.sign[w] &= row.nonzero[w];
}

void initialise_accumulators(const RuleOptions& options, std::uint64_t key, const RuleRow& row) {
  for (std::size_t k = 0; k < row.n; ++k) {
    row.state[k] = static_cast<std::int16_t>(round_to_int((2 * draw(key, k) - 1) * initial_range * accumulator_one));
  }
  pack_accumulators(options, row);
}

// Magnitudes as initialise() draws them, above the dead zone where there is one.
void adopt_into_accumulators(const RuleOptions& options, std::uint64_t key, const RuleRow& row) {
  const float zone = row.nonzero == nullptr ? 0.0F : static_cast<float>(options.dead_zone);
  for (std::size_t k = 0; k < row.n; ++k) {
    const float u = draw(key, k);
    const bool zero = row.nonzero != nullptr && !get_bit(row.nonzero, k);
    const float magnitude = zero ? zone * (2 * u - 1) : zone + u * initial_range;
    // At least one step from 0: the sign of 0 is +1.
    const std::int32_t steps = static_cast<std::int32_t>(magnitude * accumulator_one) + (zero ? 0 : 1);
    row.state[k] = static_cast<std::int16_t>(std::min(steps, 32767) * (get_bit(row.sign, k) ? -1 : 1));
  }
}

// The weight is the sign of its accumulator, which descends the gradient and is clipped to -1 .. 1.
void accumulate(const RuleOptions& options, double rate, std::uint64_t, const RuleRow& row) {
  const auto step = static_cast<float>(options.learning_rate * rate) * accumulator_one;
  simd::kernels().descend(row.state, row.gradient, row.n, step, accumulator_one);
  pack_accumulators(options, row);
}

void forget(const RuleOptions&, std::uint64_t, const RuleRow& row) { std::fill(row.state, row.state + row.n, std::int16_t{0}); }

void initialise_signs(const RuleOptions& options, std::uint64_t key, const RuleRow& row) {
  forget(options, key, row);
  pack(row, row.sign, [&](std::size_t k) { return draw(key, k) < 0.5F; });
}

// m <- momentum m + (1 - momentum) gradient; who flips is decided over the whole layer (topk).
void average(const RuleOptions& options, double, std::uint64_t, const RuleRow& row) {
  const auto keep = static_cast<float>(options.momentum);
  const float add = (1.0F - keep) * average_one;
  constexpr auto limit = static_cast<float>(average_limit);
  for (std::size_t k = 0; k < row.n; ++k) {
    const float moved = keep * static_cast<float>(row.state[k]) + add * row.gradient[k];
    row.state[k] = static_cast<std::int16_t>(round_to_int(std::clamp(moved, -limit, limit)));
  }
}

// How much the averaged gradient wants weight (+1 if !sign) to flip: m * w.
std::int32_t flip_score(std::int16_t state, bool sign) { return sign ? -state : state; }

// Flip with a probability proportional to the gradient against the weight ("if we can't flip a bit by 0.01, we can flip it
// 1% of the time", the essay "Distributed training"). Needs no state.
void stochastic(const RuleOptions& options, double rate, std::uint64_t key, const RuleRow& row) {
  const auto scale = static_cast<float>(options.flip_rate * rate);
  pack(row, row.sign, [&](std::size_t k) {
    const bool sign = get_bit(row.sign, k);
    const float against = sign ? -row.gradient[k] : row.gradient[k];
    return against > 0 && draw(key, k) < against * scale ? !sign : sign;
  });
}

std::size_t share_of_weights(const RuleOptions& options, double rate, double weights) {
  return static_cast<std::size_t>(options.flip_share * rate * weights + 0.5);
}

// The gradient of this batch alone, coarse enough that the largest do not meet the limit.
void remember(const RuleOptions&, double, std::uint64_t, const RuleRow& row) {
  constexpr float steps = 256.0F;
  constexpr auto limit = static_cast<float>(average_limit);
  for (std::size_t k = 0; k < row.n; ++k) {
    row.state[k] = static_cast<std::int16_t>(round_to_int(std::clamp(row.gradient[k] * steps, -limit, limit)));
  }
}

std::size_t one(const RuleOptions&, double, double) { return 1; }

constexpr auto rules = std::to_array<UpdateRule>({
    {"accumulate", "integer accumulators; the weight is the sign", 16, true, true, initialise_accumulators,
     adopt_into_accumulators, accumulate, nullptr, nullptr},
    {"topk", "flip the k weights whose averaged gradient most opposes them", 16, false, false, initialise_signs, forget,
     average, flip_score, share_of_weights},
    {"stochastic", "flip at random, in proportion to the gradient against the weight", 1, false, false, initialise_signs,
     forget, stochastic, nullptr, nullptr},
    {"greedy", "flip the one weight that most lowers this batch's loss; none if no flip does (with the exact signal)", 16,
     false, false, initialise_signs, forget, remember, flip_score, one},
});

}  // namespace

const UpdateRule& find_rule(const std::string& name) { return find_named(rules, name, marked_field("rule")); }

std::span<const UpdateRule> update_rules() { return rules; }

}  // namespace bitloom::layerwise
