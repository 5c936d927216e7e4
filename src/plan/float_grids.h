// Grids of data x pipeline x tensor ranks, and which of them suits a float training on a number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// The micro-batch, a divisor of a data rank's share of the batch, that suits a grid: the smallest with `enough` rows, or fewer
// where more do not fit into every rank's memory or leave a pipeline fewer than four for each stage, with which it is hardly
// ever idle (Huang et al. 2019, section 2.3). options.micro_batch, if it is not 0, is taken as it is. Throws Error(usage): for
// what reason_against() says, and where not even one example fits, with `savers`, which fields take less.
std::size_t choose_micro_batch(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options,
                               const FloatCluster& cluster, std::size_t enough, const std::string& savers);

// The best plans of data-parallel ranks whose gradients go whole (compress_rank 0, the first), and by factors of ranks 1, 2, 4,
// ..., up to the largest_share of the bytes. Empty where the ranks cannot all be data-parallel, and for one.
struct CompressionPlan {
  std::size_t rank = 0;
  FloatPlan plan;
};
std::vector<CompressionPlan> plan_compressions(const FloatModel& model, int ranks, const FloatOptions& options,
                                               const FloatCluster& cluster);

// The most examples at once whose `bytes` are at most `limit`; 0 if not even one fits. More examples take more bytes.
std::size_t most_examples(const std::function<std::uint64_t(std::size_t examples)>& bytes, std::uint64_t limit);

// A message for a grid that does not fit: what the largest stage takes, and which grid of as many ranks would fit, the fastest
// of them; or that there is none, and what the smallest takes.
std::string describe_misfit(const FloatModel& model, const FloatPlan& plan, const FloatOptions& options,
                            const FloatCluster& cluster);

}  // namespace bitloom::plan
