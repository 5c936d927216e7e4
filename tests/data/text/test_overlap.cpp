// The Bloom filter and the share of 8-grams that two texts have in common.
#include <cmath>
#include <string>

#include "core/error.h"
#include "data/text/bloom_filter.h"
#include "data/text/ngram_overlap.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

Hash128 hash_of(std::uint64_t number) { return Hasher().update(number).finish(); }

// Words that no other prefix has.
std::string words(const std::string& prefix, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += prefix + std::to_string(i) + " ";
  return text;
}

std::uint64_t count_ngrams(const std::string& text) {
  std::uint64_t count = 0;
  for_each_ngram(text, [&](const Hash128&) { ++count; });
  return count;
}

}  // namespace

TEST_CASE("a Bloom filter forgets nothing and is wrong as often as it says", "[bloom]") {
  for (const double rate : {1e-1, 1e-2, 1e-3}) {
    constexpr std::uint64_t elements = 100000;
    BloomFilter filter(elements, rate);
    for (std::uint64_t i = 0; i < elements; ++i) filter.add(hash_of(i));
    std::uint64_t missing = 0;
    for (std::uint64_t i = 0; i < elements; ++i) missing += filter.contains(hash_of(i)) ? 0U : 1U;
    CHECK(missing == 0);
    std::uint64_t wrong = 0;
    constexpr std::uint64_t tries = 400000;
    for (std::uint64_t i = 0; i < tries; ++i) wrong += filter.contains(hash_of(elements + i)) ? 1U : 0U;
    const double measured = static_cast<double>(wrong) / tries;
    CAPTURE(rate, measured, filter.bits(), filter.hashes());
    CHECK(measured > rate * 0.8);  // 400 of 400000 at 1e-3, standard deviation 20
    CHECK(measured < rate * 1.2);
  }
  CHECK(BloomFilter(1000, 1e-3).hashes() == 10);
  CHECK(BloomFilter(1000, 1e-3).bits() == 14400);  // 14.378 bits per element, in words of 64
  CHECK_FALSE(BloomFilter(0, 1e-3).contains(hash_of(1)));
  for (const double bad : {0.0, 1.0, -1.0, std::nan("")}) {
    CHECK(has(message_of(ErrorKind::usage, [&] { BloomFilter(10, bad); }), "false positive rate"));
  }
}

TEST_CASE("n-grams are of eight words, whatever stands between them", "[overlap]") {
  CHECK(count_ngrams("") == 0);
  CHECK(count_ngrams(words("w", 7)) == 0);
  CHECK(count_ngrams(words("w", 8)) == 1);
  CHECK(count_ngrams(words("w", 100)) == 93);
  const auto first = [](const std::string& text) {
    Hash128 found;
    for_each_ngram(text, [&](const Hash128& ngram) { found = ngram; });
    return found;
  };
  CHECK(first("The cat, the DOG -- and 12 other \xC3\xA9l\xC3\xA9phants!") ==
        first("the cat the dog\nand 12 other \xC3\xA9l\xC3\xA9phants"));
  CHECK(first("a b c d e f g h") != first("a b c d e f h g"));
  CHECK(first("a b c d e f g h") != first("ab c d e f g h i"));
}

TEST_CASE("a planted overlap is found", "[overlap]") {
  const std::string shared = words("shared", 307);  // 300 n-grams
  const std::string training = words("train", 5000) + shared + words("more", 5000);
  NgramOverlap overlap(count_ngrams(training), 1e-3);
  overlap.add_training(training);
  NgramOverlap::Count count;
  overlap.count(shared, count);
  overlap.count(words("test", 707), count);  // 700 more
  CHECK(count.ngrams == 1000);
  CHECK(count.found >= 300);
  CHECK(count.found <= 305);
  CHECK(count.percent() == Catch::Approx(30).margin(0.5));
  CHECK(NgramOverlap::Count{}.percent() == 0);
}
