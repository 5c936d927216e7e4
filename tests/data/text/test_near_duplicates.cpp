// Shingles, MinHash and locality-sensitive hashing.
#include "data/text/near_duplicates.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

// Two sets of about `size` elements each with this Jaccard similarity: of `size` in both or either, a share is common.
std::pair<std::vector<std::uint64_t>, std::vector<std::uint64_t>> sets_with(double similarity, std::size_t size,
                                                                            std::uint64_t seed) {
  Random random(seed, Stream::test);
  std::vector<std::uint64_t> a, b;
  const auto both = static_cast<std::size_t>(std::llround(similarity * static_cast<double>(size)));
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t element = random.next();
    if (i < both || i % 2 == 0) a.push_back(element);
    if (i < both || i % 2 == 1) b.push_back(element);
  }
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return {a, b};
}

}  // namespace

TEST_CASE("shingles are five characters, whatever the case and the white space", "[duplicates]") {
  CHECK(shingles("").empty());
  CHECK(shingles(" \n ").empty());
  CHECK(shingles("abcd").size() == 1);
  CHECK(shingles("abcde").size() == 1);
  CHECK(shingles("abcdef").size() == 2);
  CHECK(shingles("aaaaaaaaaa").size() == 1);
  CHECK(shingles("The  king\n\tspeaks ") == shingles("the king speaks"));
  CHECK(shingles("theking") != shingles("the king"));
  // Characters, not bytes.
  CHECK(shingles("\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC").size() == 1);
  const auto set = shingles("to be or not to be, that is the question");
  CHECK(std::is_sorted(set.begin(), set.end()));
  CHECK(jaccard(set, set) == 1);
  CHECK(jaccard(set, {}) == 0);
  CHECK(jaccard({}, {}) == 1);
  const std::vector<std::uint64_t> a{1, 2, 3, 4}, b{3, 4, 5};
  CHECK(jaccard(a, b) == 0.4);
}

TEST_CASE("signatures agree as often as the sets do", "[duplicates]") {
  constexpr std::size_t size = 512;
  for (const std::size_t elements : {100, 400, 5000}) {  // fewer than values, about as many, and more
    for (const double similarity : {0.0, 0.3, 0.5, 0.7, 0.9, 1.0}) {
      double agree = 0;
      double expected = 0;
      constexpr int pairs = 40;
      for (int i = 0; i < pairs; ++i) {
        const auto [a, b] = sets_with(similarity, elements, static_cast<std::uint64_t>(i));
        const auto x = min_hash(a, size);
        const auto y = min_hash(b, size);
        REQUIRE(x.size() == size);
        for (std::size_t k = 0; k < size; ++k) agree += x[k] == y[k] ? 1 : 0;
        expected += jaccard(a, b) * size;
      }
      CAPTURE(elements, similarity, agree, expected);
      // The standard deviation of a pair's estimate is at most 0.05 even where borrowed values repeat one another.
      CHECK(std::abs(agree - expected) / (size * pairs) < 0.03);
    }
  }
  CHECK(min_hash({}, 16) == std::vector<std::uint32_t>(16, 0));
}

TEST_CASE("bands find nearly all pairs at the threshold and few far below", "[duplicates]") {
  const Bands bands = choose_bands(0.7);
  CHECK(bands.rows == 7);
  CHECK(bands.bands == 73);
  CHECK(bands.recall(0.7) > 0.995);
  CHECK(bands.recall(0.3) < 0.02);
  for (const double threshold : {0.05, 0.3, 0.5, 0.8, 0.95, 1.0}) {
    CHECK(choose_bands(threshold).rows * choose_bands(threshold).bands <= 512);
    if (threshold >= 0.3) CHECK(choose_bands(threshold).recall(threshold) >= 0.995);
  }
  for (const double bad : {0.0, -1.0, 1.5, std::nan("")}) {
    CHECK(has(message_of(ErrorKind::usage, [&] { choose_bands(bad); }), "expected more than 0 and at most 1"));
  }

  constexpr std::size_t pairs = 300;
  for (const auto& [similarity, low, high] : {std::tuple{0.72, 0.98, 1.0}, std::tuple{0.2, 0.0, 0.03}}) {
    NearDuplicateIndex index(bands);
    std::vector<std::vector<std::uint32_t>> others;
    for (std::size_t i = 0; i < pairs; ++i) {
      const auto [a, b] = sets_with(similarity, 1500, 1000 + i);
      index.add(i, min_hash(a, index.signature_size()));
      others.push_back(min_hash(b, index.signature_size()));
    }
    double found = 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::vector<std::size_t> candidates = index.candidates(others[i]);
      CHECK(std::is_sorted(candidates.begin(), candidates.end()));
      const bool there = std::find(candidates.begin(), candidates.end(), i) != candidates.end();
      found += there ? 1 : 0;
      wrong += candidates.size() - (there ? 1 : 0);
    }
    CAPTURE(similarity, found, wrong);
    CHECK(found / pairs >= low);
    CHECK(found / pairs <= high);
    CHECK(wrong == 0);
  }
}
