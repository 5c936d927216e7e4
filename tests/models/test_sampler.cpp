// Tokens that a GPT draws: with a cache the same as without, by the probabilities of its logits.
#include "models/gpt/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::SharpGpt;
using bitloom::test::small_gpt;

TEST_CASE("tokens drawn with a cache are those drawn without", "[gpt]") {
  for (const DType values : {DType::f32, DType::bf16}) {
    SharpGpt gpt(small_gpt(), values);
    nn::Engine& engine = gpt.engine;
    Gpt& net = gpt.net;
    SampleOptions options;
    options.tokens = 90;  // more than two contexts
    options.count = 3;
    options.seed = 5;
    const std::vector<std::int32_t> prompt = {3, 1, 4, 1, 5};
    const auto cached = sample({engine, net}, prompt, options);
    options.cache = false;
    const auto plain = sample({engine, net}, prompt, options);
    REQUIRE(cached.size() == 3);
    CHECK(cached[0].size() == 90);
    CHECK(cached[0] != cached[1]);
    if (values == DType::f32) CHECK(cached == plain);
    // In bf16 a tie may fall differently: compare what comes before the first that does.
    const auto begins_alike = [&](const std::vector<std::int32_t>& drawn) {
      return drawn.size() == cached[0].size() && std::equal(drawn.begin(), drawn.begin() + 10, cached[0].begin());
    };
    if (values == DType::bf16) CHECK(begins_alike(plain[0]));
    // In groups, of which the last is smaller.
    options.cache = true;
    options.at_once = 2;
    if (values == DType::f32) CHECK(sample({engine, net}, prompt, options) == cached);
    // One sample alone is the first of many. Products of one row may be summed by another kernel than those of three, as by
    // oneDNN's for AVX2, so in bf16 ties fall differently here, too.
    options.count = 1;
    const std::vector<std::int32_t> alone = sample({engine, net}, prompt, options)[0];
    CHECK(begins_alike(alone));
    if (values == DType::f32) CHECK(alone == cached[0]);
    // It ends behind the token that ends it.
    options.end = alone[20];
    const auto place = std::find(alone.begin(), alone.end(), options.end);
    const auto ended = sample({engine, net}, prompt, options);
    CHECK(ended[0] == std::vector<std::int32_t>(alone.begin(), place));
  }
}

// It was refused.
TEST_CASE("of a prompt that is longer than the context a GPT sees the end", "[gpt]") {
  SharpGpt gpt;  // a context of 37
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 60; ++i) prompt.push_back(i * i % 7);
  SampleOptions options;
  options.tokens = 40;
  const auto cached = sample({gpt.engine, gpt.net}, prompt, options);
  options.cache = false;
  CHECK(sample({gpt.engine, gpt.net}, prompt, options) == cached);
  // Half of the context, as where it is full of what was drawn; until it is full again.
  const auto end = sample({gpt.engine, gpt.net}, std::span(prompt).last(19), options);
  CHECK(std::equal(end[0].begin(), end[0].begin() + 19, cached[0].begin()));
  // A context of one token.
  GptConfig config = small_gpt();
  config.context = 1;
  SharpGpt one(config);
  CHECK(sample({one.engine, one.net}, std::vector<std::int32_t>{3}, options)[0].size() == 40);
}

TEST_CASE("draws have the probabilities of the logits, the likeliest alone where that is asked for", "[gpt]") {
  const std::vector<float> logits = {0.5F, 2.0F, -1.0F, 2.0F, 0.0F};
  const auto shares = [&](const SampleOptions& options) {
    std::vector<double> counts(logits.size());
    constexpr int draws = 10000;
    for (int i = 0; i < draws; ++i) {
      counts[static_cast<std::size_t>(draw(logits, options, (i + 0.5) / draws))] += 1.0 / draws;
    }
    return counts;
  };
  const auto softmax = [&](const std::vector<std::size_t>& kept, double temperature) {
    std::vector<double> p(logits.size());
    double sum = 0;
    for (const std::size_t i : kept) sum += p[i] = std::exp(static_cast<double>(logits[i]) / temperature);
    for (double& each : p) each /= sum;
    return p;
  };
  SampleOptions options;
  CHECK(compare(shares(options), softmax({0, 1, 2, 3, 4}, 1), 2e-3) == "");
  options.temperature = 0.5;
  CHECK(compare(shares(options), softmax({0, 1, 2, 3, 4}, 0.5), 2e-3) == "");
  options.top_k = 3;
  CHECK(compare(shares(options), softmax({0, 1, 3}, 0.5), 2e-3) == "");
  options = {};
  options.top_p = 0.85;  // the two at 2.0 have 0.83
  CHECK(compare(shares(options), softmax({0, 1, 3}, 1), 2e-3) == "");
  options.top_k = 1;
  CHECK(compare(shares(options), softmax({1}, 1), 2e-3) == "");
  options = {};
  options.temperature = 0;
  CHECK(draw(logits, options, 0.99) == 1);
}

