// Every table of vector kernels that this CPU supports against the baseline table, which the cases of every op compare with the
// reference backend (test_ops.cpp; BITLOOM_ISA=ref): rows, columns, the optimiser, attention. And that attention does not
// depend on how it is cut into tasks.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/buffer.h"
#include "core/random.h"
#include "nn/attention_mask.h"
#include "nn/cpu/kernel_tables.h"
#include "nn/dropout.h"
#include "nn/stochastic_rounding.h"
#include "tests/nn/vector_tables.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"

using namespace bitloom;
using namespace bitloom::nn;
using bitloom::test::compare;
using bitloom::test::Guarded;
using bitloom::test::supported_vector_kernels;

namespace {

const std::vector<std::size_t> widths = {1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1031};

template <typename V>
float widened(V x) {
  if constexpr (std::is_same_v<V, bf16>) {
    return to_float(x);
  } else {
    return x;
  }
}

template <typename V>
Guarded<V> normal(std::size_t n, std::uint64_t seed, double scale = 1, double mean = 0) {
  Guarded<V> values(n);
  Random random(seed, Stream::test);
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<float>(mean + scale * random.normal());
    if constexpr (std::is_same_v<V, bf16>) {
      values[i] = to_bf16(x);
    } else {
      values[i] = x;
    }
  }
  return values;
}

// "" if actual is what the baseline gave, to a few roundings of its type.
template <typename V>
std::string check(const Guarded<V>& actual, const Guarded<V>& expected, double limit = 0) {
  if (!actual.guards_intact()) return "something was written next to the output";
  std::vector<float> is, should_be;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    is.push_back(widened(actual[i]));
    should_be.push_back(widened(expected[i]));
  }
  return compare(is, should_be, limit > 0 ? limit : std::is_same_v<V, bf16> ? 8e-3 : 1e-5);
}

template <typename V>
bool same(const Guarded<V>& a, const Guarded<V>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(V)) == 0;
}

// test(kernels of V, those of the baseline) for both types and every table, the baseline included.
template <typename Test>
void for_all_tables(const Test& test) {
  const VectorKernels& baseline = *supported_vector_kernels().back();
  for (const VectorKernels* table : supported_vector_kernels()) {
    {
      INFO(table->name << ", f32");
      test(table->of<float>(), baseline.of<float>(), float{});
    }
    INFO(table->name << ", bf16");
    test(table->of<bf16>(), baseline.of<bf16>(), bf16{});
  }
}

}  // namespace

