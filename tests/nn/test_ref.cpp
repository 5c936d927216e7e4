// The reference backend against results worked by hand: gradient checks do not see a forward pass that computes something else.
#include <cmath>
#include <numeric>

#include "nn/activation.h"
#include "nn/bit_pack.h"
#include "nn/few_bit.h"
#include "nn/few_bit_stash.h"
#include "nn/ops.h"
#include "nn/ref/numbers.h"
#include "tests/cases/run.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

namespace bitloom::nn {
namespace {

using test::compare;
using test::device_of;
using test::has;
using test::message_of;
using test::tested_backends;
using test::to_numbers;
using Numbers = std::vector<double>;

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// Tensors of f64 on the reference backend.
class Desk {
 public:
  Engine engine{{}, "ref"};

  Tensor of(const Numbers& numbers, const Shape& shape) { return engine.from<double>(numbers, shape, Use::data); }
  Tensor of(const Numbers& numbers) { return of(numbers, {numbers.size()}); }
  Tensor ids(const std::vector<std::int32_t>& ids) { return engine.from<std::int32_t>(ids, {ids.size()}, Use::data); }
  Tensor blank(const Shape& shape) { return of(Numbers(shape.size(), nan_value), shape); }
};

}  // namespace

TEST_CASE("reference: matmul", "[nn][ref]") {
  Desk desk;
  const Tensor a = desk.of({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor b = desk.of({1, 0, -1, 2, 3, 1}, {3, 2});
  Tensor out = desk.blank({2, 2});
  const Numbers product = {8, 7, 17, 16};
  matmul(desk.engine, a, b, out);
  CHECK(to_numbers(desk.engine, out) == product);
  matmul(desk.engine, desk.of({1, 4, 2, 5, 3, 6}, {3, 2}), desk.of({1, -1, 3, 0, 2, 1}, {2, 3}), out,
         {.transpose_a = true, .transpose_b = true});
  CHECK(to_numbers(desk.engine, out) == product);
  matmul(desk.engine, a, b, out, {.accumulate = true, .scale = 2});
  CHECK(to_numbers(desk.engine, out) == Numbers{24, 21, 51, 48});
  matmul(desk.engine, a, b, out, {.scale = -1, .bias = desk.of({10, 1}), .activation = &find_activation("relu")});
  CHECK(to_numbers(desk.engine, out) == Numbers{2, 0, 0, 0});
  Tensor batches = desk.blank({2, 1, 1});
  matmul(desk.engine, desk.of({1, 2, 3, 4}, {2, 1, 2}), desk.of({5, 6, 7, 8}, {2, 2, 1}), batches);
  CHECK(to_numbers(desk.engine, batches) == Numbers{17, 53});

  Tensor sums = desk.of({100, 200, 300});
  add_row_sums(desk.engine, a, sums);
  CHECK(to_numbers(desk.engine, sums) == Numbers{105, 207, 309});
}

TEST_CASE("reference: elements", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  Tensor y = desk.blank({3});
  add(engine, desk.of({1, 2, 3}), desk.of({10, 20, 30}), y);
  CHECK(to_numbers(engine, y) == Numbers{11, 22, 33});
  scale_add(engine, 2, desk.of({1, 2, 3}), -1, y);
  CHECK(to_numbers(engine, y) == Numbers{-9, -18, -27});
  Tensor gone = desk.blank({2});
  scale_add(engine, 2, desk.of({1, 2}), 0, gone);
  CHECK(to_numbers(engine, gone) == Numbers{2, 4});
  fill(engine, y, 0.1);
  CHECK(to_numbers(engine, y) == Numbers{0.1, 0.1, 0.1});
  Tensor integers = engine.empty({2}, DType::i64, Use::data);
  fill(engine, integers, -3);
  CHECK(engine.to_host<std::int64_t>(integers) == std::vector<std::int64_t>{-3, -3});
  const Activation& relu = find_activation("relu");
  activate(engine, relu, desk.of({-1, 0, 2}), y);
  CHECK(to_numbers(engine, y) == Numbers{0, 0, 2});
  activate_backward(engine, relu, desk.of({-1, 0, 2}), desk.of({5, 6, 7}), y);
  CHECK(to_numbers(engine, y) == Numbers{0, 0, 7});
}

TEST_CASE("reference: numbers are rounded once, to the nearest", "[nn][ref]") {
  Desk desk;
  // Above the tie between 1 and 1 + 2^-7 by less than a float shows: rounding to a float first makes it a tie again.
  const double above_tie = 1 + 0x1p-8 + 0x1p-40;
  const double f16_above_tie = 1 + 0x1p-11 + 0x1p-40;
  const Tensor x = desk.of({above_tie, -above_tie, f16_above_tie, 1 + 0x1p-8, 1e300, nan_value, 0x1p-140});
  Tensor bf = desk.engine.empty({7}, DType::bf16, Use::data);
  convert(desk.engine, x, bf);
  const std::vector<bf16> bf_is = desk.engine.to_host<bf16>(bf);
  CHECK(bf_is[0].bits == 0x3F81);
  CHECK(bf_is[1].bits == 0xBF81);
  CHECK(bf_is[2].bits == 0x3F80);
  CHECK(bf_is[3].bits == 0x3F80);
  CHECK(bf_is[4].bits == 0x7F80);
  CHECK(std::isnan(to_float(bf_is[5])));
  CHECK(bf_is[6].bits == 0);
  Tensor half = desk.engine.empty({7}, DType::f16, Use::data);
  convert(desk.engine, x, half);
  const std::vector<f16> f16_is = desk.engine.to_host<f16>(half);
  CHECK(f16_is[2].bits == 0x3C01);
  CHECK(f16_is[3].bits == 0x3C04);
  CHECK(f16_is[4].bits == 0x7C00);
}

TEST_CASE("reference: few-bit activations", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  FewBitTable table;
  table.boundaries = {-1, 0.5, 2};
  table.levels = {0.25, 0.5, 0.75, 1};
  const Tensor x = desk.of({-3, -1, -0.9, 0.5, 0.6, 2.5, nan_value});
  Tensor y = desk.blank({7});
  Tensor stash = engine.empty({2}, DType::u8, Use::stash);
  const Activation& relu = find_activation("relu");
  activate_few_bit(engine, relu, table, x, y, stash);
  // An x on a boundary belongs to the interval on its left; 0 for NaN: 0 0 1 1, then 2 3 0, two bits each from the lowest on.
  CHECK(engine.to_host<std::uint8_t>(stash) == std::vector<std::uint8_t>{0b01010000, 0b00001110});
  const Numbers values = to_numbers(engine, y);
  CHECK(Numbers(values.begin(), values.end() - 1) == Numbers{0, 0, 0, 0.5, 0.6, 2.5});
  Tensor dx = desk.blank({7});
  activate_few_bit_backward(engine, table, stash, desk.of({1, 2, 3, 4, 5, 6, 7}), dx);
  CHECK(to_numbers(engine, dx) == Numbers{0.25, 0.5, 1.5, 2, 3.75, 6, 1.75});

  table.even = true;
  table.boundaries = {0.5, 1, 2};
  activate_few_bit(engine, relu, table, x, y, stash);
  CHECK(engine.to_host<std::uint8_t>(stash) == std::vector<std::uint8_t>{0b00010111, 0b00001101});
}

TEST_CASE("reference: few-bit ops give f(x), keep the numbers of intervals, and multiply by levels, bit by bit", "[nn][ref]") {
  Engine engine({}, "ref");
  for (const Activation& activation : activations()) {
    for (const unsigned bits : {1U, 3U, 4U, 8U}) {
      CAPTURE(activation.name, bits);
      const FewBitTable table =
          fit_few_bit(few_bit_problem(activation, uniform_weight(), -10, 10), bits, {.points = 1000, .polish = true});
      const FewBitLookup lookup = few_bit_lookup(table);
      constexpr std::size_t n = 251;
      std::vector<float> x, dy;
      for (const double each : test::normal_numbers(n, 1, 3)) x.push_back(static_cast<float>(each));
      for (const double each : test::normal_numbers(n, 2)) dy.push_back(static_cast<float>(each));
      std::vector<float> plain_y(n), plain_dx(n);
      std::vector<std::uint8_t> plain_stash(packed_bytes(n, bits));
      apply(activation, x, plain_y);
      BitPacker packer(plain_stash.data(), bits);
      for (const float each : x) packer.put(lookup.index(each));
      packer.finish();
      // From the double table: with these seeds no input is within rounding of a boundary.
      for (std::size_t i = 0; i < n; ++i) plain_dx[i] = static_cast<float>(table(x[i])) * dy[i];

      Tensor y = engine.empty({n}, DType::f32, Use::activations);
      Tensor stash = engine.empty({plain_stash.size()}, DType::u8, Use::stash);
      activate_few_bit(engine, activation, table, engine.from<float>(x, {n}, Use::data), y, stash);
      CHECK(engine.to_host<float>(y) == plain_y);
      CHECK(engine.to_host<std::uint8_t>(stash) == plain_stash);
      Tensor dx = engine.empty({n}, DType::f32, Use::activations);
      activate_few_bit_backward(engine, table, stash, engine.from<float>(dy, {n}, Use::data), dx);
      CHECK(engine.to_host<float>(dx) == plain_dx);
    }
  }
}

TEST_CASE("reference: lookups", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  const Tensor table = desk.of({1, 2, 3, 4, 5, 6}, {3, 2});
  Tensor out = desk.blank({4, 2});
  gather(engine, table, desk.ids({2, 0, 2, 1}), out);
  CHECK(to_numbers(engine, out) == Numbers{5, 6, 1, 2, 5, 6, 3, 4});
  gather(engine, table, desk.ids({0, 0, 1, 1}), out, true);
  CHECK(to_numbers(engine, out) == Numbers{6, 8, 2, 4, 8, 10, 6, 8});
  Tensor dtable = desk.of({10, 20, 30, 40, 50, 60}, {3, 2});
  scatter_add(engine, desk.of({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}), desk.ids({2, 0, 2, 2}), dtable);
  CHECK(to_numbers(engine, dtable) == Numbers{13, 24, 30, 40, 63, 76});
  CHECK(has(message_of(ErrorKind::usage, [&] { gather(engine, table, desk.ids({0, 3, 0, 0}), out); }), "ids[1] is 3"));
  CHECK(has(message_of(ErrorKind::usage, [&] { scatter_add(engine, out, desk.ids({0, 0, 0, -1}), dtable); }), "ids[3] is -1"));

  // The same table as rows 2 to 4 of 6.
  const VocabularySlice slice{2, 6};
  gather(engine, table, desk.ids({4, 1, 5, 2}), out, false, slice);
  CHECK(to_numbers(engine, out) == Numbers{5, 6, 0, 0, 0, 0, 1, 2});
  gather(engine, table, desk.ids({0, 3, 3, 4}), out, true, slice);
  CHECK(to_numbers(engine, out) == Numbers{5, 6, 3, 4, 3, 4, 6, 8});
  scatter_add(engine, desk.of({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}), desk.ids({4, 1, 5, 2}), dtable, slice);
  CHECK(to_numbers(engine, dtable) == Numbers{20, 32, 30, 40, 64, 78});
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         gather(engine, table, desk.ids({0, 6, 0, 0}), out, false, slice);
                       }),
            "ids[1] is 6"));
}

