// Ways in which data-parallel ranks may exchange what they learn, weighed against one another on a cluster's links: whole
// gradients, factors of them, or local steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/float_grids.h"
#include "plan/float_local.h"

namespace bitloom::plan {

enum class Exchange : std::uint8_t { whole, factors, local_steps };

struct ExchangeWay {
  Exchange exchange = Exchange::whole;
  std::uint64_t number = 0;  // rank of factors, or steps between messages
  double seconds = 0;        // per token or, where examples have none, per example
  double waiting = 0;        // share of them in which ranks wait for links
  bool fits = true;          // the memory of a rank
};

// Plans of the same ranks with batches of the same number of examples, or with nearly as many.
struct ExchangePlans {
  FloatPlan whole;
  std::size_t whole_batch = 1;                    // examples
  std::span<const CompressionPlan> compressions;  // plan_compressions(), of whole_batch; may be empty
  std::span<const LocalPlan> local;               // plan_local_steps(); may be empty
  std::size_t local_batch = 1;
};

// All ways of these plans, in the order of what they leave of a step: whole gradients, factors from the largest rank on, local
// steps from the fewest on. options: those of the plans.
std::vector<ExchangeWay> exchange_ways(const FloatModel& model, const ExchangePlans& plans, const FloatOptions& options,
                                       const FloatCluster& cluster);

struct ExchangeAdvice {
  ExchangeWay chosen;
  double computing = 0;           // seconds of computing alone, as those of ways
  std::vector<ExchangeWay> best;  // of each kind, in their order
};

// Share of time that is not worth a step that learns less.
inline constexpr double little_time = 0.05;

// The best of a kind is the first, in the order of ways, that takes little longer than computing alone or, if none does, than
// the fastest of the kind. The choice goes from whole gradients to factors and on to local steps, each time if that saves more
// than little, until it takes little longer than computing alone. None if no way fits the memory.
std::optional<ExchangeAdvice> choose_exchange(double computing, std::span<const ExchangeWay> ways);
// The same of the ways of these plans.
std::optional<ExchangeAdvice> advise(const FloatModel& model, const ExchangePlans& plans, const FloatOptions& options,
                                     const FloatCluster& cluster);

}  // namespace bitloom::plan
