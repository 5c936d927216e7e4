// Sums of floating-point numbers over ranks. Integers are summed by Comm itself; floats are rounded, so here the order counts:
// it is that of the ranks, whatever arrives first, and all ranks get the same bits.
#pragma once

#include <span>

#include "mpi/comm.h"

namespace bitloom::mpi {

// Collective, in place: values[i] becomes the sum over ranks, formed in double precision in their order and rounded once. All
// ranks pass the same length. Every rank sends and receives about twice the values (a reduce-scatter, then an all-gather).
// Throws PeerLost.
void sum_in_order(Comm& comm, std::span<float> values);
void sum_in_order(Comm& comm, std::span<double> values);

}  // namespace bitloom::mpi