TEST_CASE("reference: norms", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  // Rows of mean 2 and variance 3 + epsilon = 4; columns the same of another tensor.
  const double a = 2 + std::sqrt(3.0);
  const double b = 2 - std::sqrt(3.0);
  const double z = std::sqrt(3.0) / 2;
  Tensor y = desk.blank({1, 2});
  Tensor mean = desk.blank({1});
  Tensor rstd = desk.blank({1});
  layer_norm(engine, desk.of({a, b}, {1, 2}), desk.of({1, 10}), desk.of({0, 100}), 1, y, mean, rstd);
  CHECK(compare(to_numbers(engine, y), Numbers{z, 100 - 10 * z}, 1e-14) == "");
  CHECK(compare(to_numbers(engine, mean), Numbers{2}, 1e-14) == "");
  CHECK(compare(to_numbers(engine, rstd), Numbers{0.5}, 1e-14) == "");

  Tensor y2 = desk.blank({2, 2});
  Tensor mean2 = desk.blank({2});
  Tensor variance = desk.blank({2});
  const Tensor columns = desk.of({a, 5, b, 5}, {2, 2});
  batch_norm(engine, columns, desk.of({1, 10}), desk.of({0, 100}), 1, y2, mean2, variance);
  CHECK(compare(to_numbers(engine, y2), Numbers{z, 100, -z, 100}, 1e-14) == "");
  CHECK(compare(to_numbers(engine, mean2), Numbers{2, 5}, 1e-14) == "");
  CHECK(compare(to_numbers(engine, variance), Numbers{3, 0}, 1e-14) == "");
  batch_norm_inference(engine, columns, desk.of({1, 10}), desk.of({0, 100}), desk.of({0, 4}), desk.of({3, 24}), 1, y2);
  CHECK(compare(to_numbers(engine, y2), Numbers{a / 2, 102, b / 2, 102}, 1e-14) == "");
}

