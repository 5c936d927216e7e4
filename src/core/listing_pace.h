// Listings of a folder into which many files are written one after the other: each takes longer the more there are.
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>

#include "core/clock.h"

namespace bitloom {

// Lets large folders be listed in a tenth of the time at most, where the same one is written to again and again. For all
// threads.
class ListingPace {
 public:
  // Whether the folder may be listed now.
  bool is_due(const std::filesystem::path& folder, Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    return folder != last_ || now >= again_;
  }
  // It has been listed.
  void add(const std::filesystem::path& folder, Clock::time_point start, Clock::time_point end) {
    constexpr auto is_large = std::chrono::milliseconds(5);
    if (end - start < is_large) return;
    const std::lock_guard lock(mutex_);
    last_ = folder;
    again_ = end + 9 * (end - start);
  }

 private:
  std::mutex mutex_;
  std::filesystem::path last_;
  Clock::time_point again_;
};

}  // namespace bitloom
