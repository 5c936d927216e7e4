// How summed gradients become weight flips: a table of rules. Each keeps one 16-bit integer per weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bitloom::layerwise {

struct RuleOptions {
  std::string name = "accumulate";
  double learning_rate = 0.01;  // accumulate: step of the accumulator (range -1 .. 1) per root-mean-square gradient
  double momentum = 0.99;       // topk: decay of the averaged gradient
  double flip_share = 0.003;    // topk: share of the layer's weights flipped per step at the start (scaled by the schedule)
  double flip_rate = 0.02;      // stochastic: probability of a flip per root-mean-square of gradient against the weight
  double dead_zone = 0.03;      // ternary layers: accumulators within this distance of 0 are the weight 0
};

// One row of weights as a rule sees it. gradient[k] is dLoss/dweight in units of the layer's root mean square, or of that of
// its row and column (LayerOptions::second_moment_decay), or made orthogonal (LayerOptions::muon_momentum).
struct RuleRow {
  std::int16_t* state;         // (n)
  const float* gradient;       // (n)
  const std::uint64_t* valid;  // bit k: weight k exists
  std::uint64_t* sign;         // bits to set: weight -1
  std::uint64_t* nonzero;      // ternary only: weight not 0
  std::size_t n;               // a multiple of 64
};

struct UpdateRule {
  const char* name;
  const char* description;
  std::size_t state_bits;  // per weight, the sign included
  bool ternary;            // can it train ternary layers?
  bool tied;               // or tied weights (ties.h)? It must do with equal gradients the same, and with all of them
  // Draws the initial state and signs of a row; random words come from (key, position).
  void (*initialise)(const RuleOptions& options, std::uint64_t key, const RuleRow& row);
  // Draws the state of a row whose signs (and nonzero) are given: weights that learn again.
  void (*adopt)(const RuleOptions& options, std::uint64_t key, const RuleRow& row);
  // Moves the state; sets sign (and nonzero). rate is the schedule's share of the learning rate.
  void (*update)(const RuleOptions& options, double rate, std::uint64_t key, const RuleRow& row);
  // Rules that choose among all weights of the layer: the score of each weight (flip the largest), computed after update();
  // null for rules that decide weight by weight.
  std::int32_t (*score)(std::int16_t state, bool sign);
  // With `score`: how many of the layer's `weights` weights may flip in a step.
  std::size_t (*flips)(const RuleOptions& options, double rate, double weights);
};

// Throws a usage error with a suggestion.
const UpdateRule& find_rule(const std::string& name);
std::span<const UpdateRule> update_rules();

}  // namespace bitloom::layerwise
