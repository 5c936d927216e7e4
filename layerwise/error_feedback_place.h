// Error feedback of logical workers, the part they did not send: how much it is, and where it lies.
#pragma once

#include <cstddef>
#include <string>

#include "data/dataset.h"
#include "layerwise/model.h"
#include "layerwise/trainer.h"
#include "mpi/comm.h"
#include "mpi/sparse_exchange.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// Collective, before anything is written: after the death of hosts the others carry their workers too, and what these keep may
// then be more than a host has memory. model: encoder and layers of the net; first_stage: the stages before it are done. Throws
// Error(usage or io) if neither memory nor the cache's folder has the room; nothing to place with dense sums.
mpi::ErrorFeedbackPlace place_error_feedback(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options,
                                             const Model& model, const data::Dataset& images, std::size_t first_stage);

// Sizes and place for people; "" if workers keep nothing.
std::string error_feedback_text(const mpi::SparseExchange& exchange, const mpi::ErrorFeedbackPlace& place, std::size_t workers,
                                int rank);

}  // namespace bitloom::layerwise
