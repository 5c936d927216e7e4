// Who owns which images, and in which order they come.
#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "layerwise/workers.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using bitloom::layerwise::Workers;
using bitloom::test::message_of;

TEST_CASE("every worker brings its own images, each at most once in an epoch", "[workers]") {
  for (const std::size_t count : {1U, 2U, 3U, 7U, 16U, 50U}) {
    for (const std::size_t images : {50U, 150U, 997U}) {
      CAPTURE(count, images);
      constexpr std::size_t batch = 50;
      Workers workers(count, images, batch, 3);
      std::size_t places = 0;
      for (std::size_t w = 0; w < count; ++w) {
        CHECK(workers.first_place(w) == places);
        CHECK(workers.places(w) > 0);
        places += workers.places(w);
      }
      CHECK(places == batch);
      std::vector<std::uint32_t> first;
      workers.order(1, 0, first);
      std::vector<std::uint32_t> second;
      workers.order(1, 1, second);
      CHECK(first.size() == images / batch * batch);
      CHECK(std::set<std::uint32_t>(first.begin(), first.end()).size() == first.size());
      if (images > count) CHECK(first != second);
      // An image that one worker has in one epoch no other has in another.
      const auto owner = [&](const std::vector<std::uint32_t>& order, std::uint32_t image) {
        const auto place = static_cast<std::size_t>(std::find(order.begin(), order.end(), image) - order.begin());
        for (std::size_t w = 0; place < order.size() && w < count; ++w) {
          if (place % batch >= workers.first_place(w) && place % batch < workers.first_place(w) + workers.places(w)) return w;
        }
        return count;
      };
      for (std::uint32_t image = 0; image < images; ++image) {
        const std::size_t a = owner(first, image);
        const std::size_t b = owner(second, image);
        if (a != count && b != count) CHECK(a == b);
      }
    }
  }
}

TEST_CASE("ranks carry all workers, each once", "[workers]") {
  const Workers workers(64, 1000, 128, 1);
  for (const std::size_t ranks : {1U, 3U, 64U}) {
    std::size_t next = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto [first, last] = workers.on_rank(rank, ranks);
      CHECK(first == next);
      CHECK(last > first);
      next = last;
    }
    CHECK(next == 64);
  }
}

TEST_CASE("one worker brings what a run without workers would", "[workers]") {
  Workers workers(1, 100, 30, 5);
  std::vector<std::uint32_t> order;
  workers.order(9, 4, order);
  std::vector<std::uint32_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0U);
  shuffle(expected.data(), expected.size(), Random(5, Stream::shuffle, 9, 4));
  expected.resize(90);
  CHECK(order == expected);
}

TEST_CASE("a worker without a place is refused", "[workers]") {
  CHECK(message_of(ErrorKind::usage, [] { Workers(31, 100, 30, 1); }) ==
        "`workers`: 31 logical workers cannot share minibatches of 30 images; expected 1 to 30");
  CHECK(message_of(ErrorKind::usage, [] { Workers(0, 100, 30, 1); }).starts_with("`workers`: 0 "));
}
