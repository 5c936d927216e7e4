#include "data/text/prepare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "data/text/document_batches.h"
#include "data/text/words.h"

namespace bitloom::data {
namespace {

// Where validation is cut off.
struct Plan {
  std::vector<bool> for_validation;  // by document, unless the end of the text is
  std::uint64_t cut = 0;             // in bytes of all documents; 0 where documents are chosen
  std::uint64_t bytes = 0;
};

// Whether a share of the documents is less than one of them; 30 times 1 / 30 need not be 1.
bool is_less_than_one(double share, std::size_t documents) { return share * static_cast<double>(documents) < 1 - 1e-9; }

Plan make_plan(const TextInput& input, double share, std::uint64_t seed) {
  Plan plan;
  std::size_t documents = 0;
  for_each_document(input, [&](const Document& document) {
    ++documents;
    plan.bytes += document.text.size();
  });
  if (documents == 0) fail(ErrorKind::data, "there is no text in '{}'", fmt::join(input.files, "', '"));
  plan.for_validation.assign(documents, false);
  if (share > 0 && is_less_than_one(share, documents)) {
    plan.cut = static_cast<std::uint64_t>(static_cast<double>(plan.bytes) * (1 - share));
  } else {
    std::vector<std::size_t> order(documents);
    std::iota(order.begin(), order.end(), std::size_t{0});
    shuffle(order.data(), order.size(), Random(seed, Stream::text_split));
    const auto count = static_cast<std::size_t>(std::llround(share * static_cast<double>(documents)));
    if (count >= documents) {
      fail_field(ErrorKind::usage, "validation", "{:g} of {} documents leaves none to train on; expected less", share,
                 documents);
    }
    for (std::size_t i = 0; i < count; ++i) plan.for_validation[order[i]] = true;
  }
  return plan;
}

// The first place at or behind `place` where a line begins; without another line, where a character does.
std::size_t line_begin(std::string_view text, std::size_t place) {
  if (place == 0) return 0;
  const std::size_t end = text.find('\n', place - 1);
  if (end != std::string_view::npos && end + 1 < text.size()) return end + 1;
  while (place < text.size() && (static_cast<unsigned char>(text[place]) & 0xC0U) == 0x80U) ++place;
  return place;
}

// A document or a part of one, on its way.
struct Piece {
  std::string text;
  bool validation = false;
  bool ends = false;  // a document
  std::vector<std::int32_t> tokens;
};

class Preparing {
 public:
  Preparing(const Tokenizer& tokenizer, const Plan& plan, TokenSink& train, TokenSink& validation, ProgressSink* progress)
      : tokenizer_(tokenizer), plan_(plan), train_{train}, validation_{validation}, progress_(progress) {}

  void take(std::string_view text) {
    if (document_ == plan_.for_validation.size()) fail_changed();
    std::size_t train = plan_.for_validation[document_++] ? 0 : text.size();
    if (plan_.cut != 0 && plan_.cut < taken_ + text.size()) {
      train = plan_.cut <= taken_ ? 0 : line_begin(text, plan_.cut - taken_);
    }
    divide(text.substr(0, train), false);
    divide(text.substr(train), true);
  }

  // Throws Error(data) unless the text was what the plan had been made of.
  void check_all() const {
    if (document_ != plan_.for_validation.size() || taken_ != plan_.bytes) fail_changed();
  }

  void finish() {
    for_each_parallel(pieces_.size(), [&](std::size_t i) { tokenizer_.encode(pieces_[i].text, pieces_[i].tokens); });
    for (const Piece& piece : pieces_) give(piece, piece.validation ? validation_ : train_);
    pieces_.clear();
    waiting_ = 0;
    if (progress_ == nullptr) return;
    progress_->update(
        fmt::format("tokenizing: {} of {}, {} tokens", format_bytes(taken_), format_bytes(plan_.bytes), format_count(tokens_)));
  }

 private:
  [[noreturn]] void fail_changed() const {
    fail(ErrorKind::data,
         "the text has changed while it was read: {} documents of {} in all at first; expected files that stay",
         plan_.for_validation.size(), format_bytes(plan_.bytes));
  }

  struct Split {
    TokenSink& sink;
    std::uint64_t words = 0, bytes = 0;  // counts of the document under way
  };

  // Into pieces that are tokenized by themselves.
  void divide(std::string_view text, bool validation) {
    constexpr std::size_t piece_bytes = std::size_t{1} << 20U;
    constexpr std::size_t waiting_bytes = std::size_t{8} << 20U;
    while (!text.empty()) {
      std::size_t end = std::min(piece_bytes, text.size());
      while (end < text.size()) {
        end = std::min(text.find('\n', end - 1), text.size() - 1) + 1;
        if (end == text.size() || tokenizer_.divides_at(text, end)) break;
        ++end;
      }
      pieces_.push_back({std::string(text.substr(0, end)), validation, end == text.size(), {}});
      text.remove_prefix(end);
      taken_ += end;
      waiting_ += end;
      if (waiting_ >= waiting_bytes) finish();
    }
  }

  void give(const Piece& piece, Split& split) {
    split.sink.add(piece.tokens);
    tokens_ += piece.tokens.size();
    split.words += count_words(piece.text);
    split.bytes += piece.text.size();
    if (!piece.ends) return;
    split.sink.end_document(tokenizer_.end_of_text(), split.words, split.bytes);
    ++tokens_;
    split.words = split.bytes = 0;
  }

  const Tokenizer& tokenizer_;
  const Plan& plan_;
  Split train_, validation_;
  ProgressSink* progress_;
  std::vector<Piece> pieces_;
  std::size_t document_ = 0;
  std::uint64_t taken_ = 0, waiting_ = 0;  // bytes of text
  std::uint64_t tokens_ = 0;
};

}  // namespace

bool is_drawn(const TextInput& input, double validation_share) {
  std::size_t documents = 0;
  for_each_document(input, [&](const Document&) { ++documents; });
  return !is_less_than_one(validation_share, documents);
}

void prepare_text(const TextInput& input, const Tokenizer& tokenizer, double validation_share, std::uint64_t seed,
                  TokenSink& train, TokenSink& validation, ProgressSink* progress) {
  if (!(validation_share >= 0 && validation_share < 1)) {
    fail(ErrorKind::usage, "a share of {} for validation; expected 0 or more and less than 1", validation_share);
  }
  const Plan plan = make_plan(input, validation_share, seed);
  Preparing preparing(tokenizer, plan, train, validation, progress);
  for_each_document(input, [&](const Document& document) { preparing.take(document.text); });
  preparing.check_all();
  preparing.finish();
}

TokenSplits prepare_text(const TextInput& input, const Tokenizer& tokenizer, double validation_share, std::uint64_t seed,
                         ProgressSink* progress) {
  TokenSplits splits;
  for (TokenFile::Content* content : {&splits.train, &splits.validation}) {
    content->vocabulary = tokenizer.size();
    content->tokenizer_hash = tokenizer_hash(tokenizer);
  }
  ContentSink train(&splits.train);
  ContentSink validation(&splits.validation);
  prepare_text(input, tokenizer, validation_share, seed, train, validation, progress);
  return splits;
}

}  // namespace bitloom::data
