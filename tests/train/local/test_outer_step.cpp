// The step of shared parameters: descent by a sparse mean, with Nesterov's momentum.
#include "train/local/outer_step.h"

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

constexpr auto one = static_cast<std::int64_t>(1 / difference_unit);

OuterParameters parameters(const OuterOptions& options) { return {{{"w", {1, 2, 3}}, {"b", {0}}}, options}; }

std::vector<float> values(const OuterParameters& all, std::size_t p) { return {all.values(p).begin(), all.values(p).end()}; }

}  // namespace

TEST_CASE("with rate 1 and no momentum the shared parameters become the mean", "[local]") {
  OuterParameters all = parameters({1, 0});
  // Two workers of weights 1 and 3, whose own values of element 2 are 2 and 5.
  all.step(0, {3, {2}, {1 * one + 3 * -2 * one}}, 4);
  CHECK(values(all, 0) == std::vector<float>{1, 2, 3 + 1.25F});
  CHECK(values(all, 1) == std::vector<float>{0});
}

TEST_CASE("momentum is Nesterov's, of elements that no message has too", "[local]") {
  OuterParameters all = parameters({0.5, 0.9});
  double value = 2, momentum = 0;
  for (const double difference : {1.0, 0.0, -0.5, 0.0}) {
    mpi::SparseVector sum{3, {}, {}};
    if (difference != 0) {
      sum.index = {1};
      sum.value = {static_cast<std::int64_t>(difference / difference_unit)};
    }
    all.step(0, sum, 1);
    momentum = 0.9 * momentum + difference;
    value -= 0.5 * (difference + 0.9 * momentum);
  }
  CHECK(compare(values(all, 0), std::vector<float>{1, static_cast<float>(value), 3}, 1e-6) == "");
}

TEST_CASE("shared parameters and their momentum are saved and loaded", "[local]") {
  OuterParameters all = parameters({0.5, 0.9}), other = parameters({0.5, 0.9}), plain = parameters({0.5, 0});
  const mpi::SparseVector sum{3, {0, 2}, {one, -one}};
  all.step(0, sum, 1);
  TensorFile file;
  all.save(file);
  other.load(file);
  CHECK(values(other, 0) == values(all, 0));
  all.step(0, sum, 2);
  other.step(0, sum, 2);
  CHECK(values(other, 0) == values(all, 0));
  TensorFile without;
  plain.save(without);
  CHECK(has(message_of(ErrorKind::data, [&] { other.load(without); }), "outer.momentum.w"));
  CHECK(message_of(ErrorKind::data, [&] { all.step(1, sum, 1); }) == "a difference of 3 elements for 'b'; expected 1");
}
