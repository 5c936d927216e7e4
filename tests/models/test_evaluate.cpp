// Perplexity by overlapping windows and cloze accuracy, against brute force, sampling, and nets whose answers are known.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/gpt/evaluate.h"
#include "models/gpt/language_task.h"
#include "models/gpt/sampler.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using namespace bitloom::test;

namespace {

using Ids = std::vector<std::int32_t>;

TokenReader reader_of(const Ids& tokens) {
  return [&tokens](std::uint64_t begin, std::span<std::int32_t> out) {
    REQUIRE(begin + out.size() <= tokens.size());
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
  };
}

Perplexity measure(SharpGpt& gpt, const Ids& tokens, std::size_t advance, std::size_t windows = 8) {
  return evaluate_perplexity({gpt.engine, gpt.net}, tokens.size(), reader_of(tokens), {advance, windows});
}

// Logits of double precision behind the last of some tokens, in a pass for them alone.
std::vector<double> logits_behind(SharpGpt& gpt, Ids inputs) {
  const std::size_t last = inputs.size() - 1;
  inputs.resize(gpt.net.tokens());
  nn::Pass pass{gpt.engine};
  pass.training = false;
  const nn::Tensor ids = gpt.engine.from(std::span<const std::int32_t>(inputs), {1, inputs.size()}, nn::Use::data);
  const nn::Tensor hidden = gpt.net.forward(pass, ids).reshaped({inputs.size(), gpt.net.config().width});
  const std::vector<double> padded = gpt.engine.to_host<double>(gpt.net.logits(gpt.engine, hidden.slice(last, last + 1)));
  return {padded.begin(), padded.begin() + static_cast<std::ptrdiff_t>(gpt.net.config().vocabulary)};
}

double loss_of(const std::vector<double>& logits, std::int32_t target) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - logits[static_cast<std::size_t>(target)]);
  return std::log(sum);
}

// Token by token, each with a pass of its own: token i > w is predicted by the first window that reaches it, of those that
// begin at multiples of `advance`.
double brute_force(SharpGpt& gpt, const Ids& tokens, std::size_t advance) {
  const std::size_t w = gpt.net.tokens();
  double loss = 0;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    std::size_t begin = 0;
    while (begin + w < i) begin += advance;
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    loss += loss_of(logits_behind(gpt, Ids(first, tokens.begin() + static_cast<std::ptrdiff_t>(i))), tokens[i]);
  }
  return loss;
}

// All tokens as likely as exp(scores) say, whatever came before.
void forget_context(SharpGpt& gpt, const std::vector<double>& scores) {
  const GptConfig& config = gpt.net.config();
  gpt.set("norm.gain", std::vector<float>(config.width, 0));
  std::vector<float> bias(config.width, 0);
  bias[0] = 1;
  gpt.set("norm.bias", bias);
  std::vector<float> table(config.padded_vocabulary() * config.width, 50);  // padding would be likely, if it counted
  for (std::size_t v = 0; v < scores.size(); ++v) table[v * config.width] = static_cast<float>(scores[v]);
  gpt.set("embedding.tokens", table);
}

// After every token the same again: the residual stream is the token's row of the table alone.
void repeat_tokens(SharpGpt& gpt) {
  for (nn::Parameter* parameter : gpt.parameters) {
    const bool silent =
        has(parameter->name, "projection") || has(parameter->name, "second") || has(parameter->name, "positions");
    if (silent) nn::fill(gpt.engine, parameter->value, 0);
  }
  const GptConfig& config = gpt.net.config();
  std::vector<float> table(config.padded_vocabulary() * config.width, 0);
  for (std::size_t v = 0; v < config.width; ++v) table[v * config.width + v] = 3;
  gpt.set("embedding.tokens", table);
}

// A letter is a token, and so is "th", wherever it stands.
class Letters final : public data::Tokenizer {
 public:
  std::string_view kind() const override { return "letters"; }
  std::size_t size() const override { return 257; }
  std::int32_t end_of_text() const override { return 256; }
  void encode(std::string_view text, Ids& tokens, const data::MergeDropout&) const override {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool merged = joined.size() == 2 && text.substr(i, 2) == joined;
      tokens.push_back(merged ? 255 : static_cast<unsigned char>(text[i]));
      if (merged) ++i;
    }
  }
  bool divides_at(std::string_view, std::size_t) const override { return false; }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }
  std::string serialize() const override { return {}; }

  std::string joined = "th";
};

}  // namespace

