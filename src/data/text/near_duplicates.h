// Documents that say nearly the same: MinHash signatures, locality-sensitive hashing, and a comparison that decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bitloom::data {

// The set of a text's shingles (Broder 1997, "On the resemblance and containment of documents"): hashes of every five
// characters in a row, where a run of white space is one space and ASCII letters are small. Ascending, each once. A text that
// is shorter is one shingle; an empty one has none.
std::vector<std::uint64_t> shingles(std::string_view text);

// |a and b| / |a or b| of two ascending sets; 1 of two empty ones.
double jaccard(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b);

// How many values of a signature form a band, and how many bands there are. A pair of Jaccard similarity s has equal values in
// a band with probability s^rows, hence in one of them with 1 - (1 - s^rows)^bands (Leskovec, Rajaraman and Ullman, "Mining of
// massive datasets", section 3.4).
struct Bands {
  std::size_t rows, bands;

  double recall(double similarity) const;
};
// The most rows, so the fewest pairs to compare, for a recall of 0.995 at `threshold`, with 512 values at most.
// 0 < threshold <= 1, else Error(usage).
Bands choose_bands(double threshold);

// `size` values, each the least hash of a part of the shingles: one permutation for all (Li, Owen and Zhang 2012, "One
// permutation hashing"), where values of parts without shingles come from others (Shrivastava 2017, "Optimal densification for
// fast and accurate minwise hashing"). Two signatures agree in a value with the probability of the sets' Jaccard similarity.
std::vector<std::uint32_t> min_hash(std::span<const std::uint64_t> shingle_set, std::size_t size);

// The documents seen so far, by the bands of their signatures.
class NearDuplicateIndex {
 public:
  explicit NearDuplicateIndex(const Bands& bands) : bands_(bands) {}

  std::size_t signature_size() const { return bands_.rows * bands_.bands; }
  // Documents that share a band with this signature, ascending, each once.
  std::vector<std::size_t> candidates(std::span<const std::uint32_t> signature) const;
  void add(std::size_t document, std::span<const std::uint32_t> signature);

 private:
  std::uint64_t key(std::span<const std::uint32_t> signature, std::size_t band) const;

  Bands bands_;
  std::unordered_multimap<std::uint64_t, std::size_t> documents_;  // by band and its values
};

}  // namespace bitloom::data
