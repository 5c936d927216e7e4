// A set that says of anything whether it may be in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/hash.h"

namespace bitloom::data {

// Bloom 1970. Of n elements expected and a rate p of false positives: m = -n ln p / (ln 2)^2 bits and (m / n) ln 2 hashes each,
// which are a + i b of two hashes (Kirsch and Mitzenmacher 2006).
class BloomFilter {
 public:
  // Throws Error(usage) unless 0 < rate < 1.
  BloomFilter(std::uint64_t elements, double rate);

  void add(const Hash128& element);
  // Never false for what was added; true for anything else at about the rate, once the expected number was added.
  bool contains(const Hash128& element) const;

  std::uint64_t bits() const { return bits_; }
  std::size_t hashes() const { return hashes_; }

 private:
  std::uint64_t place(const Hash128& element, std::size_t i) const;

  std::uint64_t bits_;
  std::size_t hashes_;
  std::vector<std::uint64_t> words_;
};

}  // namespace bitloom::data