TEST_CASE("tables of vector kernels agree on norms", "[nn][kernels]") {
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, const ValueKernels<V>& baseline, V) {
    constexpr std::size_t rows = 7;  // four at a time, or two, and what is left
    for (const std::size_t columns : widths) {
      INFO("C = " << columns);
      const std::size_t n = rows * columns;
      const Guarded<V> x = normal<V>(n, 1, 2, 1), dy = normal<V>(n, 2);
      const Guarded<float> gain = normal<float>(columns, 3), bias = normal<float>(columns, 4);
      struct Results {
        Guarded<V> y, dx;
        Guarded<float> mean, rstd, dgain, dbias;
      };
      const auto run_rows = [&](const ValueKernels<V>& table) {
        Results r{Guarded<V>(n),        normal<V>(n, 5),         Guarded<float>(rows),
                  Guarded<float>(rows), Guarded<float>(columns), Guarded<float>(columns)};
        table.layer_norm(x.data(), gain.data(), bias.data(), 0.01F, r.y.data(), r.mean.data(), r.rstd.data(), rows, columns);
        table.layer_norm_backward(dy.data(), x.data(), gain.data(), r.mean.data(), r.rstd.data(), r.dx.data(), r.dgain.data(),
                                  r.dbias.data(), rows, columns, columns % 2 == 1);
        return r;
      };
      const Results is = run_rows(kernels), should_be = run_rows(baseline);
      // One column is its own mean: what is left of the difference is rounding, except in y, dbias and a dx that is added to.
      CHECK(check(is.y, should_be.y) == "");
      CHECK(check(is.mean, should_be.mean) == "");
      CHECK(check(is.rstd, should_be.rstd) == "");
      CHECK(check(is.dx, should_be.dx, std::is_same_v<V, bf16> ? 2e-2 : 5e-5) == "");
      CHECK(check(is.dbias, should_be.dbias) == "");
      if (columns > 1) CHECK(check(is.dgain, should_be.dgain) == "");

      const auto run_columns = [&](const ValueKernels<V>& table) {
        Results r{Guarded<V>(n),           Guarded<V>(n),           Guarded<float>(columns),
                  Guarded<float>(columns), Guarded<float>(columns), Guarded<float>(columns)};
        table.column_moments(x.data(), rows, columns, r.mean.data(), r.rstd.data());
        table.column_products(dy.data(), x.data(), r.mean.data(), rows, columns, r.dbias.data(), r.dgain.data());
        table.normalise_columns(x.data(), r.mean.data(), gain.data(), bias.data(), r.y.data(), rows, columns);
        table.combine_columns(dy.data(), x.data(), r.mean.data(), gain.data(), bias.data(), r.rstd.data(), r.dx.data(), rows,
                              columns);
        return r;
      };
      const Results column = run_columns(kernels), expected = run_columns(baseline);
      CHECK(check(column.mean, expected.mean) == "");
      CHECK(check(column.rstd, expected.rstd) == "");
      CHECK(check(column.dbias, expected.dbias) == "");
      CHECK(check(column.dgain, expected.dgain) == "");
      CHECK(check(column.y, expected.y) == "");
      CHECK(check(column.dx, expected.dx) == "");
      Guarded<float> sums(columns), expected_sums(columns);
      kernels.column_sums(x.data(), rows, columns, sums.data());
      baseline.column_sums(x.data(), rows, columns, expected_sums.data());
      CHECK(check(sums, expected_sums) == "");
    }
  });
}

TEST_CASE("tables of vector kernels agree on relaxed categorical variables", "[nn][kernels]") {
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, const ValueKernels<V>& baseline, V) {
    constexpr std::size_t rows = 3;
    for (const std::size_t columns : widths) {
      INFO("C = " << columns);
      const std::size_t n = rows * columns;
      const Guarded<V> x = normal<V>(n, 1, 2);
      Guarded<V> y(n), expected_y(n);
      Guarded<float> scratch(gumbel_scratch(columns));
      for (const std::uint64_t first : {0U, 1U, 6U}) {
        const GumbelKey key{7, first, 1.5F};
        kernels.gumbel_softmax(key, first, x.data(), y.data(), scratch.data(), rows, columns);
        CHECK(scratch.guards_intact());
        baseline.gumbel_softmax(key, first, x.data(), expected_y.data(), scratch.data(), rows, columns);
        CHECK(check(y, expected_y) == "");
      }
      Guarded<float> kl(rows), expected_kl(rows);
      Guarded<V> dx = normal<V>(n, 2), expected_dx = normal<V>(n, 2);
      kernels.categorical_kl(x.data(), 3, kl.data(), dx.data(), rows, columns);
      baseline.categorical_kl(x.data(), 3, expected_kl.data(), expected_dx.data(), rows, columns);
      CHECK(check(dx, expected_dx) == "");
      if (columns > 1) CHECK(check(kl, expected_kl) == "");
    }
  });
}