TEST_CASE("overlapping windows give what a pass per token gives", "[evaluate]") {
  SharpGpt gpt(small_gpt(), DType::f64, "ref");
  const Ids tokens = random_tokens(150, 83, 1);
  for (const std::size_t advance : {1U, 5U, 32U, 37U}) {
    INFO("advance " << advance);
    const double expected = brute_force(gpt, tokens, advance);
    for (const std::size_t windows : {1U, 3U, 200U}) {
      const Perplexity found = measure(gpt, tokens, advance, windows);
      CHECK(found.loss == Approx(expected).epsilon(1e-12));
      CHECK(found.tokens == 149);
      CHECK(found.windows == 1 + (149 - 37 + advance - 1) / advance);
      CHECK(found.is_complete);
    }
  }
  // The context matters here, or any windows would do.
  CHECK(std::abs(brute_force(gpt, tokens, 1) - brute_force(gpt, tokens, 37)) > 0.01);
}

TEST_CASE("texts of every length about one window", "[evaluate]") {
  SharpGpt gpt(small_gpt(), DType::f64, "ref");
  const Ids all = random_tokens(50, 83, 2);
  for (const std::size_t size : {2U, 3U, 36U, 37U, 38U, 39U, 42U, 43U, 44U}) {
    const Ids tokens(all.begin(), all.begin() + size);
    INFO(size << " tokens");
    const Perplexity found = measure(gpt, tokens, 5);
    CHECK(found.tokens == size - 1);
    CHECK(found.loss == Approx(brute_force(gpt, tokens, 5)).epsilon(1e-12));
  }
}

TEST_CASE("perplexity by token, by word and in bits per byte, worked out by hand", "[evaluate]") {
  GptConfig config = small_gpt();
  config.vocabulary = 4;
  SharpGpt gpt(config);
  // Probabilities 1/2, 1/4, 1/8, 1/8.
  forget_context(gpt, {std::log(4.0), std::log(2.0), 0, 0});
  const Ids tokens = {3, 0, 0, 1, 2, 0};  // 1 + 1 + 2 + 3 + 1 bits, without the first
  const Perplexity found = measure(gpt, tokens, 2);
  CHECK(found.loss == Approx(8 * std::log(2.0)).epsilon(1e-6));
  CHECK(found.per_token() == Approx(std::exp2(8.0 / 5)).epsilon(1e-6));
  CHECK(found.by(4) == Approx(4).epsilon(1e-6));  // 8 bits for 4 words
  CHECK(found.bits_per_byte(16) == Approx(0.5).epsilon(1e-6));
}

TEST_CASE("a uniform net has the perplexity of its vocabulary, without padding", "[evaluate]") {
  SharpGpt gpt;
  forget_context(gpt, std::vector<double>(83, 1.5));
  CHECK(measure(gpt, random_tokens(100, 83, 3), 32).per_token() == Approx(83).epsilon(1e-5));
}

TEST_CASE("bf16 and the cpu backend measure what plain loops do", "[evaluate]") {
  SharpGpt exact(small_gpt(), DType::f64, "ref");
  SharpGpt single;
  SharpGpt half(small_gpt(), DType::bf16);
  const Ids tokens = random_tokens(120, 83, 4);
  const double loss = measure(exact, tokens, 8).loss;
  CHECK(measure(single, tokens, 8).loss == Approx(loss).epsilon(1e-5));
  CHECK(measure(half, tokens, 8).loss == Approx(loss).epsilon(0.02));
}

TEST_CASE("evaluation tells how far it is, and stops", "[evaluate]") {
  SharpGpt gpt;
  const Ids tokens = random_tokens(120, 83, 5);
  std::vector<std::uint64_t> done;
  const auto until = [&](std::size_t calls) {
    done.clear();
    return evaluate_perplexity({gpt.engine, gpt.net}, tokens.size(), reader_of(tokens), {10, 2}, [&](auto now, auto all) {
      CHECK(all == 119);
      done.push_back(now);
      return done.size() < calls;
    });
  };
  const Perplexity all = until(100);
  CHECK(done == std::vector<std::uint64_t>{47, 67, 87, 107, 119});
  CHECK(all.is_complete);
  const Perplexity part = until(2);
  CHECK(!part.is_complete);
  CHECK(part.tokens == 67);
  // The loss is that of the tokens counted: what follows does not matter.
  CHECK(part.loss == Approx(measure(gpt, Ids(tokens.begin(), tokens.begin() + 68), 10, 2).loss).epsilon(1e-6));
}