TEST_CASE("reference: softmax and cross entropy", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  const double log3 = std::log(3.0);
  Tensor y = desk.blank({2, 2});
  softmax(engine, desk.of({0, log3, 1000 + log3, 1000}, {2, 2}), y);
  CHECK(compare(to_numbers(engine, y), Numbers{0.25, 0.75, 0.75, 0.25}, 1e-11) == "");

  // Three rows of classes 2 of 3: the last column does not exist for the loss.
  const Tensor logits = desk.of({0, log3, 99, 0, log3, 99, 7, 8, 9}, {3, 3});
  Tensor loss = desk.blank({3});
  Tensor dlogits = desk.blank({3, 3});
  cross_entropy(engine, logits, desk.ids({0, 1, -1}), 2, 10, loss, &dlogits);
  CHECK(compare(to_numbers(engine, loss), Numbers{std::log(4.0), std::log(4.0 / 3), 0}, 1e-14) == "");
  CHECK(compare(to_numbers(engine, dlogits), Numbers{-7.5, 7.5, 0, 2.5, -2.5, 0, 0, 0, 0}, 1e-14) == "");
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         cross_entropy(engine, logits, desk.ids({0, 2, 0}), 2, 1, loss, nullptr);
                       }),
            "targets[1] is 2"));

  // The same rows, their two classes divided between two processes; the second has the column that does not exist.
  const Tensor left = desk.of({0, 0, 7}, {3, 1});
  const Tensor right = desk.of({log3, 99, log3, 99, 8, 9}, {3, 2});
  const VocabularySlice first{0, 2};
  const VocabularySlice second{1, 2};
  Tensor maxima = desk.blank({3});
  cross_entropy_maxima(engine, left, first, maxima);
  CHECK(to_numbers(engine, maxima) == Numbers{0, 0, 7});
  cross_entropy_maxima(engine, right, second, maxima);
  CHECK(to_numbers(engine, maxima) == Numbers{log3, log3, 8});
  const Tensor targets = desk.ids({0, 1, -1});
  Tensor terms = desk.blank({2, 3});
  cross_entropy_terms(engine, left, targets, first, maxima, terms);
  CHECK(compare(to_numbers(engine, terms), Numbers{1.0 / 3, 1.0 / 3, std::exp(-1), -log3, 0, 0}, 1e-14) == "");
  cross_entropy_terms(engine, right, targets, second, maxima, terms);
  CHECK(compare(to_numbers(engine, terms), Numbers{1, 1, 1, 0, 0, 0}, 1e-14) == "");
  const Tensor sums = desk.of({4.0 / 3, 4.0 / 3, 1 + std::exp(-1), -log3, 0, 0}, {2, 3});
  Tensor dright = desk.blank({3, 2});
  cross_entropy_of_terms(engine, right, targets, second, maxima, sums, 10, loss, &dright);
  CHECK(compare(to_numbers(engine, loss), Numbers{std::log(4.0), std::log(4.0 / 3), 0}, 1e-14) == "");
  CHECK(compare(to_numbers(engine, dright), Numbers{7.5, 0, -2.5, 0, 0, 0}, 1e-14) == "");
}

