// Sums of floats over ranks: in the order of ranks, with the same bits everywhere.
#include "mpi/float_sum.h"

#include <cmath>
#include <vector>

#include "core/random.h"
#include "tests/support/catch.h"
#include "tests/support/mpi.h"

namespace bitloom::mpi {
namespace {

// Numbers of sizes so different that every order of adding gives other bits.
template <typename T>
std::vector<T> numbers_of(int rank, std::size_t n) {
  Random random(static_cast<std::uint64_t>(rank) + 1, Stream::test);
  std::vector<T> numbers(n);
  for (T& x : numbers) x = static_cast<T>(std::exp(8 * random.normal()) * random.normal());
  return numbers;
}

template <typename T>
void check_sum(std::size_t n) {
  Comm& world = test::world();
  std::vector<double> expected(n, 0.0);
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::vector<T> terms = numbers_of<T>(rank, n);
    for (std::size_t i = 0; i < n; ++i) expected[i] += static_cast<double>(terms[i]);
  }
  std::vector<T> values = numbers_of<T>(world.rank(), n);
  sum_in_order(world, values);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < n; ++i) wrong += values[i] == static_cast<T>(expected[i]) ? 0 : 1;
  INFO(n);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("floats are summed in the order of ranks", "[comm]") {
  for (const std::size_t n : {0U, 1U, 2U, 3U, 7U, 1000U, 4500001U}) check_sum<float>(n);
  for (const std::size_t n : {0U, 1U, 5U, 1001U}) check_sum<double>(n);
}

TEST_CASE("sums of floats do not mix with messages around them", "[comm]") {
  Comm& world = test::world();
  if (world.size() == 1) return;
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + world.size() - 1) % world.size();
  for (int i = 0; i < 3; ++i) {
    world.send(next, {static_cast<std::byte>(i)});
    CHECK(world.receive(before) == std::vector<std::byte>{static_cast<std::byte>(i)});
    std::vector<float> ones(100, 1.0F);
    sum_in_order(world, ones);
    CHECK(ones == std::vector<float>(100, static_cast<float>(world.size())));
  }
}

}  // namespace bitloom::mpi
