#include "data/text/prepare.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
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

Plan make_plan(const TextInput& input, double share, std::uint64_t seed) {
  Plan plan;
  std::size_t documents = 0;
  for_each_document(input, [&](const Document& document) {
    ++documents;
    plan.bytes += document.text.size();
  });
  if (documents == 0) fail(ErrorKind::data, "there is no text in '{}'", fmt::join(input.files, "', '"));
  plan.for_validation.assign(documents, false);
  const double chosen = share * static_cast<double>(documents);
  // 30 times 1 / 30 need not be 1.
  if (share > 0 && chosen < 1 - 1e-9) {
    plan.cut = static_cast<std::uint64_t>(static_cast<double>(plan.bytes) * (1 - share));
  } else {
    std::vector<std::size_t> order(documents);
    std::iota(order.begin(), order.end(), std::size_t{0});
    shuffle(order.data(), order.size(), Random(seed, Stream::text_split));
    const auto count = static_cast<std::size_t>(std::llround(chosen));
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

void append(TokenFile::Content& content, std::string_view text, std::vector<std::int32_t>& tokens, std::int32_t end_of_text) {
  tokens.push_back(end_of_text);
  content.tokens.insert(content.tokens.end(), tokens.begin(), tokens.end());
  content.document_ends.push_back(content.tokens.size());
  content.words += count_words(text);
  content.bytes += text.size();
}

// A document, or a part of one, on its way.
struct Piece {
  std::string_view text;
  bool validation = false;
  std::vector<std::int32_t> tokens;
};

}  // namespace

TokenSplits prepare_text(const TextInput& input, const Tokenizer& tokenizer, double validation_share, std::uint64_t seed,
                         ProgressSink* progress) {
  if (!(validation_share >= 0 && validation_share < 1)) {
    fail(ErrorKind::usage, "a share of {} for validation; expected 0 or more and less than 1", validation_share);
  }
  const Plan plan = make_plan(input, validation_share, seed);
  TokenSplits splits;
  for (TokenFile::Content* content : {&splits.train, &splits.validation}) {
    content->vocabulary = tokenizer.size();
    content->tokenizer_hash = tokenizer_hash(tokenizer);
  }
  std::uint64_t done = 0;
  for_each_batch(input, [&](const std::vector<OwnedDocument>& batch) {
    std::vector<Piece> pieces;
    for (const OwnedDocument& document : batch) {
      const std::string_view text = document.text;
      std::size_t train = plan.for_validation[document.number] ? 0 : text.size();
      if (plan.cut != 0 && plan.cut < done + text.size()) train = plan.cut <= done ? 0 : line_begin(text, plan.cut - done);
      if (train > 0) pieces.push_back({text.substr(0, train), false, {}});
      if (train < text.size()) pieces.push_back({text.substr(train), true, {}});
      done += text.size();
    }
    for_each_parallel(pieces.size(), [&](std::size_t i) { tokenizer.encode(pieces[i].text, pieces[i].tokens); });
    for (Piece& piece : pieces) {
      append(piece.validation ? splits.validation : splits.train, piece.text, piece.tokens, tokenizer.end_of_text());
    }
    if (progress != nullptr) {
      progress->update(fmt::format("tokenizing: {} of {}, {} tokens", format_bytes(done), format_bytes(plan.bytes),
                                   format_count(splits.train.tokens.size() + splits.validation.tokens.size())));
    }
  });
  return splits;
}

}  // namespace bitloom::data