TEST_CASE("reference: attention", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  // One head of size 1. Scores of the second query: scale 2 times 1 times (0, log 3 / 2) = (0, log 3).
  const AttentionShape shape = {1, 1, 2};
  const double log3 = std::log(3.0);
  const Tensor q = desk.of({5, 1}, {1, 2, 1});
  const Tensor k = desk.of({0, log3 / 2}, {1, 2, 1});
  const Tensor v = desk.of({8, 16}, {1, 2, 1});
  Tensor out = desk.blank({1, 2, 1});
  Tensor lse = desk.blank({1, 1, 2});
  attention(engine, shape, AttentionMask::causal(2, 2), {}, {q}, {k}, {v}, {out}, lse);
  CHECK(compare(to_numbers(engine, out), Numbers{8, 14}, 1e-13) == "");
  CHECK(compare(to_numbers(engine, lse), Numbers{0, std::log(4.0)}, 1e-13) == "");
  attention(engine, shape, AttentionMask::full(2, 2), {}, {q}, {k}, {v}, {out}, lse);
  const double p = std::pow(3.0, 5);
  CHECK(compare(to_numbers(engine, out), Numbers{(8 + 16 * p) / (1 + p), 14}, 1e-13) == "");
  // Dropped keys are lost, kept ones grow, and the denominator stays that of all.
  const Dropout dropout = {.rate = 0.5, .seed = 1, .site = 3};
  Tensor identity = desk.of({1, 1, 1, 1, 1, 1, 1, 1}, {1, 8, 1});
  Tensor kept = desk.blank({8});
  nn::dropout(engine, dropout, identity.reshaped({8}), kept);
  const Numbers factors = to_numbers(engine, kept);
  const double sum = std::accumulate(factors.begin(), factors.end(), 0.0);
  REQUIRE(sum > 0);
  REQUIRE(sum < 16);
  Tensor one = desk.blank({1, 1, 1});
  Tensor lse1 = desk.blank({1, 1, 1});
  const Tensor zero = desk.of({0}, {1, 1, 1});
  attention(engine, shape, AttentionMask::full(1, 8), dropout, {zero}, {identity}, {identity}, {one}, lse1);
  CHECK(compare(to_numbers(engine, one), Numbers{sum / 8}, 1e-13) == "");
  CHECK(compare(to_numbers(engine, lse1), Numbers{std::log(8.0)}, 1e-13) == "");
}

