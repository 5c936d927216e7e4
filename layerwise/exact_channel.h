// One thread's part of the exact learning signal (exact_signal.h): the moves of all weights of one channel. Private to
// exact_signal.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "layerwise/exact_signal.h"

namespace bitloom::layerwise {

// Goes through the channel image by image. Everything here is scratch memory.
class ExactSignal::Channel {
 public:
  ExactStatistics statistics;

  void start(const BinaryLayer& layer, std::span<const std::uint32_t> weights, std::size_t channel, std::int64_t* deltas);
  void add(const simd::Kernels& kernels, const ExactHead& head, const ExactHead::Image& image, const std::uint64_t* input,
           std::span<const std::uint32_t> edges);

 private:
  // The digit of one zone with edge pixels.
  struct Digit {
    std::uint32_t zone, group;
    std::int32_t off, on;  // edge pixels at T and at T + 1
    std::int32_t scale;    // scale of the digit in its key
  };
  // Digits that together are an index into one table of sums; a bit field of a key.
  struct Group {
    std::size_t pass, range, table;
    std::uint32_t shift, mask;
  };
  // One of the different changes of the counts, up to some pass: its key there, and which change it is without that pass.
  struct Change {
    std::uint32_t previous, key;
  };
  struct Slot {
    std::uint64_t key;
    std::uint32_t stamp, change;
  };

  std::size_t lists() const { return layer_->spec().ternary ? 2 : 1; }
  void plan(const ExactHead& head, std::span<const std::uint32_t> edges);
  void sum_keys(const simd::Kernels& kernels, const ExactHead& head, const std::uint64_t* input,
                std::span<const std::uint32_t> edges, std::size_t pass);
  void find_changes(std::size_t pass);
  void fill_tables(const ExactHead& head, const ExactHead::Image& image);
  void evaluate(const ExactHead& head, const ExactHead::Image& image);

  const BinaryLayer* layer_ = nullptr;
  std::span<const std::uint32_t> weights_;
  std::size_t channel_ = 0;
  std::int64_t* deltas_ = nullptr;

  std::vector<std::uint8_t> codes_;       // (M, weights)
  std::vector<std::uint32_t> change_of_;  // (M, weights): index into the last pass's changes
  std::vector<std::uint32_t> keys_;       // (M, weights): of the current pass
  std::vector<std::int32_t> off_, on_;    // (Z)
  std::vector<Digit> digits_;
  std::vector<Group> groups_;
  std::size_t passes_ = 0;
  std::size_t change_count_ = 0;             // changes in the last pass
  std::vector<std::int32_t> scales_, sums_;  // sums: (lists, B)
  std::vector<std::uint32_t> offsets_, begin_, slot_of_zone_;
  std::vector<std::vector<Change>> changes_;  // per pass
  std::vector<std::uint32_t> of_key_;
  std::vector<Slot> slots_;
  std::uint32_t stamp_ = 0;  // stamp of the slots in use
  std::vector<std::uint32_t> tables_, steps_, rows_;
  std::vector<const std::uint32_t*> steps_of_;  // per group
  std::vector<std::int64_t> values_;            // values of the changes
};

}  // namespace bitloom::layerwise
