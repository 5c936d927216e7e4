#include "mpi/kept_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/progress.h"
#include "mpi/bit_stream.h"

namespace bitloom::mpi {
namespace {

// Words of a feedback vector, which begins with a line of the cache.
std::size_t words_of(const FeedbackVector& vector) {
  constexpr std::size_t line = 8;
  const std::size_t words = vector.narrow ? (vector.size + 1) / 2 : vector.size;
  return (words + line - 1) / line * line;
}

}  // namespace

void append_message(std::vector<std::byte>& all, std::span<const std::byte> message) {
  put_varint(all, message.size());
  all.insert(all.end(), message.begin(), message.end());
}

std::span<const std::byte> next_message(std::span<const std::byte>& rest) {
  const std::uint64_t length = get_varint(rest, "length");
  if (length > rest.size()) fail(ErrorKind::data, "exchange: {} bytes are left of a message of {}", rest.size(), length);
  const std::span<const std::byte> message = rest.first(length);
  rest = rest.subspan(length);
  return message;
}

Bundle Kept::to_bundle() const {
  Bundle bundle;
  for (const ErrorVector& error : feedback) {
    bundle.vectors.push_back(error.narrow.empty()
                                 ? to_sparse(error.wide)
                                 : to_sparse(std::vector<std::int64_t>(error.narrow.begin(), error.narrow.end())));
  }
  for (const std::vector<std::int64_t>& sums : statistics) bundle.vectors.push_back(to_sparse(sums));
  return bundle;
}

KeptState::KeptState(const std::vector<FeedbackVector>& feedback, const std::vector<std::uint64_t>& statistics,
                     std::size_t workers, const ErrorFeedbackPlace& place, int rank)
    : feedback_(feedback), kept_(workers) {
  for (const FeedbackVector& vector : feedback) block_bytes_ += words_of(vector) * sizeof(std::int64_t);
  const std::size_t in_memory =
      place.memory == 0 || block_bytes_ == 0 ? workers : std::min<std::size_t>(place.memory / block_bytes_, workers);
  if (in_memory < workers && place.folder.empty()) {
    fail_field(ErrorKind::usage, "residual_memory",
               "{} workers of rank {} keep {}, more than {}; expected `cache` FOLDER, where the "
               "rest can lie, fewer workers, or `error_feedback` none",
               workers, rank, format_bytes(workers * block_bytes_), format_bytes(place.memory));
  }
  memory_ = Buffer<std::byte>(in_memory * block_bytes_);
  file_ = FileMemory(place.folder, (workers - in_memory) * block_bytes_);
  for (std::size_t w = 0; w < workers; ++w) {
    std::byte* const block =
        w < in_memory ? memory_.data() + w * block_bytes_ : file_.bytes().data() + (w - in_memory) * block_bytes_;
    blocks_.push_back(block);
    kept_[w].feedback = error_vectors_at(block);
    for (const std::uint64_t size : statistics) kept_[w].statistics.emplace_back(size, 0);
  }
}

std::vector<ErrorVector> KeptState::error_vectors_at(std::byte* at) const {
  std::vector<ErrorVector> errors;
  for (const FeedbackVector& vector : feedback_) {
    ErrorVector& error = errors.emplace_back();
    if (vector.narrow) {
      error.narrow = {reinterpret_cast<std::int32_t*>(at), vector.size};
    } else {
      error.wide = {reinterpret_cast<std::int64_t*>(at), vector.size};
    }
    at += words_of(vector) * sizeof(std::int64_t);
  }
  return errors;
}

std::size_t KeptState::bytes_of_worker() const {
  if (kept_.empty()) return 0;
  std::size_t bytes = 0;
  for (const ErrorVector& error : kept_.front().feedback) bytes += error.narrow.size_bytes() + error.wide.size_bytes();
  for (const std::vector<std::int64_t>& sums : kept_.front().statistics) bytes += sums.size() * sizeof(std::int64_t);
  return bytes;
}

KeptState::Copy KeptState::copy(std::size_t worker) const {
  Copy copy{Buffer<std::byte>(block_bytes_), {}};
  if (block_bytes_ > 0) std::memcpy(copy.memory.data(), blocks_[worker], block_bytes_);
  copy.kept = {error_vectors_at(copy.memory.data()), kept_[worker].statistics};
  return copy;
}

KeptSnapshot::KeptSnapshot(const KeptState& state, bool sum, std::size_t most_copies)
    : state_(state), most_copies_(most_copies), saved_(state.workers()), copies_(state.workers()) {
  thread_ = std::async(std::launch::async, [this, sum] { run(sum); });
}

KeptSnapshot::~KeptSnapshot() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (thread_.valid()) thread_.wait();
}

void KeptSnapshot::before_change(std::size_t worker) {
  std::unique_lock lock(mutex_);
  const std::size_t bytes = state_.bytes_of_worker();
  changed_.wait(lock, [&] { return saved_[worker] || ended_ || copied_bytes_ == 0 || copied_bytes_ + bytes <= most_copies_; });
  if (saved_[worker] || ended_) return;
  copies_[worker] = std::make_unique<KeptState::Copy>(state_.copy(worker));
  copied_bytes_ += bytes;
  saved_[worker] = true;
}

// For the thread: as the worker's state was.
KeptState::Copy KeptSnapshot::claim(std::size_t worker) {
  const std::lock_guard lock(mutex_);
  if (!saved_[worker]) {
    saved_[worker] = true;
    return state_.copy(worker);
  }
  const std::unique_ptr<KeptState::Copy> copy = std::move(copies_[worker]);
  copied_bytes_ -= state_.bytes_of_worker();
  changed_.notify_all();
  return std::move(*copy);
}

void KeptSnapshot::run(bool sum) {
  // Whatever ends it: nobody is to wait for it any more.
  struct End {
    KeptSnapshot& of;
    ~End() {
      const std::lock_guard lock(of.mutex_);
      of.ended_ = true;
      of.changed_.notify_all();
    }
  } const end{*this};
  Bundle total;
  const auto put = [&](const Bundle& bundle) {
    const std::vector<std::byte> message = encode(bundle);
    const std::lock_guard lock(mutex_);
    append_message(ready_, message);
  };
  for (std::size_t w = 0; w < state_.workers(); ++w) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    Bundle bundle = claim(w).kept.to_bundle();
    if (!sum) {
      put(bundle);
    } else {
      total = w == 0 ? std::move(bundle) : merge({std::move(total), std::move(bundle)});
    }
  }
  if (sum) put(total);
}

std::vector<std::byte> KeptSnapshot::take(bool& last) {
  const std::lock_guard lock(mutex_);
  last = ended_;
  if (ended_ && thread_.valid()) thread_.get();
  return std::exchange(ready_, {});
}

}  // namespace bitloom::mpi
