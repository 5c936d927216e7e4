#include "train/run_interval.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace bitloom::train {

using Json = nlohmann::json;

void Interval::add(const StepReport& report) {
  targets += report.targets;
  seconds += report.seconds;
  loss += report.loss * static_cast<double>(report.targets);
  norm = std::max(norm, report.gradient_norm);
  skipped += report.skipped ? 1 : 0;
  skipped_blocks += report.skipped_blocks;
  narrowed += report.narrowed;
  clamped += report.clamped;
  compression.add(report.compression);
  last = report;
}

double Interval::clamped_share() const {
  return narrowed == 0 ? 0 : static_cast<double>(clamped) / static_cast<double>(narrowed);
}

Json Interval::line(bool is_shared) const {
  Json line = {{"loss", loss / static_cast<double>(targets)},
               {"rate", last.rate},
               {"gradient_norm", norm},
               {"targets_per_second", static_cast<double>(targets) / std::max(seconds, 1e-9)},
               {"stash_bytes", last.stash_bytes}};
  if (is_shared) line["sent_bytes"] = last.sent_bytes;
  if (skipped != 0) line["skipped"] = skipped;
  if (last.loss_scale != 1) line["loss_scale"] = last.loss_scale;
  if (skipped_blocks != 0) line["skipped_blocks"] = skipped_blocks;
  if (narrowed != 0) line["clamped"] = clamped;
  if (compression.steps != 0) {  // means of the steps of this process
    line["compress_seconds"] = compression.computing_seconds / static_cast<double>(compression.steps);
    line["compress_wait_seconds"] = compression.waiting_seconds / static_cast<double>(compression.steps);
  }
  if (!last.block_scales.empty()) line["block_scales"] = last.block_scales;
  return line;
}

Json to_json(const Interval& interval) {
  return {{"targets", interval.targets},   {"loss", interval.loss},       {"norm", interval.norm},
          {"seconds", interval.seconds},   {"skipped", interval.skipped}, {"skipped_blocks", interval.skipped_blocks},
          {"narrowed", interval.narrowed}, {"clamped", interval.clamped}};
}

Interval interval_of(const Json& json) {
  const auto number = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_number() ? found->get<double>() : std::nan("");
  };
  Interval interval;
  interval.targets = json.value("targets", std::uint64_t{0});
  interval.loss = number("loss");
  interval.norm = number("norm");
  interval.seconds = number("seconds");
  interval.skipped = json.value("skipped", std::uint64_t{0});
  interval.skipped_blocks = json.value("skipped_blocks", std::uint64_t{0});
  interval.narrowed = json.value("narrowed", std::uint64_t{0});
  interval.clamped = json.value("clamped", std::uint64_t{0});
  return interval;
}

}  // namespace bitloom::train
