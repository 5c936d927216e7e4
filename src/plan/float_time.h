// Seconds of passes and of a step: products at a rank's speed, sums and messages over the links of a cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/float_layout.h"
#include "train/parallel/schedule.h"

namespace bitloom::plan {

class FloatTimes {
 public:
  // Both outlive this.
  FloatTimes(const FloatLayout& layout, const FloatCluster& cluster);

  // Passes of a micro-batch through a part: computing, and with what the groups do in them.
  train::PassCosts computing(std::size_t part) const;
  train::PassCosts whole(std::size_t part) const;
  // An activation on its way to the next stage; 0 where there is one stage alone.
  double message() const;

  // Time of what the data group sends in a step, without computing at the same time.
  double data_seconds(std::size_t stage) const;
  // From the end of a stage's last pass, that backward through its first part, to the end of its step.
  double after_passes(std::size_t stage, double last_backward) const;
  // The part of it in which Muon computes.
  double muon_seconds(std::size_t stage) const;

 private:
  // A group of ranks that are `stride` apart.
  struct Group {
    std::size_t ranks = 1, on_host = 1;  // all of them, and those of one host
  };
  // Seconds of parameters and gradients that go over the data group in the passes of a micro-batch through a part.
  struct Exchanges {
    double forward = 0, backward = 0;
  };

  Group group_of(std::size_t ranks, std::size_t stride) const;
  double exchange_seconds(const Group& group, std::uint64_t bytes) const;
  double sum_seconds(const std::vector<std::uint64_t>& bytes) const;
  double message_seconds(std::uint64_t bytes) const;
  Exchanges exchanges_of(std::size_t part) const;
  struct StageExchanges {
    double sum = 0;     // of gradients, over the ranks that have shards of them
    double copies = 0;  // of shards or whole gradients, over the ranks that have the same
    double new_values = 0;
  };
  StageExchanges stage_exchanges(std::size_t stage) const;
  // Seconds of gradients that go by factors.
  struct Compressed {
    double p = 0, q = 0;  // sending; with P what goes as it is
    double computing = 0;
  };
  Compressed compressed_seconds() const;

  const FloatLayout& layout_;
  const FloatCluster& cluster_;
  // Groups of data ranks: those that divide the state, and those that have the same part, or all of it.
  Group shards_, copies_;
  Group tensor_;
};

}  // namespace bitloom::plan
