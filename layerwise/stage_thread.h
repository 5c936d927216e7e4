// Working memory and sums of one thread of a stage. Private to stage_passes.cpp and stage_backward.cpp.
#pragma once

#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layerwise/stage_passes.h"

namespace bitloom::layerwise {

inline std::size_t thread_index() { return static_cast<std::size_t>(omp_get_thread_num()); }

struct StagePasses::Thread {
  StageInputs::Workspace input;
  CountCache::Scratch conv_counts;
  std::vector<std::int16_t> counts;
  std::vector<Rounding> rounding;
  std::vector<std::uint8_t> codes;
  std::vector<std::vector<float>> pixel_gradient;  // per trained layer with consumers or a class_conv head
  std::vector<float> input_gradient;
  std::vector<std::vector<float>> cell_gradient;  // per trained layer with cells: (cells, channels)
  std::vector<std::uint64_t> deciding;            // the window's bits that gradient reaches through OR
  BackwardScratch backward;
  std::vector<LayerSums> sums;  // per trained layer; statistics only
  std::vector<Head::Sums> head_sums;
  std::vector<bool> has_head_sums;  // per head: of this step; others' are of an earlier one
  std::vector<std::int64_t> head_totals;
  PhaseTimes times;
};

}  // namespace bitloom::layerwise
