#include <fmt/format.h>
#include <cmath>

#include "tests/cases/case.h"

namespace bitloom::test {
namespace {

struct Attention {
  std::string name;
  std::size_t sequences, heads, head_size;
  nn::AttentionMask mask;
  double rate = 0;
  double size_of_queries = 1;  // large: almost one key for every query
  bool is_large = false;
  std::size_t first_head = 0, all_heads = 0;  // of several processes
};

nn::Dropout dropout_of(const Attention& p) { return {p.rate, 0x0123456789ABCDEFU, 9, 0x300000005U}; }
nn::AttentionShape shape_of(const Attention& p) {
  return {p.heads, p.head_size, 1 / std::sqrt(static_cast<double>(p.head_size)), p.first_head, p.all_heads};
}

// Backends may round probabilities and their gradients to V before they multiply them, as FlashAttention does; errors of many
// keys add up, and are seen where results cancel.
double limit_of(const Attention& p) { return p.is_large ? 2 : 1; }

// q, k, v and out are tensors of their own.
OpCase attention_case(const Attention& p) {
  const std::size_t width = p.heads * p.head_size;
  const nn::Shape queries = {p.sequences, p.mask.queries(), width};
  const nn::Shape keys = {p.sequences, p.mask.keys(), width};
  OpCase c;
  c.ops = {"attention", "attention_backward"};
  c.name = p.name;
  c.inputs = {values("q", queries, 1, p.size_of_queries), values("k", keys, 2), values("v", keys, 3)};
  c.outputs = {overwritten("y", queries), overwritten("lse", {p.sequences, p.heads, p.mask.queries()}, Kind::parameters)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::attention(engine, shape_of(p), p.mask, dropout_of(p), t.heads("q"), t.heads("k"), t.heads("v"), t.heads("y"), t["lse"]);
  };
  c.upstream = {values("dy", queries, 4)};
  c.gradients = {overwritten("dq", queries), overwritten("dk", keys), overwritten("dv", keys)};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::attention_backward(engine, shape_of(p), p.mask, dropout_of(p), t.heads("q"), t.heads("k"), t.heads("v"), t.heads("y"),
                           t["lse"], t.heads("dy"), t.heads("dq"), t.heads("dk"), t.heads("dv"));
  };
  c.is_large = p.is_large;
  c.limit = limit_of(p);
  return c;
}

// q, k and v are columns of one tensor, in that order after `before` others and before one more; so are their gradients. out is
// behind two columns of its own tensor. As many keys as queries.
OpCase packed_attention_case(const Attention& p, std::size_t before) {
  const std::size_t width = p.heads * p.head_size;
  const nn::Shape packed = {p.sequences, p.mask.queries(), before + 3 * width + 1};
  const nn::Shape out = {p.sequences, p.mask.queries(), width + 2};
  const auto part = [=](std::size_t i) { return before + i * width; };
  OpCase c;
  c.ops = {"attention", "attention_backward"};
  c.name = p.name + ", parts of one tensor";
  c.inputs = {values("x", packed, 1)};
  c.outputs = {values("y", out, 2), overwritten("lse", {p.sequences, p.heads, p.mask.queries()}, Kind::parameters)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::attention(engine, shape_of(p), p.mask, dropout_of(p), t.heads("x", part(0)), t.heads("x", part(1)),
                  t.heads("x", part(2)), t.heads("y", 2), t["lse"]);
  };
  c.upstream = {values("dy", out, 3)};
  // Columns that are no one's stay 0, as their gradients are; the others hold something that must go.
  Slot gradient = values("dx", packed, 4);
  for (std::size_t i = 0; i < gradient.numbers.size(); ++i) {
    const std::size_t column = i % packed.back();
    if (column < before || column >= part(3)) gradient.numbers[i] = 0;
  }
  c.gradients = {gradient};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::attention_backward(engine, shape_of(p), p.mask, dropout_of(p), t.heads("x", part(0)), t.heads("x", part(1)),
                           t.heads("x", part(2)), t.heads("y", 2), t["lse"], t.heads("dy", 2), t.heads("dx", part(0)),
                           t.heads("dx", part(1)), t.heads("dx", part(2)));
  };
  c.is_large = p.is_large;
  c.limit = limit_of(p);
  return c;
}

}  // namespace