TEST_CASE("tables of vector kernels agree on softmax and cross-entropy", "[nn][kernels]") {
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, const ValueKernels<V>& baseline, V) {
    constexpr std::size_t rows = 3;
    for (const std::size_t columns : widths) {
      INFO("C = " << columns);
      const std::size_t n = rows * columns;
      const Guarded<V> x = normal<V>(n, 1, 4), dy = normal<V>(n, 2);
      Guarded<V> y(n), expected_y(n), dx(n), expected_dx(n);
      kernels.softmax(x.data(), y.data(), rows, columns);
      baseline.softmax(x.data(), expected_y.data(), rows, columns);
      CHECK(check(y, expected_y) == "");
      kernels.softmax_backward(expected_y.data(), dy.data(), dx.data(), rows, columns);
      baseline.softmax_backward(expected_y.data(), dy.data(), expected_dx.data(), rows, columns);
      if (columns > 1) CHECK(check(dx, expected_dx, std::is_same_v<V, bf16> ? 2e-2 : 1e-5) == "");

      const std::size_t classes = columns > 2 ? columns - 2 : columns;
      const std::int32_t targets[rows] = {0, -1, static_cast<std::int32_t>(classes - 1)};
      for (const TargetFactors factors : {TargetFactors{3, 0}, TargetFactors{3, 0.25F}}) {
        Guarded<float> loss(rows), expected_loss(rows);
        kernels.cross_entropy(x.data(), targets, classes, columns, factors, loss.data(), dx.data(), rows);
        baseline.cross_entropy(x.data(), targets, classes, columns, factors, expected_loss.data(), expected_dx.data(), rows);
        if (classes > 1) {
          CHECK(check(loss, expected_loss) == "");
          CHECK(check(dx, expected_dx) == "");
        }
        CHECK(loss[1] == 0);
        for (std::size_t i = 0; i < columns; ++i) CHECK(widened(dx[columns + i]) == 0);
        loss.refill();
        kernels.cross_entropy(x.data(), targets, classes, columns, factors, loss.data(), nullptr, rows);
        if (classes > 1) CHECK(check(loss, expected_loss) == "");
      }

      const ClassColumns slice{10, classes, columns};
      const std::int32_t ids[rows] = {10, -1, static_cast<std::int32_t>(9 + classes)};
      Guarded<float> maxima(rows), expected_maxima(rows), sums(rows), expected_sums(rows), of_target(rows),
          expected_target(rows);
      kernels.cross_entropy_maxima(x.data(), slice, maxima.data(), rows);
      baseline.cross_entropy_maxima(x.data(), slice, expected_maxima.data(), rows);
      for (std::size_t row = 0; row < rows; ++row) CHECK(maxima[row] == expected_maxima[row]);
      kernels.cross_entropy_terms(x.data(), ids, slice, maxima.data(), sums.data(), of_target.data(), rows);
      baseline.cross_entropy_terms(x.data(), ids, slice, maxima.data(), expected_sums.data(), expected_target.data(), rows);
      CHECK(check(sums, expected_sums) == "");
      for (std::size_t row = 0; row < rows; ++row) CHECK(of_target[row] == expected_target[row]);
      const float losses[rows] = {0.5F, 0, 2};
      kernels.cross_entropy_gradient(x.data(), ids, slice, maxima.data(), expected_sums.data(), losses, 3, dx.data(), rows);
      baseline.cross_entropy_gradient(x.data(), ids, slice, maxima.data(), expected_sums.data(), losses, 3, expected_dx.data(),
                                      rows);
      CHECK(check(dx, expected_dx) == "");
      for (std::size_t i = 0; i < columns; ++i) CHECK(widened(dx[columns + i]) == 0);
    }
  });
}

