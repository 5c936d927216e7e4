// Content of one message of an update: the sparse vectors of one logical worker, or of many that a rank has merged, on the
// way up; what all ranks are to apply, on the way down.
//
//   byte 0    0xB6
//   byte 1    version, 1
//   varints   update, workers, worker_bytes, the number of totals; each total, mapped 0, -1, 1, -2, ... -> 0, 1, 2, 3, ...;
//             the number of vectors
//   vectors   each a varint, its length in bytes, and its message (sparse.h); length 0 stands for a vector that is not there
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mpi/sparse.h"

namespace bitloom::mpi {

struct Bundle {
  std::uint64_t update = 0;           // number of the run's update that it belongs to, from 0
  std::uint64_t workers = 0;          // logical workers whose vectors are in it
  std::uint64_t worker_bytes = 0;     // bytes of their bundles, before any were merged; in a message of one worker 0
  std::vector<std::int64_t> totals;   // few numbers that are summed, such as losses
  std::vector<SparseVector> vectors;  // size 0 stands for a missing one

  bool operator==(const Bundle&) const = default;
};

std::vector<std::byte> encode(const Bundle& bundle);

// Bytes of that message, which is not written; sizes: those of each vector, its length's included.
std::size_t encoded_size(const Bundle& bundle, std::vector<std::size_t>& sizes);

// Throws Error(data) for anything that is not a bundle.
Bundle decode_bundle(std::span<const std::byte> message);

// The message by which a rank sends a bundle up, and the bundle that whoever receives it has: one worker's bytes are the length
// of its message, and are not in it.
std::vector<std::byte> to_message(Bundle bundle);
Bundle from_message(std::span<const std::byte> message);

// Sums of everything but `update`, modulo 2^64. Bundles without totals count as zeros. Throws Error(usage) if the bundles are
// of different updates, or their vectors differ in number or (where they are there) in size.
Bundle merge(std::vector<Bundle> parts);

}  // namespace bitloom::mpi
