// Exponential, logarithm and softmax whose results are the same bits on every machine: IEEE additions, multiplications and
// divisions in a fixed order, no library function, no contraction into fused multiply-adds (softmax.cpp is compiled with
// -ffp-contract=off). No result is subnormal, so flush-to-zero modes change nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace bitloom {

// exp(x), relative error below 2e-7 for -87 <= x <= 87. 0 for x < -87, exp(87) for x > 87, NaN for NaN.
float exp_fixed(float x);

// The natural logarithm, relative error below 2e-7 for normal x > 0. log(FLT_MIN) for smaller x (also 0 and negative x),
// log(FLT_MAX) for infinity, NaN for NaN.
float log_fixed(float x);

// probabilities[i] = exp(logits[i]) / sum_j exp(logits[j]). Both (N), N > 0; may be the same memory. Logits more than 87
// below the largest have probability 0. A NaN or +infinity among the logits makes every result NaN.
void softmax(std::span<const float> logits, std::span<float> probabilities);

// -log softmax(logits)[label] in nats, without loss of precision for small probabilities. logits: (N), label < N.
double cross_entropy(std::span<const float> logits, std::size_t label);

// scores[l] -= cross_entropy(logits, l), rounded to a float, for all labels in one pass. Both (N).
void subtract_cross_entropies(std::span<const float> logits, std::span<float> scores);

// A loss in millionths of a nat, rounded, for sums that do not depend on their order. Nothing for NaN and for what exceeds
// largest_micro_nats either way, of which a signed sum has room for four million.
inline constexpr std::int64_t largest_micro_nats = std::int64_t{1} << 40;
std::optional<std::int64_t> micro_nats(double nats);

}  // namespace bitloom