TEST_CASE("tables of vector kernels agree on AdamW", "[nn][kernels]") {
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, const ValueKernels<V>& baseline, V) {
    AdamWFactors factors;
    factors.gradient_scale = 0.5F;
    factors.beta1 = 0.9F;
    factors.rest1 = 0.1F;
    factors.beta2 = 0.96F;
    factors.rest2 = 0.04F;
    factors.mean_factor = 3.7F;
    factors.variance_factor = 8.7F;
    factors.epsilon = 1e-8F;
    factors.rate = 1e-3F;
    factors.decay = 4.5e-5F;
    for (const std::size_t n : widths) {
      INFO("n = " << n);
      const Guarded<float> gradient = normal<float>(n, 1);
      Guarded<float> value[2] = {normal<float>(n, 2), normal<float>(n, 2)};
      Guarded<float> mean[2] = {normal<float>(n, 3), normal<float>(n, 3)};
      Guarded<float> variance[2] = {normal<float>(n, 4, 0.1, 1), normal<float>(n, 4, 0.1, 1)};
      Guarded<V> copy[2] = {Guarded<V>(n), Guarded<V>(n)};
      kernels.adamw(factors, value[0].data(), gradient.data(), mean[0].data(), variance[0].data(), copy[0].data(), n);
      baseline.adamw(factors, value[1].data(), gradient.data(), mean[1].data(), variance[1].data(), copy[1].data(), n);
      CHECK(check(value[0], value[1], 1e-6) == "");
      CHECK(check(mean[0], mean[1], 1e-6) == "");
      CHECK(check(variance[0], variance[1], 1e-6) == "");
      CHECK(check(copy[0], copy[1]) == "");
    }
  });
}

TEST_CASE("tables of vector kernels round stochastically to the same bits", "[nn][kernels][rounding]") {
  // Without earlier moments and with an epsilon that is nothing beside 1, every sum is exact in f32.
  AdamWFactors factors;
  factors.rest1 = factors.rest2 = 1;
  factors.epsilon = 1e-30F;
  factors.rate = 0x1p-12F;
  const RoundingKey key = {0x1234567890ABCDEFU, 0x100000002U};
  constexpr std::uint64_t first_group = 0xFFFFFFFCU;  // counters that carry into the second word
  for (const VectorKernels* table : supported_vector_kernels()) {
    for (const std::size_t n : widths) {
      const std::uint64_t first = 8 * first_group + n % 8;  // a part of a tensor begins anywhere in a group
      INFO(table->name << ", n = " << n);
      Guarded<bf16> value(n);
      Guarded<float> gradient(n), mean(n), variance(n);
      std::vector<std::uint16_t> is, should_be;
      for (std::size_t i = 0; i < n; ++i) {
        const float before = 0.5F + static_cast<float>(i % 128) / 256;
        value[i] = to_bf16(before);
        gradient[i] = i % 3 == 0 ? -1.0F : 1.0F;
        mean[i] = variance[i] = 1;
        const auto bits = std::bit_cast<std::uint32_t>(before - gradient[i] * factors.rate);
        const Philox4x32 draws = rounding_draws(key.key, key.step, (first + i) / 8);
        const std::uint32_t rounded = round_stochastically(bits, philox_half(draws, static_cast<unsigned>((first + i) % 8)));
        should_be.push_back(static_cast<std::uint16_t>(rounded >> 16U));
      }
      table->adamw_rounding(factors, key, first, value.data(), gradient.data(), mean.data(), variance.data(), n);
      for (std::size_t i = 0; i < n; ++i) is.push_back(value[i].bits);
      CHECK(is == should_be);
      CHECK((value.guards_intact() && mean.guards_intact() && variance.guards_intact()));
      CHECK(mean[n - 1] == gradient[n - 1]);
      CHECK(variance[n - 1] == 1);
    }
  }
}

namespace {

// One head, forward and backward, with the passes cut into runs of `queries_at_once` and `keys_at_once` blocks; 0: one task for
// all, backward in one as well.
template <typename V>
struct HeadRun {
  Guarded<V> out, dq, dk, dv;
  Guarded<float> lse;

