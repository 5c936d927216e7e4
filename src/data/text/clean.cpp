#include "data/text/clean.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/text/near_duplicates.h"
#include "data/text/words.h"

namespace bitloom::data {
namespace {

std::size_t count_tokens(std::string_view text, const Tokenizer* tokenizer) {
  return tokenizer == nullptr ? count_words(text) : encode(*tokenizer, text).size();
}

// Facts that threads find out about a document by itself.
struct Facts {
  std::size_t tokens = 0;
  std::vector<std::uint64_t> shingles;
  std::vector<std::uint32_t> signature;
};

class Cleaner {
 public:
  Cleaner(const CleanOptions& options, CleanResult& result)
      : options_(options), result_(result), index_(choose_bands(options.jaccard)) {}

  void take(const std::vector<OwnedDocument>& batch) {
    std::vector<Facts> facts(batch.size());
    for_each_parallel(batch.size(), [&](std::size_t i) {
      facts[i].tokens = count_tokens(batch[i].text, options_.tokenizer);
      if (facts[i].tokens < options_.min_tokens || !compares()) return;
      facts[i].shingles = shingles(batch[i].text);
      facts[i].signature = min_hash(facts[i].shingles, index_.signature_size());
    });
    for (std::size_t i = 0; i < batch.size(); ++i) judge(batch[i], facts[i]);
  }

 private:
  bool compares() const { return options_.jaccard < 1; }

  void judge(const OwnedDocument& document, const Facts& facts) {
    if (facts.tokens < options_.min_tokens) {
      result_.dropped.push_back({document.id, "short", facts.tokens, "", 0});
      return;
    }
    if (compares()) {
      for (const std::size_t kept : index_.candidates(facts.signature)) {
        const double similarity = compare(facts.shingles, kept);
        if (similarity <= options_.jaccard) continue;
        result_.dropped.push_back({document.id, "duplicate", facts.tokens, result_.kept[kept].id, similarity});
        return;
      }
      index_.add(result_.kept.size(), facts.signature);
      set_sizes_.push_back(facts.shingles.size());
    }
    result_.kept.push_back(document);
  }

  // The Jaccard similarity, or 0 where the sizes of the sets alone keep it from being above the limit.
  double compare(const std::vector<std::uint64_t>& set, std::size_t kept) const {
    const std::size_t less = std::min(set.size(), set_sizes_[kept]);
    const std::size_t more = std::max(set.size(), set_sizes_[kept]);
    if (static_cast<double>(less) <= options_.jaccard * static_cast<double>(more)) return 0;
    return jaccard(set, shingles(result_.kept[kept].text));
  }

  const CleanOptions& options_;
  CleanResult& result_;
  NearDuplicateIndex index_;
  std::vector<std::size_t> set_sizes_;  // number of shingles of each kept document
};

void count_overlaps(const TextInput& input, const CleanOptions& options, CleanResult& result, ProgressSink* progress) {
  std::uint64_t ngrams = 0;
  for (const OwnedDocument& document : result.kept) for_each_ngram(document.text, [&](const Hash128&) { ++ngrams; });
  NgramOverlap overlap(ngrams, options.false_positive_rate);
  for (std::size_t i = 0; i < result.kept.size(); ++i) {
    overlap.add_training(result.kept[i].text);
    constexpr std::size_t often = 1000;
    if (progress != nullptr && i % often == 0) {
      progress->update(fmt::format("8-grams for the test sets: {} of {} documents", i, result.kept.size()));
    }
  }
  for (const std::string& file : options.tests) {
    TextInput test = input;
    test.files = {file};
    NgramOverlap::Count count;
    for_each_document(test, [&](const Document& document) { overlap.count(document.text, count); });
    result.tests.push_back({file, count});
  }
}

}  // namespace

CleanResult clean_text(const TextInput& input, const CleanOptions& options, ProgressSink* progress) {
  CleanResult result;
  Cleaner cleaner(options, result);
  for_each_batch(input, [&](const std::vector<OwnedDocument>& batch) {
    cleaner.take(batch);
    if (progress == nullptr) return;
    progress->update(fmt::format("cleaning: {} documents, {} kept, {} dropped", batch.back().number + 1, result.kept.size(),
                                 result.dropped.size()));
  });
  if (!options.tests.empty()) count_overlaps(input, options, result, progress);
  return result;
}

}  // namespace bitloom::data
