// The vector kernels of the backend "cpu": every table that this CPU supports against plain loops in double precision, at sizes
// around vectors; what must be the same bits for all tables or any number of threads.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numbers>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/isa.h"
#include "core/random.h"
#include "nn/activation.h"
#include "nn/bit_pack.h"
#include "nn/cpu/kernel_tables.h"
#include "nn/dropout.h"
#include "tests/nn/vector_tables.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/compile_flags.h"
#include "tests/support/guarded.h"

using namespace bitloom;
using namespace bitloom::nn;
using bitloom::test::compare;
using bitloom::test::Guarded;
using bitloom::test::supported_vector_kernels;

namespace {

const std::vector<std::size_t> sizes = {1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1025};

float widened(float x) { return x; }
float widened(bf16 x) { return to_float(x); }
template <typename V>
V narrowed(double x) {
  if constexpr (std::is_same_v<V, bf16>) {
    return to_bf16(static_cast<float>(x));
  } else {
    return static_cast<float>(x);
  }
}
template <typename V>
constexpr double limit = std::is_same_v<V, bf16> ? 8e-3 : 2e-6;

// Normal numbers as V, guarded like outputs so that reading beyond them shows under the address sanitizer at the latest.
template <typename V>
Guarded<V> normal(std::size_t n, std::uint64_t seed, double scale = 1) {
  Guarded<V> values(n);
  Random random(seed, Stream::test);
  for (std::size_t i = 0; i < n; ++i) values[i] = narrowed<V>(scale * random.normal());
  return values;
}
template <typename V>
std::vector<double> numbers(const Guarded<V>& values) {
  std::vector<double> result;
  for (std::size_t i = 0; i < values.size(); ++i) result.push_back(static_cast<double>(widened(values[i])));
  return result;
}
template <typename V>
std::string check(const Guarded<V>& actual, const std::vector<double>& expected, double error = limit<V>) {
  if (!actual.guards_intact()) return "something was written next to the output";
  return compare(numbers(actual), expected, error);
}
template <typename V>
bool same(const Guarded<V>& a, const Guarded<V>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(V)) == 0;
}

// test(kernels of V) for both types and every table.
template <typename Test>
void for_all_tables(const Test& test) {
  for (const VectorKernels* table : supported_vector_kernels()) {
    INFO(table->name << ", f32");
    test(table->of<float>(), float{});
  }
  for (const VectorKernels* table : supported_vector_kernels()) {
    INFO(table->name << ", bf16");
    test(table->of<bf16>(), bf16{});
  }
}

}  // namespace

TEST_CASE("the table of vector kernels in use is the forced one, or else the best", "[nn][kernels]") {
  const std::vector<const VectorKernels*> tables = supported_vector_kernels();
  REQUIRE(!tables.empty());
  CHECK(tables.back() == &isa_table(all_vector_kernels(), "ref"));
  CHECK(tables.back() == &baseline_vector_kernels);
  const char* forced = std::getenv("BITLOOM_ISA");
  const bool is_forced = forced != nullptr && *forced != '\0';
  CHECK(&vector_kernels() == (is_forced ? &isa_table(all_vector_kernels(), forced) : tables.front()));
  for (const char* unknown : {"sse9", ""}) {
    try {
      isa_table(all_vector_kernels(), unknown);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      CHECK(std::string(error.what()).find("unknown instruction set") != std::string::npos);
    }
  }
}

TEST_CASE("each table of vector kernels asks for the features that its file is compiled with", "[nn][kernels]") {
  for (const IsaTable<VectorKernels>& one : all_vector_kernels()) {
    INFO(one.name);
    const std::string file = "src/nn/cpu/isa/" + std::string(one.table->name) + ".cpp";
    const std::set<std::string> asked = test::as_machine_flags(one.features), compiled = test::machine_flags(file);
    CHECK(std::includes(asked.begin(), asked.end(), compiled.begin(), compiled.end()));
    // A name without a file of its own has the table of another, and asks for more.
    if (std::string(one.name) == one.table->name) CHECK(asked == compiled);
    REQUIRE_NOTHROW(missing_features(one.features));  // all are known
  }
}

