// Batches of micro-batches that another thread makes ready while the step before them is computed.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <utility>

#include "core/error.h"

namespace bitloom::data {

struct BatchPlace {
  std::uint64_t step = 0, micro_batch = 0;
  bool operator==(const BatchPlace&) const = default;
};

template <typename Batch>
class LookAhead {
 public:
  // micro_batches: number in a step. ranks: after micro-batch m this process wants m + ranks, as far as a step has them. make()
  // is called by one thread at a time, not always the same.
  LookAhead(std::uint64_t micro_batches, int ranks, std::function<Batch(const BatchPlace&)> make)
      : micro_batches_(micro_batches), ranks_(static_cast<std::uint64_t>(ranks)), make_(std::move(make)) {}
  LookAhead(const LookAhead&) = delete;
  LookAhead& operator=(const LookAhead&) = delete;
  ~LookAhead() {
    if (ahead_.valid()) ahead_.wait();
  }

  // make(place); what is wanted next is made meanwhile. Throws what make() throws for this place, nothing of another that was
  // made ahead in vain, and Error(usage) for a micro-batch that a step does not have.
  Batch get(const BatchPlace& place) {
    if (place.micro_batch >= micro_batches_) {
      fail(ErrorKind::usage, "micro-batch {}: expected less than the {} of a step", place.micro_batch, micro_batches_);
    }
    if (ahead_.valid()) ahead_.wait();  // also what is not wanted: make() is for one thread at a time
    Batch batch = ahead_.valid() && ahead_place_ == place ? ahead_.get() : make_(place);
    ahead_place_ = next(place);
    ahead_ = std::async(std::launch::async, [this, wanted = ahead_place_] { return make_(wanted); });
    return batch;
  }

 private:
  BatchPlace next(const BatchPlace& place) const {
    const std::uint64_t following = place.micro_batch + ranks_;
    if (following < micro_batches_) return {place.step, following};
    return {place.step + 1, place.micro_batch % ranks_};
  }

  std::uint64_t micro_batches_, ranks_;
  std::function<Batch(const BatchPlace&)> make_;
  BatchPlace ahead_place_;
  std::future<Batch> ahead_;
};

}  // namespace bitloom::data
