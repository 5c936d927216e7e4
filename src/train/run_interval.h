// The steps of a run since the last line of metrics, and that line.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "train/trainer.h"

namespace bitloom::train {

struct Interval {
  std::uint64_t targets = 0;
  double loss = 0;  // sum
  double norm = 0;  // the largest
  double seconds = 0;
  std::uint64_t skipped = 0;
  std::uint64_t skipped_blocks = 0;         // sum
  std::uint64_t narrowed = 0, clamped = 0;  // sums (StepReport)
  CompressionTimes compression;
  StepReport last;

  void add(const StepReport& report);
  // Share of the numbers of PowerSGD's messages in 1-6-9 that were too large for it; 0 without any.
  double clamped_share() const;
  // Part of a line of metrics about these steps alone; is_shared: several processes make them. There is at least one target.
  nlohmann::json line(bool is_shared) const;
};

// Without the last step: a line is written after another.
nlohmann::json to_json(const Interval& interval);
// JSON has null for sums that are not finite.
Interval interval_of(const nlohmann::json& json);

}  // namespace bitloom::train
