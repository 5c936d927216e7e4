// Merge dropout of training text: other tokens of the same text in every epoch.
#include <omp.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "data/text/chunk_order.h"
#include "data/text/prepare.h"
#include "tests/data/text/texts.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::size_t context = 16;
constexpr std::uint64_t seed = 3;

TokenFile tokens_of(const std::string& text, const Tokenizer& tokenizer, const std::string& documents = "file") {
  const TempDir folder;
  write_file(folder / "text.txt", text);
  return TokenFile(prepare_text({{(folder / "text.txt").string()}, documents, ""}, tokenizer, 0, 0).train);
}

std::vector<Tokens> epoch_of(const ChunkOrder& order, std::uint64_t epoch) {
  std::vector<Tokens> chunks;
  for (std::uint64_t i = 0; i < order.chunks(); ++i) {
    Tokens inputs(context), targets(context);
    order.read(epoch * order.chunks() + i, inputs, targets);
    CHECK(std::equal(inputs.begin() + 1, inputs.end(), targets.begin()));
    chunks.push_back(inputs);
  }
  return chunks;
}

}  // namespace

TEST_CASE("with merge dropout every epoch has other tokens of the same text", "[token_dropout]") {
  const TempDir gpt2;
  write_gpt2(gpt2.path(), {"t h", "th e", "i n", "a n", "an d", "k in"});
  for (const std::string kind : {"sentencepiece", "gpt2"}) {
    CAPTURE(kind);
    const auto tokenizer = kind == "gpt2" ? load_tokenizer(gpt2.path().string()) : small_sentencepiece();
    const std::string text = some_text(120, 5);
    const TokenFile file = tokens_of(text, *tokenizer);
    const ChunkOrder order(file, context, seed, 5, {0.1, tokenizer.get()});
    CHECK(order.chunks() > file.size() / context);  // more tokens, more chunks
    const std::string circle = text + text;
    std::set<std::string> texts;
    std::set<Tokens> seen;
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::size_t bytes = 0;
      for (const Tokens& chunk : epoch_of(order, epoch)) {
        const std::string part = tokenizer->decode(chunk);
        CHECK(has(circle, part));
        bytes += part.size();
        seen.insert(chunk);
      }
      // Nearly all of it, and little twice.
      CHECK(static_cast<double>(bytes) > 0.95 * static_cast<double>(text.size()));
      CHECK(static_cast<double>(bytes) < 1.05 * static_cast<double>(text.size()));
    }
    CHECK(seen.size() > 0.9 * 3 * static_cast<double>(order.chunks()));  // a few of so short ones are the same by chance
    // The draws follow from seed and epoch, not from what was read before.
    const auto third = epoch_of(order, 2);
    CHECK(epoch_of(ChunkOrder(file, context, seed, 5, {0.1, tokenizer.get()}), 2) == third);
    CHECK(epoch_of(ChunkOrder(file, context, seed + 1, 5, {0.1, tokenizer.get()}), 2) != third);
    CHECK(epoch_of(order, 0) != epoch_of(order, 1));
    // Without dropout: the file's own.
    const ChunkOrder none(file, context, seed, 5, {0, tokenizer.get()});
    CHECK(epoch_of(none, 1) == epoch_of(ChunkOrder(file, context, seed), 1));
    // All merges left out: a token is a character.
    const ChunkOrder all(file, context, seed, 5, {1, tokenizer.get()});
    CHECK(all.chunks() == (text.size() + 1) / context);
  }
}

TEST_CASE("merge dropout of many documents does not depend on the number of threads", "[token_dropout]") {
  const auto tokenizer = small_sentencepiece();
  std::string text;
  for (unsigned i = 0; i < 60; ++i) text += some_text(2, i % 20) + "\n";  // each document three times
  const TokenFile file = tokens_of(text, *tokenizer, "blank-lines");
  REQUIRE(file.documents() == 60);
  const TokenDropout dropout{0.2, tokenizer.get()};
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = epoch_of(ChunkOrder(file, context, seed, 3, dropout), 1);
  omp_set_num_threads(4);
  const auto four = epoch_of(ChunkOrder(file, context, seed, 3, dropout), 1);
  omp_set_num_threads(threads);
  CHECK(one == four);
}

TEST_CASE("merge dropout that cannot work is refused", "[token_dropout]") {
  const auto tokenizer = small_sentencepiece();
  const auto other = small_sentencepiece(330);
  const auto bytes = load_tokenizer("bytes");
  const TokenFile file = tokens_of(some_text(20), *tokenizer);
  const auto refusal = [](const TokenFile& tokens, const TokenDropout& dropout) {
    return message_of(ErrorKind::usage, [&] { ChunkOrder(tokens, context, seed, 5, dropout); });
  };
  CHECK(has(refusal(file, {0.1, other.get()}), "with another tokenizer"));
  CHECK(has(refusal(file, {1.5, tokenizer.get()}), "1.5 is no probability"));
  CHECK(has(refusal(file, {std::nan(""), tokenizer.get()}), "nan is no probability"));
  CHECK(has(refusal(tokens_of(some_text(20), *bytes), {0.1, bytes.get()}), "which merges nothing"));
  CHECK(has(message_of(ErrorKind::internal,
                       [&] {
                         ChunkOrder(file, context, seed, 5, {0.1, nullptr});
                       }),
            "without a tokenizer"));
  // Tokens that did not come from the tokenizer as it is: its text has others.
  TokenFile::Content spelt;
  for (int i = 0; i < 30; ++i) {
    for (const std::string part : {"the", "king", "love"}) {
      for (const char c : part) spelt.tokens.push_back(encode(*tokenizer, std::string(1, c)).front());
    }
  }
  spelt.tokens.push_back(tokenizer->end_of_text());
  spelt.document_ends = {spelt.tokens.size()};
  spelt.vocabulary = tokenizer->size();
  spelt.tokenizer_hash = tokenizer_hash(*tokenizer);
  CHECK(has(refusal(TokenFile(spelt), {0.1, tokenizer.get()}), "document 0 has other tokens when it is tokenised again"));
}
