// Loops over pieces by threads, of which some fail.
#include "nn/cpu/parallel.h"

#include <atomic>
#include <cstddef>
#include <new>

#include "tests/support/catch.h"
#include "tests/support/threads.h"

using namespace bitloom;
using namespace bitloom::nn;

// Exceptions in parallel regions, for lack of memory say, ended the program.
TEST_CASE("exceptions of pieces leave their loop, after all other pieces", "[nn][threads]") {
  const test::Threads threads(3);
  for (const bool in_parallel : {false, true}) {
    INFO(in_parallel);
    std::atomic<int> done{0};
    const auto work = [&](std::size_t piece) {
      if (piece % 3 == 1) throw std::bad_alloc();
      ++done;
    };
    CHECK_THROWS_AS(for_pieces(9, in_parallel, work), std::bad_alloc);
    CHECK(done.load() == 6);
    CHECK_THROWS_AS(for_uneven_pieces(9, in_parallel, work), std::bad_alloc);
    CHECK(done.load() == 12);
  }
  std::atomic<std::size_t> elements{0};
  CHECK_THROWS_AS(for_rows(1000, 1000, 4,
                           [&](std::size_t first, std::size_t rows) {
                             elements += rows * 1000;
                             if (first == 0) throw std::bad_alloc();
                           }),
                  std::bad_alloc);
  CHECK(elements.load() == std::size_t{1000} * 1000);
}
