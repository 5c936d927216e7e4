#include "layerwise/rounded_weights.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

// The sum of squares that rounding to the nearest multiple of `step`, at most `limit` of them, leaves.
double error_of(std::span<const std::int16_t> row, int step, int limit) {
  double sum = 0;
  for (const double w : row) {
    const double q = std::clamp(std::round(w / step), -1.0 * limit, 1.0 * limit);
    sum += (w - q * step) * (w - q * step);
  }
  return sum;
}

double distance(std::span<const std::int16_t> a, std::span<const std::int16_t> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (double{1} * a[i] - b[i]) * (double{1} * a[i] - b[i]);
  return sum;
}

constexpr std::size_t rows = 5, columns = 100;

// Rows of normal numbers, of all sizes; of a single weight; of zeros; of the largest weights there are.
std::vector<std::int16_t> matrix() {
  std::vector<std::int16_t> weights(rows * columns, 0);
  Random random(1, Stream::test, 0);
  for (std::size_t k = 0; k < columns; ++k) {
    weights[k] = static_cast<std::int16_t>(std::lround(300 * random.normal()));
    weights[columns + k] = static_cast<std::int16_t>(std::lround(2 * random.normal()));
    weights[4 * columns + k] = k % 3 == 0 ? 32767 : -32767;
  }
  weights[2 * columns + 7] = -1234;
  return weights;
}

}  // namespace

TEST_CASE("rows of rounded weights are multiples of the step with the least error") {
  const std::vector<std::int16_t> weights = matrix();
  for (const std::size_t bits : {2U, 3U, 4U, 8U, 15U}) {
    INFO(bits << " bits");
    const int limit = (1 << (bits - 1)) - 1;
    std::vector<std::int16_t> rounded = weights;
    round_rows(rounded, rows, bits);
    for (std::size_t r = 0; r < rows; ++r) {
      INFO("row " << r);
      const std::span<const std::int16_t> row(weights.data() + r * columns, columns),
          now(rounded.data() + r * columns, columns);
      int largest = 0;
      for (const int w : row) largest = std::max(largest, std::abs(w));
      // Never worse than the step that clips nothing, and of normal numbers in few bits clearly better.
      const int plain = std::clamp((largest + limit - 1) / limit, 1, 32767 / limit);
      CHECK(distance(row, now) <= error_of(row, plain, limit));
      if (r == 0 && bits <= 4) CHECK(distance(row, now) < 0.9 * error_of(row, plain, limit));
      double least = error_of(row, plain, limit);
      for (int step = 1; step <= plain; ++step) least = std::min(least, error_of(row, step, limit));
      CHECK(distance(row, now) <= 1.05 * least + 1e-5 * error_of(row, 1, 0));  // of all steps that there are
    }
  }
}

TEST_CASE("rounded weights survive their file") {
  for (const std::size_t bits : {2U, 4U, 15U}) {
    INFO(bits << " bits");
    std::vector<std::int16_t> weights = matrix();
    round_rows(weights, rows, bits);
    TensorFile file;
    put_rounded(file, "w", weights, rows, bits);
    CHECK(file.get("w").shape == std::vector<std::size_t>{rows, bits, 2});
    CHECK(stored_bits(file, "w") == bits);
    CHECK(get_rounded(file, "w", rows, columns, bits) == weights);
    TensorFile again;
    put_rounded(again, "w", get_rounded(file, "w", rows, columns, bits), rows, bits);
    CHECK(difference(file, again) == "");
  }
}

TEST_CASE("rounded weights that cannot be are refused") {
  TensorFile file;
  CHECK(stored_bits(file, "w") == 16);
  file.put("w", {1, 1, 1}, std::vector<std::uint64_t>(1));
  CHECK(message_of(ErrorKind::data, [&] { stored_bits(file, "w"); }) ==
        "w: the shape is [1, 1, 1]; expected rows, 2 to 15 planes and words");
  // Codes of 4 bits: 15 is 7 steps, 0 would be -8.
  file.put("w", {1, 4, 1}, std::vector<std::uint64_t>(4, ~std::uint64_t{0}));
  CHECK(has(message_of(ErrorKind::data, [&] { get_rounded(file, "w", 1, 64, 4); }), "w_step"));
  file.put("w_step", {1}, std::vector<std::int16_t>{4681});
  CHECK(get_rounded(file, "w", 1, 64, 4) == std::vector<std::int16_t>(64, 32767));
  CHECK(has(message_of(ErrorKind::data, [&] { get_rounded(file, "w", 1, 65, 4); }), "[1, 4, 2]"));
  file.put("w_step", {1}, std::vector<std::int16_t>{4682});
  CHECK(message_of(ErrorKind::data, [&] { get_rounded(file, "w", 1, 64, 4); }) ==
        "w: a weight of row 0 is 32774; expected at most 7 steps of 4682, and 32767");
  file.put("w_step", {1}, std::vector<std::int16_t>{0});
  CHECK(message_of(ErrorKind::data, [&] { get_rounded(file, "w", 1, 64, 4); }) ==
        "w_step: the step of row 0 is 0; expected at least 1");
  file.put("w", {1, 4, 1}, std::vector<std::uint64_t>(4));
  file.put("w_step", {1}, std::vector<std::int16_t>{1});
  CHECK(has(message_of(ErrorKind::data, [&] { get_rounded(file, "w", 1, 64, 4); }), "a weight of row 0 is -8"));
}

TEST_CASE("the step of a row is what all its weights are multiples of, and one that 16 bits hold") {
  const auto step = [](const std::vector<std::int16_t>& row) { return step_of(row); };
  CHECK(step({0, 0, 0}) == 1);
  CHECK(step({-6, 0, 9}) == 3);
  CHECK(step({-1234, 0}) == 1234);
  CHECK(step({-32768, 0}) == 1);
  const BitPlanes planes = bit_planes(std::vector<std::int16_t>{-32768, 0, 0, 32767}, 2, 16);
  CHECK(planes.words == 1);
  CHECK(planes.steps == std::vector<std::int16_t>{1, 32767});
  for (std::size_t b = 0; b < 16; ++b) {
    INFO("bit " << b);
    CHECK(planes.planes[b] == (b == 15 ? 2 : 0));                    // codes 0 and 32768
    CHECK(planes.planes[16 + b] == (b == 15 ? 3 : b == 0 ? 2 : 0));  // 32768 and 32769
  }
}
