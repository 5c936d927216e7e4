// A bounded map that forgets what was not asked for the longest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "core/random.h"

namespace bitloom::nn {

// Everything that decides how a primitive is built.
using CacheKey = std::array<std::uint64_t, 12>;

template <typename Value>
class LruCache {
 public:
  explicit LruCache(std::size_t most) : most_(most) {}

  // The value of a key; if it has none, that of make(). Valid until the next call.
  template <typename Make>
  Value& get(const CacheKey& key, Make&& make) {
    if (const auto found = places_.find(key); found != places_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front().second;
    }
    Value value = std::forward<Make>(make)();
    if (places_.size() >= most_) {
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(key, std::move(value));
    places_.emplace(key, entries_.begin());
    return entries_.front().second;
  }
  std::size_t size() const { return places_.size(); }

 private:
  struct Hash {
    std::size_t operator()(const CacheKey& key) const {
      std::uint64_t hash = 0;
      for (const std::uint64_t word : key) hash = mix64(hash ^ word);
      return hash;
    }
  };

  using Entries = std::list<std::pair<CacheKey, Value>>;  // the last used first
  Entries entries_;
  std::unordered_map<CacheKey, typename Entries::iterator, Hash> places_;
  std::size_t most_;
};

}  // namespace bitloom::nn
