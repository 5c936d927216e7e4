#include "data/text/near_duplicates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/hash.h"
#include "core/random.h"
#include "data/text/words.h"

namespace bitloom::data {
namespace {

constexpr std::size_t shingle_characters = 5;

std::uint64_t hash_words(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text.data(), text.size()))).low; }

// Small letters, one space for white space.
std::string normalized(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    if (is_space(c)) {
      if (!result.empty() && result.back() != ' ') result.push_back(' ');
    } else {
      result.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
    }
  }
  if (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

}  // namespace

std::vector<std::uint64_t> shingles(std::string_view text) {
  const std::string plain = normalized(text);
  std::vector<std::size_t> begins;  // starts of characters
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if ((static_cast<unsigned char>(plain[i]) & 0xC0U) != 0x80U) begins.push_back(i);
  }
  begins.push_back(plain.size());
  const std::size_t characters = begins.size() - 1;
  std::vector<std::uint64_t> set;
  if (characters > 0 && characters < shingle_characters) set.push_back(hash_words(plain));
  for (std::size_t i = 0; i + shingle_characters <= characters; ++i) {
    set.push_back(hash_words(std::string_view(plain).substr(begins[i], begins[i + shingle_characters] - begins[i])));
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  return set;
}

double jaccard(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
  std::size_t both = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) {
      ++both;
      ++i;
      ++j;
    } else {
      (a[i] < b[j] ? i : j) += 1;
    }
  }
  const std::size_t either = a.size() + b.size() - both;
  return either == 0 ? 1 : static_cast<double>(both) / static_cast<double>(either);
}

double Bands::recall(double similarity) const {
  const double band = std::pow(similarity, static_cast<double>(rows));
  return 1 - std::pow(1 - band, static_cast<double>(bands));
}

Bands choose_bands(double threshold) {
  if (!(threshold > 0 && threshold <= 1)) {
    fail(ErrorKind::usage, "a Jaccard similarity of {}; expected more than 0 and at most 1", threshold);
  }
  constexpr std::size_t largest_signature = 512;
  constexpr double wanted = 0.995;
  // With one row every pair that shares a value is compared: the best there is for a very small threshold.
  Bands chosen{1, largest_signature};
  for (std::size_t rows = 2; rows <= 32; ++rows) {
    const Bands bands{rows, largest_signature / rows};
    if (bands.recall(threshold) >= wanted) chosen = bands;
  }
  return chosen;
}

std::vector<std::uint32_t> min_hash(std::span<const std::uint64_t> shingle_set, std::size_t size) {
  std::vector<std::uint32_t> least(size, 0);
  std::vector<bool> filled(size, false);
  for (const std::uint64_t shingle : shingle_set) {
    // The upper half chooses the part, the lower half is the value.
    const std::uint64_t hash = mix64(shingle);
    const std::size_t part = static_cast<std::size_t>((hash >> 32U) * size >> 32U);
    const auto value = static_cast<std::uint32_t>(hash);
    if (!filled[part] || value < least[part]) least[part] = value;
    filled[part] = true;
  }
  if (shingle_set.empty()) return least;
  std::vector<std::uint32_t> signature = least;
  for (std::size_t part = 0; part < size; ++part) {
    std::size_t from = part;
    // Which parts lend to which depends on nothing else, so that two sets with equal parts borrow alike.
    for (std::uint64_t attempt = 1; !filled[from]; ++attempt) {
      from = static_cast<std::size_t>((mix64(part << 32U | attempt) >> 32U) * size >> 32U);
    }
    signature[part] = least[from];
  }
  return signature;
}

std::uint64_t NearDuplicateIndex::key(std::span<const std::uint32_t> signature, std::size_t band) const {
  const auto values = std::as_bytes(signature.subspan(band * bands_.rows, bands_.rows));
  return mix64(hash_bytes(values).low + band);
}

std::vector<std::size_t> NearDuplicateIndex::candidates(std::span<const std::uint32_t> signature) const {
  std::vector<std::size_t> found;
  for (std::size_t band = 0; band < bands_.bands; ++band) {
    const auto [begin, end] = documents_.equal_range(key(signature, band));
    for (auto it = begin; it != end; ++it) found.push_back(it->second);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void NearDuplicateIndex::add(std::size_t document, std::span<const std::uint32_t> signature) {
  for (std::size_t band = 0; band < bands_.bands; ++band) documents_.emplace(key(signature, band), document);
}

}  // namespace bitloom::data