TEST_CASE("vector kernels: sums and scaled sums", "[nn][kernels]") {
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, V) {
    for (const std::size_t n : sizes) {
      INFO("n = " << n);
      const Guarded<V> a = normal<V>(n, 1), b = normal<V>(n, 2);
      const Guarded<float> wide = normal<float>(n, 3);
      const Guarded<bf16> narrow = normal<bf16>(n, 4);
      Guarded<V> y(n);
      kernels.add(a.data(), b.data(), y.data(), n);
      std::vector<double> expected(n);
      for (std::size_t i = 0; i < n; ++i) expected[i] = static_cast<double>(widened(a[i])) + widened(b[i]);
      CHECK(check(y, expected) == "");
      // beta 0: the poison in y, some of it NaN, is gone. A conversion is exact to the bit.
      Guarded<V> converted(n);
      kernels.scale_add_f32(1, wide.data(), 0, converted.data(), n);
      bool is_exact = converted.guards_intact();
      for (std::size_t i = 0; i < n; ++i) is_exact &= converted[i] == narrowed<V>(static_cast<double>(wide[i]));
      CHECK(is_exact);
      kernels.scale_add_bf16(-0.5F, narrow.data(), 2, converted.data(), n);
      for (std::size_t i = 0; i < n; ++i) {
        expected[i] = -0.5 * widened(narrow[i]) + 2.0 * widened(narrowed<V>(static_cast<double>(wide[i])));
      }
      CHECK(check(converted, expected) == "");
    }
  });
}

TEST_CASE("vector kernels: bf16 is rounded to the nearest even, NaN stays NaN", "[nn][kernels]") {
  std::vector<float> x;
  for (const std::uint32_t upper : {0U, 1U, 0x0080U, 0x3F80U, 0x3F81U, 0x7F7FU, 0x7F80U, 0x7FC0U, 0x7F81U, 0xBF81U, 0xFF80U}) {
    for (const std::uint32_t lower : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      x.push_back(std::bit_cast<float>((upper << 16U) | lower));
    }
  }
  for (const VectorKernels* table : supported_vector_kernels()) {
    INFO(table->name);
    const std::string name = table->name;
    const bool narrows_natively = name == "avx512_bf16" || name == "amx";
    Guarded<bf16> y(x.size());
    table->on_bf16.scale_add_f32(1, x.data(), 0, y.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      INFO("bits " << std::hex << std::bit_cast<std::uint32_t>(x[i]) << " became " << y[i].bits);
      if (std::isnan(x[i])) {
        CHECK(std::isnan(to_float(y[i])));
      } else if (narrows_natively && x[i] != 0 && !std::isnormal(x[i]) && !std::isinf(x[i])) {
        CHECK(to_float(y[i]) == 0);  // the instruction takes such numbers for 0
      } else {
        CHECK(y[i] == to_bf16(x[i]));
      }
    }
  }
}