TEST_CASE("what a net says by itself is a correct cloze answer, and any other sub-token is not", "[evaluate]") {
  SharpGpt gpt;
  SampleOptions greedy;
  greedy.temperature = 0;
  greedy.tokens = 3;
  std::vector<ClozePassage> passages;
  std::vector<char> expected;
  for (std::size_t i = 0; i < 12; ++i) {
    Ids tokens = random_tokens(1 + 3 * i, 83, 100 + i);  // up to 34 and 3
    const Ids said = sample({gpt.engine, gpt.net}, tokens, greedy).front();
    tokens.insert(tokens.end(), said.begin(), said.end());
    passages.push_back({tokens, 3});
    expected.push_back(1);
    for (std::size_t wrong = 0; wrong < 3; ++wrong) {
      ClozePassage changed = passages[4 * i];
      std::int32_t& token = changed.tokens[changed.tokens.size() - 3 + wrong];
      token = (token + 1) % 83;
      passages.push_back(changed);
      expected.push_back(0);
    }
  }
  for (const std::size_t at_once : {1U, 5U, 100U}) {
    const ClozeAccuracy found = evaluate_cloze({gpt.engine, gpt.net}, passages, at_once);
    CHECK(found.correct == expected);
    CHECK(found.right == 12);
    CHECK(found.passages == 48);
    CHECK(found.accuracy() == Approx(0.25));
  }
}

TEST_CASE("every sub-token is predicted from the true ones before it", "[evaluate]") {
  SharpGpt gpt;
  repeat_tokens(gpt);
  const std::vector<ClozePassage> passages = {
      {{5, 5}, 1},           // right
      {{1, 2, 7, 7, 7}, 2},  // right: each repeats the one before it
      {{1, 2, 7, 7, 7}, 3},  // 7 after 2 is not
      {{7, 7, 3, 3}, 2},     // the second follows from the first, which is wrong
      {{7, 7, 3}, 1},        // wrong
  };
  CHECK(evaluate_cloze({gpt.engine, gpt.net}, passages).correct == std::vector<char>{1, 1, 0, 0, 0});
}

TEST_CASE("passages longer than the context keep their end", "[evaluate]") {
  SharpGpt gpt(small_gpt(), DType::f64, "ref");
  for (const std::size_t size : {36U, 37U, 38U, 60U, 200U}) {
    Ids tokens = random_tokens(size, 83, size);
    const Ids seen(tokens.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(size, 37)), tokens.end());
    const std::vector<double> logits = logits_behind(gpt, seen);
    tokens.push_back(static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    ClozePassage other{tokens, 1};
    other.tokens.back() = (tokens.back() + 1) % 83;
    const std::vector<ClozePassage> both = {{tokens, 1}, other};
    CHECK(evaluate_cloze({gpt.engine, gpt.net}, both).correct == std::vector<char>{1, 0});
  }
}

TEST_CASE("equal logits and no numbers are no right answers by chance", "[evaluate]") {
  SharpGpt gpt;
  forget_context(gpt, std::vector<double>(83, 0));
  const std::vector<ClozePassage> passages = {{{1, 0}, 1}, {{1, 2}, 1}};
  CHECK(evaluate_cloze({gpt.engine, gpt.net}, passages).correct == std::vector<char>{1, 0});  // the first of equals
  gpt.set("norm.bias", std::vector<float>(24, std::nanf("")));
  CHECK(evaluate_cloze({gpt.engine, gpt.net}, passages).correct == std::vector<char>{0, 0});
}

TEST_CASE("cloze evaluation stops where it is told to", "[evaluate]") {
  SharpGpt gpt;
  const std::vector<ClozePassage> passages(7, ClozePassage{{1, 2, 3}, 1});
  const ClozeAccuracy found = evaluate_cloze({gpt.engine, gpt.net}, passages, 2, [](auto done, auto all) {
    CHECK(all == 7);
    return done < 4;
  });
  CHECK(found.passages == 4);
  CHECK(found.correct.size() == 4);
  CHECK(!found.is_complete);
}

