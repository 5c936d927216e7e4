#include "plan/virtual_tree.h"

#include <algorithm>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "layerwise/trainer.h"
#include "mpi/tree.h"

namespace bitloom::plan {
VirtualTree::VirtualTree(std::size_t workers, std::size_t ranks, int fan_in)
    : workers_(workers), ranks_(ranks), fan_in_(fan_in), level_(ranks), messages_(ranks), sent_up_(ranks) {
  if (fan_in < 1) fail_field(ErrorKind::usage, "fan_in", "{}; expected at least 1", fan_in);
  if (ranks == 0 || ranks > workers) {
    fail_field(ErrorKind::usage, "hosts", "{} hosts for {} workers; expected 1 to {}", ranks, workers, workers);
  }
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    level_[rank] = level_[(rank - 1) / static_cast<std::size_t>(fan_in)] + 1;
  }
}

std::size_t VirtualTree::rank_of_next() const { return (rank_ + 1) * workers_ / ranks_; }

// The first worker of the next rank, or the end, is reached: what this one has is a message.
void VirtualTree::close_rank() {
  messages_[rank_].insert(messages_[rank_].begin(), mpi::to_message(own_.finish()));
  ++rank_;
}

void VirtualTree::add(std::size_t worker, mpi::Bundle bundle) {
  while (worker >= rank_of_next()) close_rank();
  own_.add(worker, std::move(bundle));
}

// Measures the merged messages of the first 1, 2, 4, ... ranks.
void VirtualTree::measure_merged() {
  merging_.clear();
  mpi::Merger sum;
  mpi::Bundle merged;
  std::size_t rank = 0;
  for (std::size_t wanted = 1; wanted <= ranks_; wanted *= 2) {
    if (rank > 0) sum.add(0, std::move(merged));
    for (; rank < wanted; ++rank) sum.add(0, mpi::from_message(messages_[rank].front()));
    merged = sum.finish();
    merging_.push_back({static_cast<std::size_t>(merged.workers), static_cast<double>(mpi::to_message(merged).size())});
  }
}

// Sum of the messages that have come to a rank, its own included.
mpi::Bundle VirtualTree::merge_of(std::size_t rank) {
  mpi::Merger sum;
  for (const std::vector<std::byte>& message : messages_[rank]) {
    cost_.bytes += message.size();
    sum.add(0, mpi::from_message(message));
  }
  messages_[rank] = {};
  return sum.finish();
}

mpi::Bundle VirtualTree::finish() {
  const Clock::time_point start = Clock::now();
  close_rank();
  if (rank_ != ranks_) fail(ErrorKind::internal, "virtual tree: workers of {} ranks; expected {}", rank_, ranks_);
  rank_ = 0;
  std::uint64_t bytes = 0;
  for (const auto& messages : messages_) bytes += messages.front().size();
  most_message_bytes_ = std::max(most_message_bytes_, bytes);
  layerwise::peak_memory();  // nearly all of it is there now
  if (std::exchange(measures_, false)) measure_merged();
  levels_.resize(*std::max_element(level_.begin(), level_.end()) + 1);
  for (std::size_t rank = ranks_ - 1; rank > 0; --rank) {
    std::vector<std::byte> message;
    if (messages_[rank].size() == 1) {
      message = std::move(messages_[rank].front());  // a leaf's
      messages_[rank] = {};
    } else {
      const Clock::time_point merging = Clock::now();
      message = mpi::to_message(merge_of(rank));
      cost_.merging += seconds_since(merging);
    }
    sent_up_[rank] += message.size();
    LevelTraffic& level = levels_[level_[rank]];
    level.bytes += message.size();
    level.largest = std::max<std::uint64_t>(level.largest, message.size());
    messages_[(rank - 1) / static_cast<std::size_t>(fan_in_)].push_back(std::move(message));
  }
  const Clock::time_point merging = Clock::now();
  mpi::Bundle all = merge_of(0);
  cost_.merging += seconds_since(merging);
  cost_.finishing += seconds_since(start);
  return all;
}

std::vector<LevelTraffic> VirtualTree::take_levels() {
  std::vector<LevelTraffic> levels = std::exchange(levels_, {});
  levels.resize(*std::max_element(level_.begin(), level_.end()) + 1);
  for (const std::size_t level : level_) ++levels[level].ranks;
  return levels;
}

std::vector<std::uint64_t> VirtualTree::take_sent_up() { return std::exchange(sent_up_, std::vector<std::uint64_t>(ranks_)); }

}  // namespace bitloom::plan