TEST_CASE("vector kernels: activations are within a few units of the last place, in both tails", "[nn][kernels]") {
  REQUIRE(activations().size() == point_functions);
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, V) {
    std::vector<double> points;
    for (double x = -30; x <= 30; x += 1.0 / 128) points.push_back(x);
    for (double x = 1e-6; x < 0.1; x *= 1.5) points.insert(points.end(), {x, -x});
    Guarded<V> x(points.size()), dy(points.size()), y(points.size()), dx(points.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = narrowed<V>(points[i]);
    for (std::size_t i = 0; i < x.size(); ++i) dy[i] = narrowed<V>(i % 2 == 0 ? 2 : -0.5);
    for (std::size_t f = 0; f < point_functions; ++f) {
      const Activation& activation = activations()[f];
      REQUIRE(std::string(activation.name) == point_function_names[f]);
      INFO(activation.name);
      y.refill();
      dx.refill();
      kernels.activate[f](x.data(), y.data(), x.size());
      kernels.activate_backward[f](x.data(), dy.data(), dx.data(), x.size());
      CHECK(y.guards_intact());
      CHECK(dx.guards_intact());
      double worst = 0, worst_slope = 0, at = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double value = activation.value(static_cast<double>(widened(x[i])));
        const double slope = activation.derivative(static_cast<double>(widened(x[i])));
        // Relative, until the exponential is below the smallest normal number and counts as 0; gelu_tanh forms its exponent
        // from a cubic, which costs digits in its far tail. Slopes cross 0, so theirs is absolute.
        const double far = std::string(activation.name) == "gelu_tanh" ? 1e-9 : 1e-32;
        const double error = std::abs(static_cast<double>(widened(y[i])) - value) / std::max(std::abs(value), far);
        if (!(error <= worst)) {
          worst = error;
          at = static_cast<double>(widened(x[i]));
        }
        const double slope_error = std::abs(static_cast<double>(widened(dx[i])) / static_cast<double>(widened(dy[i])) - slope);
        if (!(slope_error <= worst_slope)) worst_slope = slope_error;
      }
      INFO("worst at " << at);
      CHECK(worst < (std::is_same_v<V, bf16> ? 4e-3 : 2e-6));
      CHECK(worst_slope < (std::is_same_v<V, bf16> ? 6e-3 : 6e-7));
    }
    // Limits instead of NaN at infinities, and NaN stays NaN.
    const float infinity = std::numeric_limits<float>::infinity();
    for (std::size_t f = 0; f < point_functions; ++f) {
      INFO(point_function_names[f]);
      const V special[4] = {narrowed<V>(static_cast<double>(infinity)), narrowed<V>(static_cast<double>(-infinity)),
                            narrowed<V>(std::numeric_limits<double>::quiet_NaN()), narrowed<V>(0)};
      V values[4];
      kernels.activate[f](special, values, 4);
      for (std::size_t i = 0; i < 4; ++i) {
        const double expected = activations()[f].value(static_cast<double>(widened(special[i])));
        const auto actual = static_cast<double>(widened(values[i]));
        CHECK((std::isnan(expected) ? std::isnan(actual)
                                    : actual == expected || std::abs(actual - expected) <= 8e-3 * std::abs(expected)));
      }
    }
  });
}

TEST_CASE("vector kernels: few-bit stashes are those of BitPacker, and come back", "[nn][kernels]") {
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, V) {
    for (unsigned bits = 1; bits <= 8; ++bits) {
      for (const std::size_t n : sizes) {
        INFO(bits << " bits, n = " << n);
        const bool even = bits % 2 == 0;
        const std::size_t levels = std::size_t{1} << bits;
        std::vector<float> boundaries;
        for (std::size_t i = 1; i < levels; ++i) {
          const auto place = static_cast<float>(i) / static_cast<float>(levels);
          boundaries.push_back(even ? 3 * place : 6 * place - 3);
        }
        Guarded<V> x = normal<V>(n, bits);
        x[0] = narrowed<V>(static_cast<double>(boundaries[0]));  // on a boundary: the interval on its left
        if (n > 2) x[2] = narrowed<V>(std::numeric_limits<double>::quiet_NaN());
        std::vector<std::uint8_t> expected(packed_bytes(n, bits));
        std::vector<double> slopes(n);
        const Guarded<V> dy = normal<V>(n, 99);
        float table[256] = {};
        for (std::size_t i = 0; i < levels; ++i) table[i] = 1 + static_cast<float>(i);
        BitPacker packer(expected.data(), bits);
        for (std::size_t i = 0; i < n; ++i) {
          const float place = even ? std::fabs(widened(x[i])) : widened(x[i]);
          std::uint32_t below = 0;
          for (const float boundary : boundaries) below += boundary < place ? 1 : 0;
          packer.put(below);
          slopes[i] = static_cast<double>(table[below] * widened(dy[i]));
        }
        packer.finish();
        Guarded<std::uint8_t> stash(expected.size());
        const std::size_t f = bits % point_functions;
        Guarded<V> y(n), plain(n);
        kernels.activate_few_bit[f](x.data(), y.data(), n, boundaries.data(), bits, even, stash.data());
        CHECK((stash.guards_intact() && y.guards_intact()));
        CHECK(std::equal(expected.begin(), expected.end(), stash.data()));
        kernels.activate[f](x.data(), plain.data(), n);
        CHECK(std::memcmp(y.data(), plain.data(), n * sizeof(V)) == 0);
        Guarded<V> dx(n);
        kernels.few_bit_backward(stash.data(), table, bits, dy.data(), dx.data(), n);
        CHECK(check(dx, slopes) == "");
      }
    }
  });
}

