#include "nn/dropout.h"

#include <cmath>
#include <vector>

#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

namespace bitloom::nn {

TEST_CASE("Philox 4x32-10 gives its authors' known answers", "[nn][dropout]") {
  // kat_vectors of Random123 1.14 (Salmon et al.), the lines "philox4x32 10".
  struct KnownAnswer {
    Philox4x32 counter;
    std::uint32_t key[2];
    std::uint32_t words[4];
  };
  constexpr KnownAnswer answers[] = {
      {{{0, 0, 0, 0}}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const KnownAnswer& answer : answers) {
    const Philox4x32 out = philox(answer.counter, answer.key[0] | std::uint64_t{answer.key[1]} << 32U);
    for (int i = 0; i < 4; ++i) CHECK(out.word[i] == answer.words[i]);
  }
  static_assert(philox({{0, 0, 0, 0}}, 0).word[0] == 0x6627e8d5);
}

TEST_CASE("which elements are dropped is what ops.h says", "[nn][dropout]") {
  // The second known answer but for site and group: counters and draws are laid out low word first.
  const Philox4x32 words = philox_words(0x85a308d3243f6a88U, 0x0370734413198a2eU);
  CHECK(words.word[0] == 0x243f6a88);
  CHECK(words.word[1] == 0x85a308d3);
  CHECK(words.word[2] == 0x13198a2e);
  CHECK(words.word[3] == 0x03707344);
  const std::uint64_t seed = 0x299f31d0a4093822U;
  const Philox4x32 draws = dropout_draws(seed, 0x0370734413198a2eU, 0x85a308d3243f6a88U);
  constexpr std::uint32_t expected[8] = {0xfe09, 0xd16c, 0xcceb, 0x94fd, 0xe420, 0x5001, 0x6ea1, 0x2412};
  for (unsigned i = 0; i < 8; ++i) CHECK(dropout_draw(draws, i) == expected[i]);

  // Element 8 group + i: dropped exactly if its draw is below the threshold.
  for (unsigned i = 0; i < 8; ++i) {
    const std::uint64_t element = 8 * std::uint64_t{0x05a308d3243f6a88U} + i;
    const std::uint32_t draw = dropout_draw(dropout_draws(seed, 3, 0x05a308d3243f6a88U), i);
    CHECK_FALSE(is_dropped(seed, 3, draw, element));
    CHECK(is_dropped(seed, 3, draw + 1, element));
  }
}

TEST_CASE("dropout rates are rounded to multiples of 2^-16, and factors fit the rounded rate", "[nn][dropout]") {
  CHECK(dropout_threshold(0) == 0);
  CHECK(dropout_threshold(0.5) == 32768);
  CHECK(dropout_threshold(0.1) == 6554);
  CHECK(dropout_threshold(0.49 / 65536) == 0);
  CHECK(dropout_threshold(0.5 / 65536) == 1);
  CHECK(dropout_threshold(1) == 65536);
  CHECK(dropout_factor(0) == 1);
  CHECK(dropout_factor(32768) == 2);
  CHECK(dropout_factor(6554) == 65536.0 / 58982);
  CHECK(dropout_factor(65535) == 65536);
}

TEST_CASE("every backend drops the same elements, at the rate within three deviations", "[nn][dropout]") {
  constexpr std::size_t n = 200003;
  for (const std::string& backend : test::tested_backends()) {
    INFO(backend);
    Engine engine(test::device_of(backend), backend);
    const std::vector<float> ones(n, 1.0F);
    const Tensor x = engine.from<float>(ones, {n}, Use::data);
    Tensor y = engine.empty({n}, DType::f32, Use::activations);
    const auto kept = [&](const Dropout& options) {
      nn::dropout(engine, options, x, y);
      return engine.to_host<float>(y);
    };
    for (const double rate : {0.01, 0.1, 0.5, 0.9}) {
      INFO(rate);
      const std::uint32_t threshold = dropout_threshold(rate);
      const double chance = threshold / 65536.0;
      const std::vector<float> values = kept({.rate = rate, .seed = 7, .site = 1});
      std::size_t dropped = 0;
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const bool is_zero = values[i] == 0;
        dropped += is_zero ? 1 : 0;
        if (is_zero != is_dropped(7, 1, threshold, i)) ++wrong;
        if (!is_zero && values[i] != static_cast<float>(dropout_factor(threshold))) ++wrong;
      }
      CHECK(wrong == 0);
      CHECK(std::fabs(static_cast<double>(dropped) - chance * n) < 3 * std::sqrt(chance * (1 - chance) * n));
    }
    // The mask is a function of seed, site and number: the same again, and for a shorter tensor; others are independent.
    const Dropout options = {.rate = 0.5, .seed = 7, .site = 1};
    const std::vector<float> first = kept(options);
    CHECK(kept(options) == first);
    Tensor part = engine.empty({1001}, DType::f32, Use::activations);
    nn::dropout(engine, options, x.slice(0, 1001), part);
    CHECK(engine.to_host<float>(part) == std::vector<float>(first.begin(), first.begin() + 1001));
    // And for a later part, whose elements are numbered from elsewhere.
    nn::dropout(engine, {.rate = 0.5, .seed = 7, .site = 1, .first = 99992}, x.slice(99992, 100993), part);
    CHECK(engine.to_host<float>(part) == std::vector<float>(first.begin() + 99992, first.begin() + 100993));
    CHECK(test::has(
        test::message_of(ErrorKind::usage, [&] { nn::dropout(engine, {.rate = 0.5, .seed = 7, .site = 1, .first = 4}, x, y); }),
        "first: 4; expected a multiple of 8"));
    for (const Dropout& other : {Dropout{0.5, 8, 1}, Dropout{0.5, 7, 2}, Dropout{0.5, 7, std::uint64_t{1} << 32U},
                                 Dropout{0.5, 7 + (std::uint64_t{1} << 32U), 1}}) {
      const std::vector<float> second = kept(other);
      std::size_t same = 0;
      for (std::size_t i = 0; i < n; ++i) same += first[i] == second[i] ? 1 : 0;
      CHECK(std::fabs(static_cast<double>(same) - 0.5 * n) < 4 * std::sqrt(0.25 * n));
    }
    // With a rate of 0 nothing happens.
    CHECK(kept({.rate = 0, .seed = 7, .site = 1}) == ones);
  }
}

TEST_CASE("attention of some of the heads drops what attention of all heads drops", "[nn][backends][dropout]") {
  constexpr std::size_t sequences = 2, tokens = 9, heads = 5, size = 4, width = heads * size;
  const AttentionMask mask = AttentionMask::causal(tokens, tokens);
  for (const std::string& backend : test::tested_backends()) {
    INFO(backend);
    Engine engine(test::device_of(backend), backend);
    std::vector<float> numbers(sequences * tokens * width);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
    const Tensor x = engine.from<float>(numbers, {sequences, tokens, width}, Use::data);
    Tensor lse = engine.empty({sequences, heads, tokens}, DType::f32, Use::activations);
    const Tensor whole = engine.zeros(x.shape(), DType::f32, Use::activations);
    const Dropout dropout{0.4, 7, 3};
    attention(engine, {heads, size, 0.5}, mask, dropout, {x}, {x}, {x}, {whole}, lse);
    const Tensor parts = engine.zeros(x.shape(), DType::f32, Use::activations);
    for (const auto& [first, count] : {std::pair(std::size_t{0}, std::size_t{2}), {2, 3}}) {
      Tensor some = engine.empty({sequences, count, tokens}, DType::f32, Use::activations);
      const Heads from{x, first * size};
      attention(engine, {count, size, 0.5, first, heads}, mask, dropout, from, from, from, {parts, first * size}, some);
    }
    CHECK(engine.to_host<float>(parts) == engine.to_host<float>(whole));
  }
}

TEST_CASE("attention of some of the sequences drops what attention of all drops", "[nn][backends][dropout]") {
  constexpr std::size_t sequences = 3, tokens = 9, heads = 5, size = 4, width = heads * size;
  const AttentionMask mask = AttentionMask::causal(tokens, tokens);
  for (const std::string& backend : test::tested_backends()) {
    INFO(backend);
    Engine engine(test::device_of(backend), backend);
    std::vector<float> numbers(sequences * tokens * width);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
    const Tensor x = engine.from<float>(numbers, {sequences, tokens, width}, Use::data);
    Tensor lse = engine.empty({sequences, heads, tokens}, DType::f32, Use::activations);
    const Tensor whole = engine.zeros(x.shape(), DType::f32, Use::activations);
    attention(engine, {heads, size, 0.5}, mask, {0.4, 7, 3}, {x}, {x}, {x}, {whole}, lse);
    const Tensor last = x.slice(1, sequences);
    Tensor last_lse = engine.empty({sequences - 1, heads, tokens}, DType::f32, Use::activations);
    const Tensor part = engine.zeros(last.shape(), DType::f32, Use::activations);
    attention(engine, {heads, size, 0.5}, mask, {0.4, 7, 3, heads * tokens * tokens}, {last}, {last}, {last}, {part}, last_lse);
    const std::vector<float> all = engine.to_host<float>(whole);
    CHECK(engine.to_host<float>(part) == std::vector<float>(all.begin() + tokens * width, all.end()));
  }
}

}  // namespace bitloom::nn
