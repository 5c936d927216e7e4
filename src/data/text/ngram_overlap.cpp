#include "data/text/ngram_overlap.h"

#include <array>
#include <cstddef>

namespace bitloom::data {
namespace {

constexpr std::size_t ngram_words = 8;

// The byte as it stands in a word, or 0 if it stands between words.
char in_word(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80;
  return kept ? c : '\0';
}

}  // namespace

void for_each_ngram(std::string_view text, const std::function<void(const Hash128& ngram)>& take) {
  std::string word;
  // The hashes of the last words, in a circle.
  std::array<Hash128, ngram_words> words;
  std::size_t count = 0;
  const auto finish = [&] {
    if (word.empty()) return;
    words[count++ % ngram_words] = hash_bytes(std::as_bytes(std::span(word.data(), word.size())));
    word.clear();
    if (count < ngram_words) return;
    std::array<Hash128, ngram_words> in_order;
    for (std::size_t i = 0; i < ngram_words; ++i) in_order[i] = words[(count + i) % ngram_words];
    take(hash_bytes(std::as_bytes(std::span(in_order))));
  };
  for (const char c : text) {
    if (const char kept = in_word(c); kept != '\0') {
      word.push_back(kept);
    } else {
      finish();
    }
  }
  finish();
}

void NgramOverlap::add_training(std::string_view text) {
  for_each_ngram(text, [&](const Hash128& ngram) { filter_.add(ngram); });
}

void NgramOverlap::count(std::string_view text, Count& count) const {
  for_each_ngram(text, [&](const Hash128& ngram) {
    ++count.ngrams;
    count.found += filter_.contains(ngram) ? 1U : 0U;
  });
}

}  // namespace bitloom::data