namespace {

// The token whose share of the sorted tokens' probabilities `uniform` falls on, with all of them sorted.
std::int32_t drawn_from_sorted(std::span<const float> logits, const SampleOptions& options, double uniform) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (options.top_k != 0) order.resize(std::min(options.top_k, order.size()));
  std::vector<double> sums;
  double sum = 0;
  for (const std::size_t token : order) {
    sum += std::exp((static_cast<double>(logits[token]) - static_cast<double>(logits[order[0]])) / options.temperature);
    sums.push_back(sum);
  }
  const auto enough = std::ranges::lower_bound(sums, options.top_p * sum);
  if (options.top_p < 1 && enough != sums.end()) sums.erase(enough + 1, sums.end());
  const auto drawn = std::ranges::upper_bound(sums, uniform * sums.back());
  return static_cast<std::int32_t>(
      order[std::min<std::size_t>(static_cast<std::size_t>(drawn - sums.begin()), sums.size() - 1)]);
}

}  // namespace

TEST_CASE("a token drawn from the likeliest few is the one that sorting all tokens gives", "[gpt]") {
  Random random(3, Stream::test);
  for (const std::size_t vocabulary : {1U, 63U, 64U, 65U, 513U, 5000U}) {
    for (const double spread : {0.0, 0.3, 4.0}) {  // 0: all are equal, and the draw goes deep
      std::vector<float> logits(vocabulary);
      for (float& logit : logits) logit = static_cast<float>(std::round(spread * random.normal() * 64) / 64);  // with ties
      for (const std::size_t top_k : {0U, 1U, 40U, 100U, 9999U}) {
        for (const double top_p : {1.0, 0.9, 0.2}) {
          SampleOptions options;
          options.temperature = 0.7;
          options.top_k = top_k;
          options.top_p = top_p;
          INFO(vocabulary << " tokens, spread " << spread << ", the first " << top_k << ", " << top_p);
          for (int i = 0; i < 8; ++i) {
            const double uniform = random.uniform();
            CHECK(draw(logits, options, uniform) == drawn_from_sorted(logits, options, uniform));
          }
        }
      }
    }
  }
}

TEST_CASE("logits that are no numbers are refused, infinities are not", "[gpt]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits = {0.5F, -infinity, 2.0F, -1.0F};
  const auto message = [&] { return message_of(ErrorKind::data, [&] { check_logits(logits); }); };
  CHECK(message() == "no error");
  CHECK(message_of(ErrorKind::data, [] { check_logits({}); }) == "no error");
  logits[3] = infinity;
  CHECK(message() == "no error");
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(has(message(), "no number for token 3:"));
  logits[0] = logits[3];
  CHECK(has(message(), "no number for token 0:"));
  logits.assign(4, -infinity);
  CHECK(has(message(), "-infinity for all 4 tokens:"));
}

// With a logit of +infinity the weights of all were no numbers, and the least likely token was drawn.
TEST_CASE("a logit of +infinity is drawn, one of -infinity never", "[gpt]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr int draws = 100;
  const auto counts = [&](const std::vector<float>& logits, const SampleOptions& options) {
    std::vector<int> drawn(logits.size());
    for (int i = 0; i <= draws; ++i) {
      const double uniform = i == draws ? std::nextafter(1.0, 0.0) : (i + 0.5) / draws;
      ++drawn[static_cast<std::size_t>(draw(logits, options, uniform))];
    }
    return drawn;
  };
  for (const double temperature : {0.01, 1.0, 50.0}) {
    for (const std::size_t top_k : {0U, 3U}) {
      for (const double top_p : {1.0, 0.9}) {
        INFO("temperature " << temperature << ", the first " << top_k << ", " << top_p);
        SampleOptions options;
        options.temperature = temperature;
        options.top_k = top_k;
        options.top_p = top_p;
        CHECK(counts({0.5F, -infinity, infinity, -1.0F}, options) == std::vector<int>{0, 0, draws + 1, 0});
        CHECK(counts({infinity, 3e38F, infinity, -infinity}, options) == std::vector<int>{draws / 2, 0, draws / 2 + 1, 0});
        CHECK(counts({-infinity, -infinity, -2.0F, -infinity}, options) == std::vector<int>{0, 0, draws + 1, 0});
      }
    }
  }
  SampleOptions likeliest;
  likeliest.temperature = 0;
  CHECK(draw(std::vector<float>{0.5F, infinity, infinity, -1.0F}, likeliest, 0.5) == 1);
  // The last draw goes as far as rounding errors of the sums let it.
  std::vector<float> logits(1000, -infinity);
  for (std::size_t i = 0; i < logits.size(); i += 7) logits[i] = static_cast<float>(i % 91) / 10;
  const std::vector<int> drawn = counts(logits, {});
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (i % 7 != 0) CHECK(drawn[i] == 0);
  }
}

// It drew tokens at random, or none but the first.
TEST_CASE("a GPT whose parameters are damaged draws nothing", "[gpt]") {
  SharpGpt gpt;
  SampleOptions options;
  options.tokens = 3;
  const std::vector<std::int32_t> prompt = {3, 1, 4, 1, 5};
  const auto message = [&] { return message_of(ErrorKind::data, [&] { sample({gpt.engine, gpt.net}, prompt, options); }); };
  CHECK(message() == "no error");
  nn::Parameter& table = gpt.net.table();
  std::vector<float> values = gpt.engine.to_host<float>(table.value);
  values[7 * gpt.net.config().width + 2] = std::numeric_limits<float>::quiet_NaN();
  gpt.set(table.name, values);
  for (const bool cache : {true, false}) {
    for (const double temperature : {0.0, 1.0}) {
      INFO(cache << " " << temperature);
      options.cache = cache;
      options.temperature = temperature;
      CHECK(has(message(), "no number for token 7:"));
    }
  }
}
