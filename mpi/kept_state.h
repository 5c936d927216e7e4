// State that the workers of a rank keep: what they did not send (error feedback: Stich et al. 2018), in memory or in a file,
// and how it is read while they go on.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/file_memory.h"
#include "mpi/bundle.h"

namespace bitloom::mpi {

struct FeedbackVector {
  std::uint64_t size = 0;
  bool narrow = false;         // its elements, and what is kept of them, fit 30 bits; what stays at the limit beyond is counted
  double threshold_scale = 1;  // its thresholds, in root mean squares, are lower than others' by this factor
};

// Where a rank's workers keep what they do not send. It changes no result.
struct ErrorFeedbackPlace {
  std::uint64_t memory = 0;  // bytes; error feedback beyond it lies in a file of `folder`. 0: no limit
  std::filesystem::path folder;
};

// Error feedback of one feedback vector, in the one of the two types that it has.
struct ErrorVector {
  std::span<std::int32_t> narrow;
  std::span<std::int64_t> wide;
};

// State of one worker.
struct Kept {
  std::vector<ErrorVector> feedback;
  std::vector<std::vector<std::int64_t>> statistics;  // since they were last sent

  Bundle to_bundle() const;
};

class KeptState {
 public:
  // Zeros for `workers` workers, in memory as far as `place` says. Throws Error(usage) where that has no room and no folder,
  // and Error(io) if the file cannot be made.
  KeptState(const std::vector<FeedbackVector>& feedback, const std::vector<std::uint64_t>& statistics, std::size_t workers,
            const ErrorFeedbackPlace& place, int rank);
  KeptState() = default;

  std::size_t workers() const { return kept_.size(); }
  Kept& operator[](std::size_t worker) { return kept_[worker]; }
  const Kept& operator[](std::size_t worker) const { return kept_[worker]; }
  // Bytes that one worker keeps, its statistics included.
  std::size_t bytes_of_worker() const;
  std::size_t bytes_in_file() const { return file_.bytes().size(); }

  // A worker's state that does not change any more.
  struct Copy {
    Buffer<std::byte> memory;
    Kept kept;
  };
  Copy copy(std::size_t worker) const;

 private:
  std::vector<ErrorVector> error_vectors_at(std::byte* at) const;

  std::vector<FeedbackVector> feedback_;
  std::size_t block_bytes_ = 0;  // size of a worker's error vectors, which lie side by side
  std::vector<std::byte*> blocks_;
  std::vector<Kept> kept_;
  Buffer<std::byte> memory_;  // memory of the first workers,
  FileMemory file_;           // and of the others
};

// KeptState at the moment this was made, in messages that a thread writes while workers go on: whoever is about to change a
// worker's state leaves a copy of it first, if the thread has not come to it yet.
class KeptSnapshot {
 public:
  // sum: one message, of the sum over workers, instead of one for each in their order. most_copies: bytes that copies may take
  // before before_change() waits for the thread.
  KeptSnapshot(const KeptState& state, bool sum, std::size_t most_copies);
  KeptSnapshot(const KeptSnapshot&) = delete;
  KeptSnapshot& operator=(const KeptSnapshot&) = delete;
  ~KeptSnapshot();

  void before_change(std::size_t worker);
  // The bytes that are ready and were not taken before; last: there will be no more. Throws what the thread threw.
  std::vector<std::byte> take(bool& last);

 private:
  void run(bool sum);
  KeptState::Copy claim(std::size_t worker);

  const KeptState& state_;
  const std::size_t most_copies_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> saved_;                               // by worker: copied, or read by the thread
  std::vector<std::unique_ptr<KeptState::Copy>> copies_;  // by worker, until the thread comes to it
  std::size_t copied_bytes_ = 0;
  std::vector<std::byte> ready_;
  bool ended_ = false;  // the thread, by whatever
  bool stop_ = false;
  std::future<void> thread_;
};

// Messages with their lengths in front, one after the other.
void append_message(std::vector<std::byte>& all, std::span<const std::byte> message);
// Takes the first of such messages off. Throws Error(data).
std::span<const std::byte> next_message(std::span<const std::byte>& rest);

}  // namespace bitloom::mpi
