// Positional counts: the weight gradient's row lists and the pooled counts.
#include <limits>
#include <string>
#include <vector>

#include "core/bits.h"
#include "core/random.h"
#include "tests/simd/tables_under_test.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

struct ListParameters {
  std::size_t lists, most_rows, runs, run_words, pitch;
  std::vector<std::int32_t> scale;
  bool all_rows = false;  // every list has most_rows rows, instead of up to that number
};

struct ListCase {
  Buffer<std::uint64_t> map;
  std::vector<std::uint32_t> offsets, begin;
  std::vector<std::int32_t> scale;
  simd::RowLists rows;

  ListCase(const ListCase&) = delete;
  ListCase& operator=(const ListCase&) = delete;

  ListCase(const ListParameters& p, std::uint64_t seed) : map(300 + p.runs * p.pitch + p.run_words), scale(p.scale) {
    Random random(seed, Stream::test);
    for (std::uint64_t& word : map) word = random.next();
    begin.push_back(0);
    for (std::size_t i = 0; i < p.lists * scale.size(); ++i) {
      const std::uint32_t size =
          p.all_rows ? static_cast<std::uint32_t>(p.most_rows) : random.below(static_cast<std::uint32_t>(p.most_rows + 1));
      for (std::uint32_t row = 0; row < size; ++row) offsets.push_back(random.below(300));
      begin.push_back(static_cast<std::uint32_t>(offsets.size()));
    }
    offsets.push_back(0);  // never empty
    rows.base = map.data();
    rows.offsets = offsets.data();
    rows.begin = begin.data();
    rows.lists = p.lists;
    rows.scales = scale.size();
    rows.scale = scale.data();
    rows.runs = p.runs;
    rows.run_words = p.run_words;
    rows.pitch = p.pitch;
  }
};

void compare(const ListParameters& p, std::uint64_t seed) {
  const ListCase c(p, seed);
  Guarded<std::int32_t> start(p.lists * p.runs * p.run_words * 64);
  Random random(seed, Stream::test, 1);
  for (std::size_t i = 0; i < start.size(); ++i) start[i] = static_cast<std::int32_t>(random.below(1 << 20)) - (1 << 19);
  Guarded<std::int32_t> expected = start;
  table("ref").accumulate_rows(c.rows, expected.data());
  REQUIRE(expected.guards_intact());
  for (const std::string& name : contenders()) {
    INFO(name << " rows<=" << p.most_rows << " runs=" << p.runs << " run_words=" << p.run_words);
    Guarded<std::int32_t> actual = start;
    table(name).accumulate_rows(c.rows, actual.data());
    REQUIRE(actual.guards_intact());
    REQUIRE(same(actual, expected));
  }
}

}  // namespace

TEST_CASE("row lists by hand", "[simd][rows]") {
  // Two rows of one word in list 0 (scale 1 and -2), none in list 1: column k gets bit_k(a) - 2 bit_k(b).
  const std::uint64_t map[2] = {0b0011, 0b0101};
  const std::uint32_t offsets[2] = {0, 1};
  const std::uint32_t begin[5] = {0, 1, 2, 2, 2};
  const std::int32_t scale[2] = {1, -2};
  const simd::RowLists rows{map, offsets, begin, 2, 2, scale, 1, 1, 0};
  for (const std::string& name : all_tables()) {
    INFO(name);
    std::vector<std::int32_t> sums(128, 10);
    table(name).accumulate_rows(rows, sums.data());
    REQUIRE(sums[0] == 9);
    REQUIRE(sums[1] == 11);
    REQUIRE(sums[2] == 8);
    REQUIRE(sums[3] == 10);
    REQUIRE(sums[63] == 10);
    REQUIRE(sums[64] == 10);
    REQUIRE(sums[127] == 10);
  }
}

