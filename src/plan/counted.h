// Bytes that the groups of a grid have counted, to set beside a plan.
#pragma once

#include "mpi/grid.h"
#include "plan/float_plan.h"

namespace bitloom::plan {

// Bytes that a rank has handed to its groups; data: and to those that data ranks are divided into.
struct GridBytes {
  GroupBytes data, pipeline, tensor;

  // Since an earlier count.
  GridBytes operator-(const GridBytes& earlier) const;
};

// So far. Throws Error(internal) if a group has sent anything that GroupBytes has no count for.
GridBytes counted(mpi::Grid& grid);

}  // namespace bitloom::plan