TEST_CASE("reference: a gradient never reaches a token that is not seen", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  // Only the loss of token 3 counts: of later keys and values, every gradient is exactly 0.
  const std::size_t tokens = 7;
  const Shape shape = {1, tokens, 4};
  const AttentionShape heads = {2, 2, 0.7};
  const Tensor q = desk.of(test::normal_numbers(shape.size(), 1), shape);
  const Tensor k = desk.of(test::normal_numbers(shape.size(), 2), shape);
  const Tensor v = desk.of(test::normal_numbers(shape.size(), 3), shape);
  Tensor out = desk.blank(shape);
  Tensor lse = desk.blank({1, 2, tokens});
  const AttentionMask mask = AttentionMask::causal(tokens, tokens);
  attention(engine, heads, mask, {}, {q}, {k}, {v}, {out}, lse);
  Numbers dout(shape.size());
  for (std::size_t i = 12; i < 16; ++i) dout[i] = 1;
  const Tensor dq = desk.blank(shape);
  const Tensor dk = desk.blank(shape);
  const Tensor dv = desk.blank(shape);
  attention_backward(engine, heads, mask, {}, {q}, {k}, {v}, {out}, lse, {desk.of(dout, shape)}, {dq}, {dk}, {dv});
  for (const Tensor& gradient : {dk, dv}) {
    const Numbers numbers = to_numbers(engine, gradient);
    for (std::size_t i = 0; i < numbers.size(); ++i) CHECK((numbers[i] != 0) == (i < 16));
  }
}

