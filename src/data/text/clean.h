// Which documents are worth training on: long enough, and no near copies of others (Shoeybi et al. 2019, section 4.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/progress.h"
#include "data/text/document_batches.h"
#include "data/text/documents.h"
#include "data/text/ngram_overlap.h"
#include "data/text/tokenizer.h"

namespace bitloom::data {

struct CleanOptions {
  // Documents with fewer are dropped: tokens of `tokenizer`, or words between white space if it is null.
  std::size_t min_tokens = 128;
  const Tokenizer* tokenizer = nullptr;
  // Documents whose shingles are more similar than this to those of one that was kept before are dropped; 1: none.
  double jaccard = 0.7;
  // Files of test sets: how much of them stands in what is kept.
  std::vector<std::string> tests;
  double false_positive_rate = 1e-3;  // rate of the Bloom filter that this is looked up in
};

struct DroppedDocument {
  std::string id;
  std::string reason;      // "short" or "duplicate"
  std::size_t tokens = 0;  // number of tokens, for short ones
  std::string twin;        // for duplicates: the document that was kept
  double jaccard = 0;      // for duplicates: their similarity
};

struct TestOverlap {
  std::string file;
  NgramOverlap::Count count;
};

struct CleanResult {
  std::vector<OwnedDocument> kept;       // in order
  std::vector<DroppedDocument> dropped;  // in order
  std::vector<TestOverlap> tests;
};

// Reads and judges all documents, in order; the result depends on nothing else. `input` also says how test files are divided,
// and `progress` may be null. Throws the errors of for_each_document(), choose_bands() and BloomFilter.
CleanResult clean_text(const TextInput& input, const CleanOptions& options, ProgressSink* progress = nullptr);

}  // namespace bitloom::data
