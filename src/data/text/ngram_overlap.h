// How much of a test set stands in the training text: the share of its 8-grams that do (Shoeybi et al. 2019, section 4.1;
// Radford et al. 2019, section 4).
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "data/text/bloom_filter.h"

namespace bitloom::data {

// Calls take(hash) for every eight words in a row. Words are runs of ASCII letters, made small, digits and everything beyond
// ASCII; what lies between does not count, as in Radford et al.
void for_each_ngram(std::string_view text, const std::function<void(const Hash128& ngram)>& take);

class NgramOverlap {
 public:
  struct Count {
    std::uint64_t ngrams = 0;  // number in the test set, each as often as it stands there
    std::uint64_t found = 0;   // number of these in the training text

    double percent() const { return ngrams == 0 ? 0 : 100.0 * static_cast<double>(found) / static_cast<double>(ngrams); }
  };

  // For that many n-grams of training text.
  NgramOverlap(std::uint64_t ngrams, double false_positive_rate) : filter_(ngrams, false_positive_rate) {}

  void add_training(std::string_view text);
  // Adds those of a test document.
  void count(std::string_view text, Count& count) const;

 private:
  BloomFilter filter_;
};

}  // namespace bitloom::data
