// Byte-pair encoding: which neighbours merge, and merging them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/random.h"

namespace bitloom::data {

// Random draws for merging a segment of text: made once for the text, so that equal words of it get different tokens.
struct DropoutDraws {
  double rate = 0;
  Random random;
};

class MergeTable {
 public:
  // `left` and `right` become `result`; of several possible merges the one with the lowest rank comes first, then the leftmost.
  // The first of two entries for one pair stays.
  void add(std::int32_t left, std::int32_t right, std::int32_t result, double rank);
  std::size_t size() const { return merges_.size(); }

  // Reusable memory of merge().
  struct Scratch {
    struct Symbol {
      std::int32_t token, previous, next;  // previous, next: indices, -1 at the ends
    };
    struct Candidate {
      double rank;
      std::int32_t left, right;              // indices of symbols
      std::int32_t left_token, right_token;  // the tokens then: if they have changed, this is stale
      std::int32_t result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Merges `tokens` in place, in O(n log n). With draws, each merge is left out with their rate when its turn comes, and comes
  // back only where a neighbour changed: what sentencepiece does in place of the lists of Provilkov et al. 2020, section 3, and
  // what does not depend on how long the segment is. Throws Error(usage) for more than 2^31 - 1 tokens.
  void merge(std::vector<std::int32_t>& tokens, Scratch& scratch, DropoutDraws* draws = nullptr) const;

 private:
  struct Merge {
    std::int32_t result;
    double rank;
  };
  void consider(std::int32_t left, std::int32_t right, Scratch& scratch) const;

  std::unordered_map<std::uint64_t, Merge> merges_;  // by left << 32 | right
};

}  // namespace bitloom::data
