// Workers' messages on the tree of a cluster that is not there: each message is encoded, decoded and merged on its way up as
// between real ranks, in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "mpi/merger.h"

namespace bitloom::plan {

// Traffic that the ranks of one level of the tree send up; level 0 is the root, which sends nothing. Sums over updates.
struct LevelTraffic {
  std::size_t ranks = 0;
  std::uint64_t bytes = 0;    // bytes of all ranks together
  std::uint64_t largest = 0;  // message of one rank
};

// The merged message of a number of workers.
struct MergedMessage {
  std::size_t workers = 0;
  double bytes = 0;
};

class VirtualTree final : public mpi::Merger {
 public:
  // `workers` on `ranks` <= workers, as layerwise::Workers spreads them. Throws Error(usage) for a fan-in below 1.
  VirtualTree(std::size_t workers, std::size_t ranks, int fan_in);

  void add(std::size_t worker, mpi::Bundle bundle) override;
  mpi::Bundle finish() override;

  // Measures, in the next update, how long the messages of 1, 2, 4, ... workers are when they are merged.
  void measure_merging() { measures_ = true; }
  const std::vector<MergedMessage>& merging() const { return merging_; }

  // Since the last call. By level:
  std::vector<LevelTraffic> take_levels();
  // By rank: bytes sent up.
  std::vector<std::uint64_t> take_sent_up();
  // Seconds of decoding, merging and encoding above the leaves, and bytes decoded; then seconds of everything in finish().
  struct Cost {
    double merging = 0;
    std::uint64_t bytes = 0;
    double finishing = 0;
  };
  Cost take_cost() { return std::exchange(cost_, {}); }
  // Largest number of bytes of all messages held at once.
  std::uint64_t most_message_bytes() const { return most_message_bytes_; }

 private:
  void close_rank();
  void measure_merged();
  mpi::Bundle merge_of(std::size_t rank);
  std::size_t rank_of_next() const;

  std::size_t workers_, ranks_;
  int fan_in_;
  std::vector<std::size_t> level_;                             // by rank
  std::size_t rank_ = 0;                                       // whose workers come now
  mpi::Merger own_;                                            // their bundles
  std::vector<std::vector<std::vector<std::byte>>> messages_;  // by rank: its own, then those of the ranks below
  std::vector<std::uint64_t> sent_up_;
  std::vector<LevelTraffic> levels_;
  bool measures_ = false;
  std::vector<MergedMessage> merging_;
  Cost cost_;
  std::uint64_t most_message_bytes_ = 0;
};

}  // namespace bitloom::plan
