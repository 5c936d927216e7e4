#include "data/text/bloom_filter.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace bitloom::data {

BloomFilter::BloomFilter(std::uint64_t elements, double rate) {
  if (!(rate > 0 && rate < 1))
    fail(ErrorKind::usage, "a false positive rate of {}; expected more than 0 and less than 1", rate);
  constexpr double ln2 = std::numbers::ln2;
  const double per_element = -std::log(rate) / (ln2 * ln2);
  constexpr std::uint64_t word = 64;
  const auto wanted =
      static_cast<std::uint64_t>(std::ceil(per_element * static_cast<double>(std::max<std::uint64_t>(elements, 1))));
  bits_ = (wanted + word - 1) / word * word;
  hashes_ = static_cast<std::size_t>(std::max<long>(1, std::lround(per_element * ln2)));
  words_.resize(bits_ / word);
}

std::uint64_t BloomFilter::place(const Hash128& element, std::size_t i) const {
  // Odd steps: a step of 0 would be one place for all.
  return (element.low + i * (element.high | 1U)) % bits_;
}

void BloomFilter::add(const Hash128& element) {
  for (std::size_t i = 0; i < hashes_; ++i) {
    const std::uint64_t bit = place(element, i);
    words_[bit / 64] |= std::uint64_t{1} << (bit % 64);
  }
}

bool BloomFilter::contains(const Hash128& element) const {
  for (std::size_t i = 0; i < hashes_; ++i) {
    const std::uint64_t bit = place(element, i);
    if ((words_[bit / 64] >> (bit % 64) & 1U) == 0) return false;
  }
  return true;
}

}  // namespace bitloom::data