TEST_CASE("every table's row sums equal ref's", "[simd][rows]") {
  const std::vector<std::int32_t> powers = {1, 2, 4, 8, -1, -2, -4, -8};
  std::uint64_t seed = 1;
  // List lengths around the blocks of the carry-save counters, up to several times what a byte counts.
  for (const std::size_t most_rows : {0, 1, 2, 3, 5, 8, 9, 15, 16, 17, 33, 64, 65}) {
    compare({5, most_rows, 3, 3, 7, powers}, seed++);
  }
  compare({2, 1500, 1, 5, 9, {1}}, seed++);
  compare({2, 700, 3, 4, 12, {1, -1}}, seed++);
  // Run lengths that straddle vectors of 2, 4 and 8 words.
  for (const std::size_t run_words : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 27, 36}) {
    compare({3, 40, 1, run_words, 0, powers}, seed++);
    compare({2, 20, 3, run_words, run_words + 2, {1, -1}}, seed++);
  }
}

TEST_CASE("lists may fill a counter to its last row", "[simd][rows]") {
  // A counter of 16 bits has room for 511 rows of scale 128 or 255 of scale 256, fewer when other scales came before.
  for (const std::size_t rows : {255, 256, 503, 504, 505, 510, 511, 512, 513, 520}) {
    compare({1, rows, 1, 3, 0, {128}, true}, rows);
    compare({1, rows, 1, 3, 0, {-256}, true}, rows);
    compare({1, rows, 1, 8, 0, {1, -1, 64, -128}, true}, rows);
  }
  for (const std::size_t rows : {65527, 65528, 65529, 65535, 65536}) compare({1, rows, 1, 1, 0, {1}, true}, rows);
}

TEST_CASE("row scales need not be powers of two", "[simd][rows]") {
  compare({3, 37, 3, 3, 9, {0, 3, -5, 127, -128, 1000003, -77777}}, 50);
  // Sums that wrap round, to the same number.
  compare({2, 50, 1, 6, 0, {std::numeric_limits<std::int32_t>::max() / 60, std::numeric_limits<std::int32_t>::min() / 60}}, 51);
}

TEST_CASE("every table's pooled counts equal ref's", "[simd][pool]") {
  Random random(1, Stream::test);
  for (const std::size_t words : {1, 2, 3, 4, 5, 8, 9, 16}) {
    for (const std::size_t grid : {1, 2, 3, 4, 7}) {
      const std::size_t height = 7 + grid;
      const std::size_t width = 13;
      const std::size_t pitch = (width + 2) * words;
      Buffer<std::uint64_t> map(height * pitch);
      for (std::uint64_t& word : map) word = random.next();
      Guarded<std::int16_t> expected(grid * grid * words * 64);
      table("ref").pool_counts(map.data(), height, width, words, pitch, grid, expected.data());
      REQUIRE(expected.guards_intact());
      for (const std::string& name : contenders()) {
        INFO(name << " words=" << words << " grid=" << grid);
        Guarded<std::int16_t> actual(expected.size());
        table(name).pool_counts(map.data(), height, width, words, pitch, grid, actual.data());
        REQUIRE(actual.guards_intact());
        REQUIRE(same(actual, expected));
      }
    }
  }
}

TEST_CASE("pooled counts of a full map are the cell's size", "[simd][pool]") {
  // 150 x 150 = 22500 set bits in one cell; H = 5 over a grid of 2: rows 0..1 and 2..4.
  const Buffer<std::uint64_t> map = [] {
    Buffer<std::uint64_t> ones(150 * 150);
    for (std::uint64_t& word : ones) word = ~std::uint64_t{0};
    return ones;
  }();
  for (const std::string& name : all_tables()) {
    INFO(name);
    std::vector<std::int16_t> counts(64, -1);
    table(name).pool_counts(map.data(), 150, 150, 1, 150, 1, counts.data());
    REQUIRE(counts[0] == 22500);
    REQUIRE(counts[63] == 22500);
    std::vector<std::int16_t> cells(4 * 64, -1);
    table(name).pool_counts(map.data(), 5, 4, 1, 4, 2, cells.data());
    REQUIRE(cells[0] == 4);
    REQUIRE(cells[64] == 4);
    REQUIRE(cells[2 * 64] == 6);
    REQUIRE(cells[3 * 64 + 63] == 6);
  }
}
