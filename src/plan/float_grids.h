// Grids of data x pipeline x tensor ranks, and which of them suits a float training on a number of ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/float_plan.h"

namespace bitloom::plan {

// Axes that are given; none: any.
struct GridWish {
  std::optional<int> pipeline, tensor;
};

// Every possible grid of that many ranks, best first: those that fit, the faster the earlier. micro_batch 0: of each grid the
// one that is best. Throws Error(usage), which lists possible grids near by, if there is none.
std::vector<FloatPlan> plan_grids(const FloatModel& model, int ranks, const GridWish& wish, const FloatOptions& options,
                                  const FloatCluster& cluster);

// A message for a grid that does not fit: what the largest stage takes, and which grid of as many ranks would fit, the fastest
// of them; or that there is none, and what the smallest takes.
std::string describe_misfit(const FloatModel& model, const FloatPlan& plan, const FloatOptions& options,
                            const FloatCluster& cluster);

}  // namespace bitloom::plan