TEST_CASE("the last word of a passage and its white space are the target", "[evaluate]") {
  Letters letters;
  letters.joined.clear();
  const ClozePassage plain = cloze_passage(letters, "  the cat sat. \n");
  CHECK(plain.tokens.size() == 14);
  CHECK(plain.target == 5);  // " sat."
  CHECK(cloze_passage(letters, "a\nb").target == 2);
  CHECK(cloze_passage(letters, "a  b").target == 2);
  // "th" is one token, within the target and before it.
  letters.joined = "th";
  const ClozePassage merged = cloze_passage(letters, "with a path");
  CHECK(merged.tokens.size() == 9);
  CHECK(merged.target == 4);  // " ", "p", "a", "th"
  // A token that reaches across the border belongs to the target.
  letters.joined = "a ";
  const ClozePassage across = cloze_passage(letters, "see a path");
  CHECK(across.tokens == Ids{'s', 'e', 'e', ' ', 255, 'p', 'a', 't', 'h'});
  CHECK(across.target == 5);
  for (const char* text : {"", "  ", "word", " word \n"}) {
    CHECK(has(message_of(ErrorKind::data, [&] { cloze_passage(letters, text); }), "fewer than two words"));
  }
}

TEST_CASE("logits of tokens are those of any pass over them", "[evaluate]") {
  SharpGpt gpt(small_gpt(), DType::f64, "ref");
  const Ids tokens = random_tokens(9, 83, 6);
  const std::vector<float> found = token_logits({gpt.engine, gpt.net}, tokens);
  REQUIRE(found.size() == 9 * 83);
  for (std::size_t t = 0; t < 9; ++t) {
    const std::vector<double> expected =
        logits_behind(gpt, Ids(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(t + 1)));
    double error = 0;
    for (std::size_t v = 0; v < 83; ++v)
      error = std::max(error, std::abs(static_cast<double>(found[t * 83 + v]) - expected[v]));
    CHECK(error < 1e-5);
  }
  CHECK(has(message_of(ErrorKind::usage, [&] { token_logits({gpt.engine, gpt.net}, Ids{}); }), "`tokens`"));
  CHECK(has(message_of(ErrorKind::usage, [&] { token_logits({gpt.engine, gpt.net}, Ids(38, 1)); }), "context, 37"));
  CHECK(has(message_of(ErrorKind::usage, [&] { token_logits({gpt.engine, gpt.net}, Ids{1, 83}); }), "83; expected 0 to 82"));
}

TEST_CASE("what cannot be evaluated is said", "[evaluate]") {
  SharpGpt gpt;
  const auto refuses = [&](ErrorKind kind, const Ids& tokens, std::size_t advance, std::size_t windows, const char* text) {
    CHECK(has(message_of(kind, [&] { measure(gpt, tokens, advance, windows); }), text));
  };
  const Ids tokens = random_tokens(50, 83, 7);
  refuses(ErrorKind::usage, tokens, 0, 1, "`advance`: 0; expected 1 to the context, 37");
  refuses(ErrorKind::usage, tokens, 38, 1, "`advance`: 38");
  refuses(ErrorKind::usage, tokens, 1, 0, "`batch`");
  refuses(ErrorKind::data, {5}, 1, 1, "1 tokens");
  refuses(ErrorKind::data, {5, 83}, 1, 1, "token 83, number 1 of the text: the net knows 0 to 82");
  refuses(ErrorKind::data, {5, -1, 3}, 1, 1, "token -1");
  const auto refuses_passage = [&](const ClozePassage& passage, const char* text) {
    const std::vector<ClozePassage> passages = {{{1, 2}, 1}, passage};
    CHECK(has(message_of(ErrorKind::data, [&] { evaluate_cloze({gpt.engine, gpt.net}, passages); }), text));
  };
  refuses_passage({{1, 2}, 0}, "passage 2: 0 of its 2 tokens");
  refuses_passage({{1, 2}, 2}, "passage 2: 2 of its 2 tokens");
  refuses_passage({Ids(50, 1), 38}, "at most the context, 37");
  refuses_passage({{1, 83}, 1}, "passage 2: token 83");
}