  HeadRun(const ValueKernels<V>& kernels, const AttentionMask& mask, std::size_t head_size, double rate,
          std::size_t at_once = 0)
      : out(mask.queries() * pitch_of(head_size)),
        dq(out.size()),
        dk(mask.keys() * pitch_of(head_size)),
        dv(dk.size()),
        lse(mask.queries()) {
    const std::size_t pitch = pitch_of(head_size);
    const Guarded<V> q = normal<V>(out.size(), 1), k = normal<V>(dk.size(), 2), v = normal<V>(dk.size(), 3);
    const Guarded<V> dout = normal<V>(out.size(), 4);
    std::vector<AttentionEntry> entries;
    for (const AttentionMask::Entry& entry : mask.entries()) {
      entries.push_back({entry.keys, entry.is_full ? nullptr : mask.bits_of(entry.rows)});
    }
    const std::size_t query_blocks = mask.query_blocks(), key_blocks = (mask.keys() + attention_block - 1) / attention_block;
    Guarded<float> scratch(std::max(attention_scratch(head_size), attention_backward_scratch(head_size, query_blocks)));
    const auto describe = [&](AttentionHead<V>& task) {
      task.q = {q.data(), pitch};
      task.k = {k.data(), pitch};
      task.v = {v.data(), pitch};
      task.queries = mask.queries();
      task.keys = mask.keys();
      task.head_size = head_size;
      task.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_size)));
      task.first_entry = mask.first_entry().data();
      task.entries = entries.data();
      const std::uint32_t threshold = dropout_threshold(rate);
      task.dropout = {5, 6, threshold, static_cast<float>(dropout_factor(threshold))};
      task.first_element = 12345;
      task.scratch = scratch.data();
      std::fill_n(scratch.data(), scratch.size(), std::nanf(""));  // so that whoever reads what nobody wrote shows
    };
    for (std::size_t block = 0; block < query_blocks; block += at_once == 0 ? query_blocks : at_once) {
      AttentionForward<V> task;
      describe(task);
      task.first_block = block;
      task.end_block = at_once == 0 ? query_blocks : std::min(query_blocks, block + at_once);
      task.out = {out.data(), pitch};
      task.lse = lse.data();
      kernels.attention(task);
      CHECK(scratch.guards_intact());
    }
    const auto back = [&](std::size_t first, std::size_t end, std::size_t first_key, std::size_t end_key, bool gives_dq,
                          bool gives_dkv) {
      AttentionBackward<V> task;
      describe(task);
      task.first_block = first;
      task.end_block = end;
      task.first_key_block = first_key;
      task.end_key_block = end_key;
      task.gives_dq = gives_dq;
      task.gives_dkv = gives_dkv;
      task.out = {out.data(), pitch};
      task.dout = {dout.data(), pitch};
      task.lse = lse.data();
      task.dq = {dq.data(), pitch};
      task.dk = {dk.data(), pitch};
      task.dv = {dv.data(), pitch};
      kernels.attention_backward(task);
      CHECK(scratch.guards_intact());
    };
    if (at_once == 0) {
      back(0, query_blocks, 0, key_blocks, true, true);
      return;
    }
    for (std::size_t block = 0; block < key_blocks; block += at_once) {
      back(0, query_blocks, block, std::min(key_blocks, block + at_once), false, true);
    }
    for (std::size_t block = 0; block < query_blocks; block += at_once) {
      back(block, std::min(query_blocks, block + at_once), 0, key_blocks, true, false);
    }
  }
  static std::size_t pitch_of(std::size_t head_size) { return head_size + 3; }  // others' elements, not to be written
};

// Elements of a head without those between its rows, which must still be poison.
template <typename V>
std::string take_rows(const Guarded<V>& all, std::size_t head_size, Guarded<V>& rows) {
  const std::size_t pitch = head_size + 3;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i % pitch >= head_size) {
      if (!all.untouched(i)) return "something was written between rows";
    } else {
      rows[i / pitch * head_size + i % pitch] = all[i];
    }
  }
  return all.guards_intact() ? "" : "something was written next to the rows";
}

}  // namespace