TEST_CASE("reference: convolution", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  // Two channels: x has rows (1 2 3) and (4 5 6) in channel 0, ten times that in channel 1. w picks the pixel right of the
  // centre in channel 0 and the one above it in channel 1; a second output has the bias alone.
  const Tensor x = desk.of({1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}, {1, 2, 3, 2});
  Numbers w(2 * 2 * 3 * 3);
  w[5] = 1;      // (o 0, i 0, row 1, column 2)
  w[9 + 1] = 1;  // (o 0, i 1, row 0, column 1)
  Tensor y = desk.blank({1, 2, 3, 2});
  conv2d(engine, {.stride = 1, .padding = 1}, x, desk.of(w, {2, 2, 3, 3}), desk.of({0.5, 7}), y);
  CHECK(to_numbers(engine, y) == Numbers{2.5, 7, 3.5, 7, 0.5, 7, 15.5, 7, 26.5, 7, 30.5, 7});
  Tensor strided = desk.blank({1, 1, 2, 2});
  conv2d(engine, {.stride = 2, .padding = 1}, x, desk.of(w, {2, 2, 3, 3}), {}, strided);
  CHECK(to_numbers(engine, strided) == Numbers{2, 0, 0, 0});
}

TEST_CASE("reference: pooling", "[nn][ref]") {
  Desk desk;
  Engine& engine = desk.engine;
  const Tensor x = desk.of({1, 5, 2, 2, 5, 0, 2, 2}, {1, 2, 4, 1});
  Tensor y = desk.blank({1, 1, 2, 1});
  Tensor which = engine.empty({1, 1, 2, 1}, DType::u8, Use::stash);
  max_pool(engine, 2, x, y, which);
  CHECK(to_numbers(engine, y) == Numbers{5, 2});
  CHECK(engine.to_host<std::uint8_t>(which) == std::vector<std::uint8_t>{1, 0});
  Tensor dx = desk.blank({1, 2, 4, 1});
  max_pool_backward(engine, 2, desk.of({7, 8}, {1, 1, 2, 1}), which, dx);
  CHECK(to_numbers(engine, dx) == Numbers{0, 7, 8, 0, 0, 0, 0, 0});
  Tensor up = desk.blank({1, 2, 4, 1});
  upsample(engine, 2, desk.of({1, 2}, {1, 1, 2, 1}), up);
  CHECK(to_numbers(engine, up) == Numbers{1, 1, 2, 2, 1, 1, 2, 2});
  Tensor down = desk.blank({1, 1, 2, 1});
  upsample_backward(engine, 2, x, down);
  CHECK(to_numbers(engine, down) == Numbers{11, 8});
}

