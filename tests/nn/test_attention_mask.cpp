#include "nn/attention_mask.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

namespace bitloom::nn {
namespace {

using test::has;
using test::message_of;

using Sees = std::function<bool(std::size_t, std::size_t)>;

// How many pairs a mask, and its map of blocks, says otherwise than the definition. Sizes are counted too.
std::size_t differences(const AttentionMask& mask, const Sees& sees) {
  std::size_t wrong = 0;
  std::uint64_t size = 0;
  for (std::size_t q = 0; q < mask.queries(); ++q) {
    for (std::size_t k = 0; k < mask.keys(); ++k) {
      wrong += mask.sees(q, k) != sees(q, k) ? 1 : 0;
      size += sees(q, k) ? 1 : 0;
    }
    wrong += mask.sees(q, mask.keys()) ? 1 : 0;
  }
  wrong += mask.sees(mask.queries(), 0) ? 1 : 0;
  return wrong + (mask.size() != size ? 1 : 0);
}

// Checks what kernels rely on, beyond sees().
void check_blocks(const AttentionMask& mask) {
  REQUIRE(mask.query_blocks() == (mask.queries() + 63) / 64);
  for (std::size_t i = 0; i < mask.query_blocks(); ++i) {
    for (std::size_t e = mask.first_entry()[i]; e < mask.first_entry()[i + 1]; ++e) {
      const AttentionMask::Entry& entry = mask.entries()[e];
      if (e > mask.first_entry()[i]) CHECK(mask.entries()[e - 1].keys < entry.keys);
      REQUIRE(entry.keys < (mask.keys() + 63) / 64);
      if (entry.is_full) continue;
      bool any = false;
      for (std::size_t row = 0; row < 64; ++row) {
        const std::uint64_t bits = mask.bits_of(entry.rows)[row];
        any = any || bits != 0;
        if (i * 64 + row >= mask.queries()) CHECK(bits == 0);
        const std::size_t columns = mask.keys() - entry.keys * 64;
        if (columns < 64) CHECK(bits >> columns == 0);
      }
      CHECK(any);
    }
  }
}

// Whether kernels find the same in both.
bool has_same_blocks(const AttentionMask& a, const AttentionMask& b) {
  const auto is_same = [&](const AttentionMask::Entry& one, const AttentionMask::Entry& other) {
    if (one.keys != other.keys || one.is_full != other.is_full) return false;
    return one.is_full || std::equal(a.bits_of(one.rows), a.bits_of(one.rows) + AttentionMask::block, b.bits_of(other.rows));
  };
  return a.queries() == b.queries() && a.keys() == b.keys() && a.first_entry() == b.first_entry() &&
         std::ranges::equal(a.entries(), b.entries(), is_same);
}

// Pairs of an image query and an image key.
std::uint64_t image_pairs(const AttentionMask& mask, std::size_t text) {
  std::uint64_t pairs = 0;
  for (std::size_t q = text; q < mask.queries(); ++q) {
    for (std::size_t k = text; k < mask.keys(); ++k) pairs += mask.sees(q, k) ? 1 : 0;
  }
  return pairs;
}

}  // namespace

TEST_CASE("masks see what their definitions say", "[nn][mask]") {
  struct Case {
    const char* name;
    AttentionMask mask;
    Sees sees;
  };
  // Zero-shot text-to-image generation, Figure 11 and section 2.2: text is causal, the image sees all text.
  const auto over_image = [](std::size_t text, const Sees& seen) {
    return [=](std::size_t q, std::size_t k) {
      if (k > q) return false;
      if (q < text || k < text) return true;
      return seen(q - text, k - text);
    };
  };
  const auto row = [&](std::size_t text, std::size_t grid) {
    return over_image(text, [=](std::size_t q, std::size_t k) { return q - k <= grid; });
  };
  const auto column = [&](std::size_t text, std::size_t grid) {
    return over_image(text, [=](std::size_t q, std::size_t k) { return (q - k) % grid == 0; });
  };
  const auto window = [&](std::size_t text, std::size_t grid, std::size_t extent) {
    return over_image(text, [=](std::size_t q, std::size_t k) {
      const std::size_t reach = extent / 2;
      for (std::size_t up = 0; up <= reach; ++up) {  // is k at (-up, x) from q, for a place x of the window?
        const std::size_t centre = k + up * grid;
        if (q <= centre + reach && centre <= q + reach) return true;
      }
      return false;
    });
  };
  const Sees odd = [](std::size_t q, std::size_t k) { return (q * 31 + k * 17) % 5 == 0 || k == q; };
  const Case cases[] = {
      {"full", AttentionMask::full(65, 130), [](std::size_t, std::size_t) { return true; }},
      {"causal", AttentionMask::causal(130, 130), [](std::size_t q, std::size_t k) { return k <= q; }},
      {"causal, later", AttentionMask::causal(3, 200, 130), [](std::size_t q, std::size_t k) { return k <= q + 130; }},
      {"one pair", AttentionMask::causal(1, 1), [](std::size_t, std::size_t) { return true; }},
      {"row", AttentionMask::row(33, 9), row(33, 9)},
      {"row without text", AttentionMask::row(0, 9), row(0, 9)},
      {"column", AttentionMask::column(64, 8), column(64, 8)},
      {"convolutional", AttentionMask::convolutional(7, 12, 5), window(7, 12, 5)},
      {"convolutional, all of the grid", AttentionMask::convolutional(7, 5, 5), window(7, 5, 5)},
      {"convolutional, one pixel", AttentionMask::convolutional(7, 5, 1), window(7, 5, 1)},
      {"odd", AttentionMask(127, 129, odd), odd},
  };
  for (const Case& each : cases) {
    INFO(each.name);
    CHECK(differences(each.mask, each.sees) == 0);
    check_blocks(each.mask);
  }
  CHECK(AttentionMask().queries() == 0);
  CHECK(AttentionMask().size() == 0);
  CHECK(AttentionMask::full(0, 5).size() == 0);
}

// It is made by blocks; of long contexts, every pair was asked about.
TEST_CASE("a causal mask has the blocks that its definition gives pair by pair", "[nn][mask]") {
  for (const std::size_t queries : {1U, 63U, 64U, 65U, 200U}) {
    for (const std::size_t first : {0U, 1U, 63U, 64U, 65U, 130U}) {
      for (const std::size_t more : {0U, 1U, 63U, 64U, 100U}) {
        const std::size_t keys = first + queries + more;
        INFO(queries << " queries from " << first << " on, " << keys << " keys");
        const Sees sees = [&](std::size_t q, std::size_t k) { return k <= first + q; };
        const AttentionMask mask = AttentionMask::causal(queries, keys, first);
        CHECK(has_same_blocks(mask, AttentionMask(queries, keys, sees)));
        CHECK(differences(mask, sees) == 0);
        check_blocks(mask);
      }
    }
  }
  CHECK(has_same_blocks(AttentionMask::causal(0, 65), AttentionMask(0, 65, [](std::size_t, std::size_t) { return true; })));
  constexpr std::size_t many = std::size_t{1} << 16U;
  CHECK(AttentionMask::causal(many, many).size() == many * (many + 1) / 2);
}

TEST_CASE("DALL-E's masks have as many image pairs as the paper's definitions", "[nn][mask]") {
  constexpr std::size_t text = 256;
  constexpr std::size_t grid = 32;
  const AttentionMask row = AttentionMask::row(text, grid);
  const AttentionMask column = AttentionMask::column(text, grid);
  const AttentionMask convolutional = AttentionMask::convolutional(text, grid, 11);
  // Row: itself and up to 32 before: 1024 tokens, of which the first 32 have fewer: 33 * 1024 - (1 + ... + 32).
  CHECK(image_pairs(row, text) == 33'264);
  CHECK(image_pairs(row, text) == 33 * 1024 - 32 * 33 / 2);
  // Column: in each of 32 columns, 1 + ... + 32.
  CHECK(image_pairs(column, text) == 16'896);
  CHECK(image_pairs(column, text) == 32 * 32 * 33 / 2);
  // Convolutional, 11 x 11: the 61 tokens at distances 32 up + left, up to 5 each and 0 the first, that there are.
  CHECK(image_pairs(convolutional, text) == 57'169);
  std::uint64_t expected = 0;
  for (int up = 0; up <= 5; ++up) {
    for (int left = up == 0 ? 0 : -5; left <= 5; ++left) expected += static_cast<std::uint64_t>(1024 - (32 * up + left));
  }
  CHECK(image_pairs(convolutional, text) == expected);
  // All text is seen by every image token, and text by text before it.
  for (const AttentionMask* mask : {&row, &column, &convolutional}) {
    CHECK(mask->size() == image_pairs(*mask, text) + 1024 * text + text * (text + 1) / 2);
  }
}

TEST_CASE("a query that sees no key is refused", "[nn][mask]") {
  const auto not_70 = [](std::size_t q, std::size_t k) { return q != 70 && k <= q; };
  CHECK(has(message_of(ErrorKind::usage, [&] { AttentionMask(100, 100, not_70); }), "query 70 of 100 sees none of 100 keys"));
  CHECK(has(message_of(ErrorKind::usage, [] { AttentionMask::full(3, 0); }), "query 0 of 3 sees none of 0 keys"));
  CHECK(has(message_of(ErrorKind::usage, [] { AttentionMask::causal(5, 7, 3); }), "7 keys for 5 queries from 3 on"));
  CHECK(has(message_of(ErrorKind::usage, [] { AttentionMask::convolutional(5, 7, 4); }), "extent 4"));
  CHECK(has(message_of(ErrorKind::usage, [] { AttentionMask::convolutional(5, 7, 9); }), "extent 9"));
}

TEST_CASE("copies of a mask have its id, and no other mask has", "[nn][mask]") {
  const AttentionMask mask = AttentionMask::causal(5, 5);
  const AttentionMask copy = mask;
  CHECK(copy.id() == mask.id());
  CHECK(AttentionMask::causal(5, 5).id() != mask.id());
  CHECK(AttentionMask().id() != mask.id());
}

TEST_CASE("rows of a mask see what they see in it", "[nn][mask]") {
  const AttentionMask scattered(150, 70,
                                [](std::size_t q, std::size_t k) { return (q * 31 + k * 17) % 5 == 0 || k == q % 70; });
  for (const AttentionMask& mask : {AttentionMask::causal(150, 150), AttentionMask::full(150, 65), AttentionMask::row(20, 11),
                                    AttentionMask::column(20, 11), AttentionMask::convolutional(20, 11, 5), scattered}) {
    for (const std::size_t first : {0U, 1U, 63U, 64U, 75U}) {
      for (const std::size_t count : {0U, 1U, 2U, 64U, 65U}) {
        INFO(count << " from " << first << " on of a mask of " << mask.queries() << " x " << mask.keys());
        const AttentionMask rows = AttentionMask::rows(mask, first, count);
        REQUIRE(rows.queries() == count);
        REQUIRE(rows.keys() == mask.keys());
        CHECK(differences(rows, [&](std::size_t q, std::size_t k) { return mask.sees(first + q, k); }) == 0);
        check_blocks(rows);
        CHECK(rows.id() != mask.id());
      }
    }
    CHECK(AttentionMask::rows(mask, 0, mask.queries()).entries().size() == mask.entries().size());
    CHECK(has(message_of(ErrorKind::usage, [&] { AttentionMask::rows(mask, mask.queries() - 1, 2); }), "2 from"));
  }
}

}  // namespace bitloom::nn
