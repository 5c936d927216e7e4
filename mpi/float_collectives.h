// Collectives on floating-point numbers. Integers are summed by Comm itself; floats are rounded, so here the order counts: it
// is that of the ranks, whatever arrives first. Sums are formed in double precision and rounded once, so that all ranks get the
// same bits, and each part that start_reduce_scatter() gives has the bits of that part of a sum.
//
// T is float, double, bf16, f16 (core/half.h) or f1_6_9 (core/narrow.h). All functions are collective, their spans and counts
// agree on all ranks, and all throw PeerLost, and Error(internal) for a message of another length than expected. With one rank
// there is nothing to do. Beside the caller's memory about 8 MiB are in use. Every rank sends and receives about twice the
// values for a sum, once for the others; small sums and maxima are sent whole to everybody, which waits for the others once
// instead of twice, or, where ranks are many, to few of them, which takes fewer messages.
#pragma once

#include <cstddef>
#include <span>

#include "mpi/comm.h"
#include "mpi/pending.h"

namespace bitloom::mpi {

// In place: values[i] becomes the sum over ranks.
template <typename T>
void sum_in_order(Comm& comm, std::span<T> values);

// In place: values[i] becomes the largest over ranks; NaN is larger than all others.
template <typename T>
void max_of(Comm& comm, std::span<T> values);

// Those that start go on while the caller computes (pending.h). start_sum() is sum_in_order().
template <typename T>
[[nodiscard]] Pending start_sum(Comm& comm, std::span<T> values);

// `all` are the parts of all ranks, one after the other, rank r's of counts[r] values; `mine` becomes the sum over ranks of
// this rank's part, and may be that part of `all` itself. Throws Error(internal) if counts do not fit `all` and `mine`.
template <typename T>
[[nodiscard]] Pending start_reduce_scatter(Comm& comm, std::span<const T> all, std::span<T> mine,
                                           std::span<const std::size_t> counts);

// `all` are the parts of all ranks, as above; this rank's is there before, the others' afterwards.
template <typename T>
[[nodiscard]] Pending start_all_gather(Comm& comm, std::span<T> all, std::span<const std::size_t> counts);

}  // namespace bitloom::mpi