TEST_CASE("vector kernels: pooling takes the first of the largest, and any NaN", "[nn][kernels]") {
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, V) {
    for (const std::size_t channels : {1U, 3U, 15U, 16U, 17U, 33U, 64U}) {
      constexpr std::size_t k = 3, windows = 5;
      const std::size_t n = windows * channels, row = k * n;
      Guarded<V> x(k * row), y(n), dx(k * row), sums(n);
      Guarded<std::uint8_t> which(n);
      Random random(channels, Stream::test);  // few values, so that there are equals
      for (V& each : x.span()) each = narrowed<V>(static_cast<double>(random.below(6)) - 3);
      x[1] = x[n] = narrowed<V>(std::numeric_limits<double>::quiet_NaN());
      kernels.max_pool_row(k, x.data(), row, y.data(), which.data(), windows, channels);
      kernels.max_pool_backward_row(k, y.data(), which.data(), dx.data(), row, windows, channels);
      kernels.sum_windows_row(k, dx.data(), sums.data(), windows, channels);
      bool right = true;
      for (std::size_t i = 0; i < n; ++i) {
        const auto at = [&](std::size_t place) {
          return place / k * row + (i / channels * k + place % k) * channels + i % channels;
        };
        std::size_t best = 0;
        for (std::size_t place = 1; place < k * k; ++place) {
          const float value = widened(x[at(place)]), before = widened(x[at(best)]);
          if (value > before || (std::isnan(value) && !std::isnan(before))) best = place;
        }
        right &= which[i] == best;
        const auto same = [](V a, V b) { return a == b || (std::isnan(widened(a)) && std::isnan(widened(b))); };
        right &= same(y[i], x[at(best)]) && same(sums[i], y[i]);
        for (std::size_t place = 0; place < k * k; ++place) {
          right &= place == best ? same(dx[at(place)], y[i]) : widened(dx[at(place)]) == 0;
        }
      }
      INFO(channels << " channels");
      CHECK((right && y.guards_intact() && which.guards_intact() && dx.guards_intact() && sums.guards_intact()));
    }
  });
}

TEST_CASE("vector kernels: dropout drops the elements that dropout.h says", "[nn][kernels]") {
  for_all_tables([]<typename V>(const ValueKernels<V>& kernels, V) {
    for (const std::uint64_t first_group : {std::uint64_t{0}, std::uint64_t{0xFFFFFFFA}}) {  // across a carry
      for (const double rate : {0.0, 0.1, 0.5, 0.999}) {
        const std::size_t n = 1400 + static_cast<std::size_t>(rate * 10);
        const std::uint32_t threshold = dropout_threshold(rate);
        const DropoutKey key = {0x123456789ABCDEF0, 77, threshold, static_cast<float>(dropout_factor(threshold))};
        Guarded<V> x(n), y(n);
        for (std::size_t i = 0; i < n; ++i) x[i] = narrowed<V>(1);
        kernels.dropout(key, first_group, x.data(), y.data(), n);
        bool all = y.guards_intact();
        for (std::size_t i = 0; i < n; ++i) {
          const bool dropped = is_dropped(key.seed, key.site, threshold, 8 * first_group + i);
          all &= dropped ? widened(y[i]) == 0 : y[i] == narrowed<V>(static_cast<double>(key.factor));
        }
        INFO("rate " << rate << ", group " << first_group);
        CHECK(all);
      }
    }
  });
}

TEST_CASE("vector kernels: rows that are large numbers plus little keep their variance", "[nn][kernels]") {
  for (const VectorKernels* table : supported_vector_kernels()) {
    for (const std::size_t columns : sizes) {
      if (columns == 1) continue;
      INFO(table->name << ", C = " << columns);
      Guarded<float> x = normal<float>(2 * columns, 5);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += 4096;  // mean / deviation = 4096
      const std::vector<float> gain(columns, 1.0F), bias(columns, 0.0F);
      Guarded<float> y(x.size()), mean(2), rstd(2), column_mean(columns), squares(columns);
      table->on_f32.layer_norm(x.data(), gain.data(), bias.data(), 1e-5F, y.data(), mean.data(), rstd.data(), 2, columns);
      std::vector<double> means(2), rstds(2);
      for (std::size_t r = 0; r < 2; ++r) {
        for (std::size_t c = 0; c < columns; ++c)
          means[r] += static_cast<double>(x[r * columns + c]) / static_cast<double>(columns);
        double sum = 0;
        for (std::size_t c = 0; c < columns; ++c) sum += std::pow(static_cast<double>(x[r * columns + c]) - means[r], 2);
        rstds[r] = 1 / std::sqrt(sum / static_cast<double>(columns) + 1e-5);
      }
      CHECK(check(mean, means, 1e-6) == "");
      CHECK(check(rstd, rstds, 1e-4) == "");
      table->on_f32.column_moments(x.data(), 2, columns, column_mean.data(), squares.data());
      std::vector<double> expected(columns);
      for (std::size_t c = 0; c < columns; ++c) {
        expected[c] = std::pow(static_cast<double>(x[c]) - static_cast<double>(x[columns + c]), 2) / 2;
      }
      CHECK(check(squares, expected, 1e-4) == "");
    }
  }
}

