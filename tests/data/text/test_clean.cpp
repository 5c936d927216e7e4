// Cleaning: planted copies and short documents go, others stay.
#include "data/text/clean.h"

#include <omp.h>

#include "core/error.h"
#include "core/random.h"
#include "data/text/near_duplicates.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

std::vector<std::string> random_words(std::uint64_t seed, std::size_t count) {
  Random random(seed, Stream::test);
  std::vector<std::string> words;
  for (std::size_t i = 0; i < count; ++i) {
    std::string word;
    for (std::uint32_t k = 0; k < 3 + random.below(6); ++k) word.push_back(static_cast<char>('a' + random.below(26)));
    words.push_back(word);
  }
  return words;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// The document with one in `every` words replaced.
std::string changed(std::vector<std::string> words, std::size_t every) {
  for (std::size_t i = 0; i < words.size(); i += every) words[i] = "changed" + std::to_string(i);
  return joined(words);
}

TextInput file_with(const TempDir& folder, const std::vector<std::string>& documents) {
  std::string text;
  for (const std::string& document : documents) text += document + "\n\n";
  write_file(folder / "text.txt", text);
  TextInput input;
  input.files = {(folder / "text.txt").string()};
  input.documents = "blank-lines";
  return input;
}

}  // namespace

TEST_CASE("near copies go, what is only half the same stays", "[clean]") {
  std::vector<std::string> documents;
  std::vector<std::size_t> copies;  // numbers of the documents that should go
  std::vector<std::string> twins;   // the line of the document that each is like
  const auto line = [&](std::size_t i) { return std::to_string(2 * i + 1); };
  std::size_t half = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::vector<std::string> words = random_words(i, 200);
    documents.push_back(joined(words));
    const std::size_t original = documents.size() - 1;
    const auto set = shingles(documents[original]);
    const auto plant = [&](const std::string& text) {
      const double similarity = jaccard(set, shingles(text));
      REQUIRE((similarity > 0.75 || similarity < 0.65));
      if (similarity > 0.75) {
        copies.push_back(documents.size());
        twins.push_back(line(original));
      } else {
        half += similarity > 0.4 ? 1U : 0U;
      }
      documents.push_back(text);
    };
    if (i % 3 == 0) plant(changed(words, 20));
    if (i % 3 == 1) plant(changed(words, 5));
    if (i % 6 == 2) plant(joined(words));
  }
  CHECK(copies.size() == 30);
  CHECK(half == 20);
  const TempDir folder;
  const TextInput input = file_with(folder, documents);
  CleanOptions options;
  const CleanResult result = clean_text(input, options);
  REQUIRE(result.dropped.size() == copies.size());
  CHECK(result.kept.size() + copies.size() == documents.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const DroppedDocument& dropped = result.dropped[i];
    CHECK(dropped.reason == "duplicate");
    CHECK(dropped.id == input.files[0] + ":" + line(copies[i]));
    CHECK(dropped.twin == input.files[0] + ":" + twins[i]);
    CHECK(dropped.jaccard > 0.75);
  }
  options.jaccard = 1;
  CHECK(clean_text(input, options).dropped.empty());

  // The same with other numbers of threads.
  options.jaccard = 0.7;
  const int threads = omp_get_max_threads();
  omp_set_num_threads(3);
  const CleanResult again = clean_text(input, options);
  omp_set_num_threads(threads);
  REQUIRE(again.kept.size() == result.kept.size());
  for (std::size_t i = 0; i < again.kept.size(); ++i) {
    CHECK(again.kept[i].id == result.kept[i].id);
    CHECK(again.kept[i].text == result.kept[i].text);
  }
  for (std::size_t i = 0; i < again.dropped.size(); ++i) CHECK(again.dropped[i].twin == result.dropped[i].twin);
}

TEST_CASE("documents of fewer than 128 tokens go", "[clean]") {
  const TempDir folder;
  const TextInput input = file_with(folder, {joined(random_words(1, 127)), joined(random_words(2, 128)), "a"});
  CleanOptions options;
  const CleanResult result = clean_text(input, options);
  REQUIRE(result.kept.size() == 1);
  CHECK(result.kept[0].id.ends_with(":3"));
  REQUIRE(result.dropped.size() == 2);
  CHECK(result.dropped[0].reason == "short");
  CHECK(result.dropped[0].tokens == 127);
  CHECK(result.dropped[1].tokens == 1);
  const auto bytes = load_tokenizer("bytes");
  options.tokenizer = bytes.get();
  CHECK(clean_text(input, options).kept.size() == 2);
  options.min_tokens = 0;
  CHECK(clean_text(input, options).kept.size() == 3);
}

TEST_CASE("the overlap with test sets is that of what is kept", "[clean]") {
  const TempDir folder;
  const std::vector<std::string> words = random_words(1, 400);
  const std::vector<std::string> part(words.begin() + 50, words.begin() + 157);  // 100 8-grams
  const std::vector<std::string> brief = random_words(2, 57);                    // too short to be kept
  write_file(folder / "test.txt", joined(part) + "\n\n" + joined(random_words(3, 307)) + "\n\n" + joined(brief) + "\n");
  write_file(folder / "none.txt", "no eight words\n");
  CleanOptions options;
  options.tests = {(folder / "test.txt").string(), (folder / "none.txt").string()};
  const CleanResult result = clean_text(file_with(folder, {joined(words), joined(brief)}), options);
  CHECK(result.kept.size() == 1);
  REQUIRE(result.tests.size() == 2);
  CHECK(result.tests[0].count.ngrams == 100 + 300 + 50);
  CHECK(result.tests[0].count.found >= 100);
  CHECK(result.tests[0].count.found <= 103);
  CHECK(result.tests[1].count.ngrams == 0);
}