TEST_CASE("reference: AdamW's first steps have a closed form", "[nn][ref]") {
  // With constant gradients g the bias-corrected moments are g and g^2 at every step, so each step is
  // value = value (1 - rate decay) - rate g / (|g| + epsilon), Loshchilov and Hutter 2019, algorithm 2.
  Desk desk;
  const Numbers g = {2, -0.5, 1e-9, 0};
  const Numbers start = {1, 1, 1, 1};
  const double scale = 0.25;
  AdamWTensors tensors = {desk.of(start),
                          desk.of(g),
                          desk.of(Numbers(4)),
                          desk.of(Numbers(4)),
                          desk.engine.empty({4}, DType::bf16, Use::parameters),
                          true};
  AdamWStep step = {.rate = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .decay = 0.1, .gradient_scale = scale};
  Numbers expected = start;
  for (step.step = 1; step.step <= 10; ++step.step) {
    adamw(desk.engine, std::span(&tensors, 1), step);
    for (std::size_t i = 0; i < 4; ++i) {
      expected[i] = expected[i] * (1 - 0.01 * 0.1) - 0.01 * g[i] * scale / (std::fabs(g[i] * scale) + 1e-8);
    }
    INFO("step " << step.step);
    CHECK(compare(to_numbers(desk.engine, tensors.value), expected, 1e-12) == "");
    const double moment = 1 - std::pow(0.9, static_cast<double>(step.step));
    CHECK(compare(to_numbers(desk.engine, tensors.mean), Numbers{0.5 * moment, -0.125 * moment, 2.5e-10 * moment, 0}, 1e-12) ==
          "");
  }
  const Numbers copy = to_numbers(desk.engine, tensors.copy);
  for (std::size_t i = 0; i < 4; ++i) CHECK(std::fabs(copy[i] - expected[i]) <= expected[i] / 256);
  tensors.decays = false;
  const Numbers before = to_numbers(desk.engine, tensors.value);
  step.step = 11;
  adamw(desk.engine, std::span(&tensors, 1), step);
  CHECK(to_numbers(desk.engine, tensors.value)[3] == before[3]);
}

TEST_CASE("reference: sums of squares", "[nn][ref]") {
  Desk desk;
  const std::vector<Tensor> tensors = {desk.of({1, 2, 3}), desk.of({}), desk.of({-4})};
  CHECK(sum_of_squares(desk.engine, tensors) == 30);
  CHECK(sum_of_squares(desk.engine, {}) == 0);
}

TEST_CASE("chunks of squares of a range of whole chunks are those of the tensor, on every backend", "[nn][backends]") {
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    std::vector<float> numbers(3 * squares_chunk + 5);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.001F * static_cast<float>(i % 977);
    const Tensor whole = engine.from<float>(numbers, {numbers.size()}, Use::gradients);
    const std::vector<double> all = sums_of_squares(engine, std::span(&whole, 1));
    REQUIRE(all.size() == 4);
    const Tensor part = whole.slice(squares_chunk, numbers.size());
    CHECK(sums_of_squares(engine, std::span(&part, 1)) == std::vector<double>(all.begin() + 1, all.end()));
    double sum = 0;
    for (const double each : all) sum += each;
    CHECK(sum_of_squares(engine, std::span(&whole, 1)) == sum);
  }
}

TEST_CASE("sums of squares show what is not finite, on every backend", "[nn][backends]") {
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    for (const std::size_t where : {0U, 5U, 998U}) {
      for (const float value :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")}) {
        std::vector<float> numbers(999, 1.0F);
        numbers[where] = value;
        const std::vector<Tensor> tensors = {engine.from<float>(numbers, {999}, Use::gradients)};
        CHECK_FALSE(std::isfinite(sum_of_squares(engine, tensors)));
      }
    }
    // Squares of large floats are within what a double holds.
    const std::vector<Tensor> large = {engine.from<float>(std::vector<float>(100, 1e30F), {100}, Use::gradients)};
    CHECK(std::fabs(sum_of_squares(engine, large) / 1e62 - 1) < 1e-6);
  }
}

}  // namespace bitloom::nn