TEST_CASE("tables of vector kernels agree on attention", "[nn][kernels][attention]") {
  struct Shape {
    AttentionMask mask;
    std::size_t head_size;
    double rate;
  };
  // Runs of keys that are seen, of all lengths, and a block without any.
  const AttentionMask few(3, 230, [](std::size_t q, std::size_t k) { return k / 64 != 1 && (k * k / 7 + q) % 5 < 3; });
  const std::vector<Shape> shapes = {
      {AttentionMask::full(1, 1), 1, 0},
      {AttentionMask::causal(65, 65), 8, 0},
      {AttentionMask::full(3, 130), 16, 0},
      {AttentionMask::causal(7, 71, 64), 33, 0.2},
      {AttentionMask::full(130, 63), 64, 0.1},
      {AttentionMask::causal(129, 129), 31, 0.3},
      {AttentionMask::column(3, 9), 127, 0},
      {AttentionMask::row(17, 8), 65, 0.5},
      {AttentionMask::full(15, 17), 5, 0},
      {AttentionMask::causal(100, 100), 128, 0},
      {AttentionMask::full(1, 200), 64, 0},
      {AttentionMask::causal(4, 130, 126), 37, 0},
      {few, 24, 0},
      {few, 24, 0.2},
  };
  for_all_tables([&]<typename V>(const ValueKernels<V>& kernels, const ValueKernels<V>& baseline, V) {
    for (const Shape& shape : shapes) {
      INFO(shape.mask.queries() << " queries, " << shape.mask.keys() << " keys, D = " << shape.head_size);
      const HeadRun<V> is(kernels, shape.mask, shape.head_size, shape.rate);
      const HeadRun<V> should_be(baseline, shape.mask, shape.head_size, shape.rate);
      CHECK(check(is.lse, should_be.lse, std::is_same_v<V, bf16> ? 1e-4 : 1e-5) == "");
      const auto agree = [&](const Guarded<V>& a, const Guarded<V>& b, double limit) {
        const std::size_t n = a.size() / (shape.head_size + 3) * shape.head_size;
        Guarded<V> rows(n), expected(n);
        const std::string problem = take_rows(a, shape.head_size, rows);
        if (!problem.empty()) return problem;
        take_rows(b, shape.head_size, expected);
        return check(rows, expected, limit);
      };
      const double limit = std::is_same_v<V, bf16> ? 4e-2 : 2e-5;
      CHECK(agree(is.out, should_be.out, limit) == "");
      CHECK(agree(is.dv, should_be.dv, limit) == "");
      if (shape.mask.keys() == 1) continue;  // the weight is 1 whatever the scores: only rounding is left of their gradients
      CHECK(agree(is.dq, should_be.dq, limit) == "");
      CHECK(agree(is.dk, should_be.dk, limit) == "");
    }
  });
}

TEST_CASE("attention has the same bits however it is cut into tasks", "[nn][kernels][attention]") {
  struct Shape {
    AttentionMask mask;
    std::size_t head_size;
  };
  // 70 values fill two tiles of 32, where an instruction set has tiles, and a part of a third.
  const Shape shapes[] = {
      {AttentionMask::causal(650, 650), 20}, {AttentionMask::full(300, 600), 20}, {AttentionMask::causal(301, 301), 70}};
  for_all_tables([&]<typename V>(const ValueKernels<V>& kernels, const ValueKernels<V>&, V) {
    for (const auto& [mask, head_size] : shapes) {
      const HeadRun<V> whole(kernels, mask, head_size, 0.1);
      for (const std::size_t at_once : {1, 4, 5}) {
        INFO(at_once << " blocks of 64 at once");
        const HeadRun<V> parts(kernels, mask, head_size, 0.1, at_once);
        CHECK(same(whole.out, parts.out));
        CHECK(same(whole.lse, parts.lse));
        CHECK(same(whole.dq, parts.dq));
        CHECK(same(whole.dk, parts.dk));
        CHECK(same(whole.dv, parts.dv));
      }
    }
  });
}
