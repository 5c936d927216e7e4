// A stage's step by dense sums: the sums over all images of the minibatch, on all ranks, from which each makes the same update.
#include <algorithm>
#include <span>

#include "layerwise/exact_signal.h"
#include "layerwise/stage_exchange.h"

namespace bitloom::layerwise {
namespace {

// Any rank gets any image, in one epoch or another.
StageShare dense_share(const StageSetup& setup, const Workers& workers) {
  const std::size_t begin = setup.rank() * setup.batch / setup.ranks();
  const std::size_t count = (setup.rank() + 1) * setup.batch / setup.ranks() - begin;
  return {{begin, count}, count, {0, workers.count()}};
}

double lower_share(std::span<const std::int64_t> changes, const BinaryLayer& layer) {
  const auto lower = std::count_if(changes.begin(), changes.end(), [](std::int64_t change) { return change < 0; });
  return static_cast<double>(lower) /
         static_cast<double>(layer.channels() * layer.geometry().valid_bits * moves_per_weight(layer));
}

class DenseSums : public StageExchange {
 public:
  explicit DenseSums(const StageParts& parts)
      : setup_(parts.setup),
        learners_(parts.learners),
        passes_(parts.passes),
        places_(dense_share(parts.setup, parts.workers).places) {}

  void step(StageStep& step) override;

 private:
  void reduce(bool weights);

  const StageSetup& setup_;
  StageLearners& learners_;
  StagePasses& passes_;
  const Places places_;  // this rank's
};

void DenseSums::step(StageStep& step) {
  const std::size_t n = step.number;
  const bool weights = setup_.learns_weights(n);
  const Clock::time_point start = Clock::now();
  passes_.compute(step, places_, weights, [] {});
  step.keep_pace(start, 1);
  Clock::time_point clock = Clock::now();
  reduce(weights);
  lap(clock, step.result.times.reduce);
  learners_.report(learners_.images(), step.result);
  for (std::size_t t = 0; t < learners_.layers.size(); ++t) {
    const LayerSums& sums = learners_.layers[t].sums;
    if (weights && setup_.options.layer.exact)
      step.result.lower_share.push_back(lower_share(sums.exact, learners_.trainers[t]->layer()));
    step.result.flips[t] = learners_.trainers[t]->update(sums, setup_.batch, setup_.rate(n), setup_.learns(n), n);
  }
  for (LearningHead& head : learners_.heads) {
    head.head->update(head.sums, setup_.batch, setup_.head_rate(n), setup_.options.head_decay);
  }
  lap(clock, step.result.times.update);
}

void DenseSums::reduce(bool weights) {
  for (LearningLayer& layer : learners_.layers) {
    if (weights && setup_.options.layer.exact) setup_.comm.sum(std::span(layer.sums.exact));
    if (weights && !setup_.options.layer.exact) setup_.comm.sum(std::span(layer.sums.weight));
    setup_.comm.sum(std::span(layer.sums.statistics));
  }
  for (LearningHead& head : learners_.heads) {
    for (const std::span<std::int64_t> part : head.sums.all()) setup_.comm.sum(part);
  }
  setup_.comm.sum(std::span(learners_.totals));
}

bool dense_chosen(const TrainOptions& options) { return !options.sparse; }

void check_dense(const TrainOptions&, std::size_t) {}

StageLimits dense_limits(const TrainOptions&, std::size_t batch, std::size_t ranks) {
  return {batch, (batch + ranks - 1) / ranks, ""};
}

std::unique_ptr<StageExchange> make_dense(const StageParts& parts) { return std::make_unique<DenseSums>(parts); }

}  // namespace

const StageExchangeKind dense_sums = {"dense", dense_chosen, check_dense, dense_limits, dense_share, make_dense};

}  // namespace bitloom::layerwise
