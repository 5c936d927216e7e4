#include "plan/float_advice.h"

#include <algorithm>
#include <iterator>

#include "plan/float_compression.h"

namespace bitloom::plan {
namespace {

double per_target(const FloatModel& model, double seconds, std::size_t batch) {
  return seconds / static_cast<double>(batch * model.tokens);
}

bool is_about(double seconds, double least) { return seconds <= (1 + little_time) * least; }

// The first that takes little longer than `computing` or, if none does, than the fastest; ways: at least one.
const ExchangeWay& first_that_suits(std::span<const ExchangeWay> ways, double computing) {
  const double fastest = std::ranges::min_element(ways, {}, &ExchangeWay::seconds)->seconds;
  const auto first_within = [&](double seconds) {
    return std::ranges::find_if(ways, [&](const ExchangeWay& way) { return is_about(way.seconds, seconds); });
  };
  const auto suits = first_within(computing);
  return suits == ways.end() ? *first_within(fastest) : *suits;
}

}  // namespace

std::vector<ExchangeWay> exchange_ways(const FloatModel& model, const ExchangePlans& plans, const FloatOptions& options,
                                       const FloatCluster& cluster) {
  const FloatPlan& whole = plans.whole;
  std::vector<ExchangeWay> ways;
  ways.push_back({Exchange::whole, 0, per_target(model, whole.seconds, plans.whole_batch), 1 - whole.computing, whole.fits});
  for (auto each = plans.compressions.rbegin(); each != plans.compressions.rend(); ++each) {
    const auto& [rank, plan] = *each;
    if (rank == 0) continue;
    const double factors = compression_of(model, rank, options.compress_format).operations / cluster.flops;
    ways.push_back({Exchange::factors, rank, per_target(model, plan.seconds, plans.whole_batch),
                    std::max(0.0, 1 - plan.computing - factors / plan.seconds), plan.fits});
  }
  for (const LocalPlan& plan : plans.local) {
    ways.push_back({Exchange::local_steps, plan.inner_steps, per_target(model, plan.seconds, plans.local_batch),
                    1 - plan.computing, plan.fits});
  }
  return ways;
}

std::optional<ExchangeAdvice> choose_exchange(double computing, std::span<const ExchangeWay> ways) {
  ExchangeAdvice advice;
  advice.computing = computing;
  for (const Exchange kind : {Exchange::whole, Exchange::factors, Exchange::local_steps}) {
    std::vector<ExchangeWay> own;
    std::ranges::copy_if(ways, std::back_inserter(own),
                         [&](const ExchangeWay& way) { return way.fits && way.exchange == kind; });
    if (!own.empty()) advice.best.push_back(first_that_suits(own, computing));
  }
  if (advice.best.empty()) return std::nullopt;
  advice.chosen = advice.best.front();
  for (const ExchangeWay& next : advice.best) {
    if (is_about(advice.chosen.seconds, computing)) break;
    if (!is_about(advice.chosen.seconds, next.seconds)) advice.chosen = next;
  }
  return advice;
}

std::optional<ExchangeAdvice> advise(const FloatModel& model, const ExchangePlans& plans, const FloatOptions& options,
                                     const FloatCluster& cluster) {
  const double computing = per_target(model, plans.whole.computing * plans.whole.seconds, plans.whole_batch);
  return choose_exchange(computing, exchange_ways(model, plans, options, cluster));
}

}  // namespace bitloom::plan