TEST_CASE("vector kernels: softmax and cross-entropy of rows with infinities", "[nn][kernels]") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const VectorKernels* table : supported_vector_kernels()) {
    INFO(table->name);
    // The first 1,100 columns, more than the piece of a row that is looked at at once, are -infinity.
    const std::size_t columns = 2200;
    Guarded<float> x(columns), y(columns), loss(1);
    for (std::size_t c = 0; c < columns; ++c) x[c] = c < 1100 ? -infinity : 500.0F;
    table->on_f32.softmax(x.data(), y.data(), 1, columns);
    std::vector<double> expected(columns);
    for (std::size_t c = 1100; c < columns; ++c) expected[c] = 1.0 / 1100;
    CHECK(check(y, expected, 1e-6) == "");
    const std::int32_t target = 1500;
    table->on_f32.cross_entropy(x.data(), &target, columns, columns, {2, 0}, loss.data(), y.data(), 1);
    for (std::size_t c = 1100; c < columns; ++c) expected[c] = 2.0 / 1100 - (c == 1500 ? 2 : 0);
    CHECK(check(y, expected, 1e-6) == "");
    CHECK(check(loss, {std::log(1100.0)}, 1e-6) == "");
    // NaN anywhere is NaN everywhere.
    x[3] = std::numeric_limits<float>::quiet_NaN();
    table->on_f32.softmax(x.data(), y.data(), 1, columns);
    CHECK(std::all_of(y.data(), y.data() + columns, [](float p) { return std::isnan(p); }));
  }
}

TEST_CASE("vector kernels: the sum of squares has the same bits in every table", "[nn][kernels]") {
  const VectorKernels& baseline = *supported_vector_kernels().back();
  for_all_tables([&]<typename V>(const ValueKernels<V>& kernels, V) {
    for (const std::size_t n : sizes) {
      INFO("n = " << n);
      const Guarded<V> x = normal<V>(n, n);
      double expected = 0;
      for (const double each : numbers(x)) expected += each * each;
      CHECK(std::abs(kernels.sum_of_squares(x.data(), n) - expected) <= 1e-13 * expected);
      CHECK(kernels.sum_of_squares(x.data(), n) == baseline.of<V>().sum_of_squares(x.data(), n));
    }
  });
}

TEST_CASE("vector kernels: weight decay below 2^-24 is not lost", "[nn][kernels]") {
  for (const VectorKernels* table : supported_vector_kernels()) {
    INFO(table->name);
    Guarded<float> value(33), gradient(33), mean(33), variance(33);
    for (std::size_t i = 0; i < 33; ++i) {
      value[i] = static_cast<float>(std::exp2(static_cast<double>(i) - 16));
      gradient[i] = mean[i] = variance[i] = 0;
    }
    AdamWFactors factors;
    factors.epsilon = 1e-8F;
    factors.decay = 9e-8F;
    table->on_f32.adamw(factors, value.data(), gradient.data(), mean.data(), variance.data(), nullptr, 33);
    // 1 - 9e-8 would be rounded to 1 - 1.19e-7; of a power of two the step is 1.5 units, rounded.
    for (std::size_t i = 0; i < 33; ++i) {
      const double before = std::exp2(static_cast<double>(i) - 16);
      CHECK(value[i] == static_cast<float>(before - before * static_cast<double>(9e-8F)));
    }
  }
}