std::vector<OpCase> attention_cases() {
  using nn::AttentionMask;
  // Blocks of 64 x 64 that are full, partial and empty: tokens of the same group of 50, up to the query.
  const AttentionMask groups(150, 150, [](std::size_t q, std::size_t k) { return k <= q && q / 50 == k / 50; });
  const AttentionMask scattered(33, 70, [](std::size_t q, std::size_t k) { return (q * 31 + k * 17) % 5 == 0 || k == 2 * q; });
  std::vector<OpCase> cases;
  for (const double rate : {0.0, 0.3}) {
    const std::string with = rate == 0 ? "" : ", dropout";
    cases.push_back(attention_case({"full" + with, 2, 3, 5, AttentionMask::full(7, 7), rate}));
    cases.push_back(attention_case({"full, other keys" + with, 2, 1, 7, AttentionMask::full(5, 33), rate}));
    cases.push_back(attention_case({"causal" + with, 2, 2, 9, AttentionMask::causal(31, 31), rate}));
    cases.push_back(attention_case({"causal, one query at the end" + with, 3, 2, 8, AttentionMask::causal(1, 33, 32), rate}));
    cases.push_back(attention_case({"causal, later queries" + with, 1, 2, 3, AttentionMask::causal(3, 75, 67), rate}));
    cases.push_back(attention_case({"row" + with, 1, 2, 4, AttentionMask::row(5, 5), rate}));
    cases.push_back(attention_case({"column" + with, 1, 2, 4, AttentionMask::column(5, 5), rate}));
    cases.push_back(attention_case({"convolutional" + with, 1, 2, 4, AttentionMask::convolutional(3, 6, 3), rate}));
    cases.push_back(attention_case({"scattered" + with, 1, 2, 3, scattered, rate}));
    cases.push_back(packed_attention_case({"causal" + with, 2, 3, 5, AttentionMask::causal(9, 9), rate}, 0));
    cases.push_back(packed_attention_case({"full" + with, 1, 2, 7, AttentionMask::full(11, 11), rate}, 3));
    cases.push_back(attention_case({"groups" + with, 2, 1, 17, groups, rate, 1, true}));
    cases.push_back(attention_case({"causal 130" + with, 2, 3, 33, AttentionMask::causal(130, 130), rate, 1, true}));
  }
  for (const std::size_t head_size : {1U, 16U, 31U, 64U, 65U, 80U}) {
    cases.push_back(attention_case({"size of heads", 1, 2, head_size, AttentionMask::causal(7, 7)}));
  }
  cases.push_back(attention_case({"middle heads", 2, 2, 5, AttentionMask::causal(9, 9), 0.3, 1, false, 1, 4}));
  cases.push_back(attention_case({"last head", 3, 1, 16, AttentionMask::causal(70, 70), 0.3, 1, true, 2, 3}));
  const AttentionMask few(2, 140, [](std::size_t q, std::size_t k) { return (k / 5 + q) % 3 == 0 && k != 64; });
  cases.push_back(attention_case({"few queries, scattered keys", 2, 3, 20, few}));
  cases.push_back(attention_case({"few queries, saturated", 1, 2, 16, few, 0, 12, true}));
  cases.push_back(attention_case({"one token", 1, 1, 1, AttentionMask::causal(1, 1)}));
  cases.push_back(attention_case({"saturated", 1, 2, 16, AttentionMask::causal(13, 13), 0, 12}));
  cases.push_back(attention_case({"no sequences", 0, 2, 4, AttentionMask::causal(7, 7)}));
  cases.push_back(attention_case({"no queries", 2, 2, 4, AttentionMask::full(0, 7)}));
  cases.push_back(attention_case({"65 tokens, row", 1, 1, 8, AttentionMask::row(16, 7), 0.1}));
  cases.push_back(packed_attention_case({"row 192", 1, 2, 32, AttentionMask::row(48, 12), 0.1, 1, true}, 0));
  return cases;
}

OpCase random_attention_case(Draw& draw) {
  using nn::AttentionMask;
  const std::size_t tokens = draw.size(8, 200);
  const std::size_t grid = draw.size(2, 12);
  Attention p;
  p.sequences = draw.size(1, 3);
  p.heads = draw.size(1, 4);
  p.head_size = draw.size(4, 128);
  p.rate = draw.any_of({0.0, 0.0, 0.2});
  p.first_head = draw.size(1, 5) - 1;
  p.all_heads = p.first_head + p.heads;
  const int mask = draw.any_of({0, 1, 2, 3, 4, 5});
  switch (mask) {
    case 0: p.mask = AttentionMask::full(tokens, tokens); break;
    case 1: p.mask = AttentionMask::full(tokens, draw.size(8, 200)); break;
    case 2: p.mask = AttentionMask::causal(tokens, tokens + grid, grid); break;
    case 3: p.mask = AttentionMask::row(tokens, grid); break;
    case 4: p.mask = AttentionMask::column(tokens, grid); break;
    default: p.mask = AttentionMask::causal(tokens, tokens); break;
  }
  p.name = fmt::format("mask {} of {} x {}, {} sequences, {} heads of {}, rate {}", mask, p.mask.queries(), p.mask.keys(),
                       p.sequences, p.heads, p.head_size, p.rate);
  p.is_large = true;
  const bool is_square = p.mask.queries() == p.mask.keys();
  OpCase c = is_square && draw.coin() ? packed_attention_case(p, draw.any_of({0UL, 3UL, 8UL})) : attention_case(p);
  c.limit = 4;  // the worst of hundreds of seeds
  return c;
}

}  // namespace bitloom::test
