// Whether factors of gradients are worth their time, by numbers as they are measured.
#include "train/parallel/compression_times.h"

#include "tests/support/catch.h"

using namespace bitloom::train;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20U;

// A step that computes for so long, waits for 1 MiB of sums, and saves the rest of `whole` bytes.
CompressionTimes step(double computing, double waiting, std::uint64_t whole) { return {1, computing, waiting, mib, whole}; }

}  // namespace

TEST_CASE("factors cost more than they save where computing them takes longer than the saved bytes", "[train][power_sgd]") {
  // A slow link: 1 MiB takes a second, so 9 MiB would have taken nine.
  CHECK(saved_seconds(step(0.5, 1, 10 * mib)) == Approx(9));
  CHECK_FALSE(costs_more_than_it_saves(step(0.5, 1, 10 * mib)));
  CHECK_FALSE(costs_more_than_it_saves(step(8.9, 1, 10 * mib)));
  CHECK(costs_more_than_it_saves(step(9.1, 1, 10 * mib)));
  // A fast one, and a rank that saves a tenth.
  CHECK_FALSE(costs_more_than_it_saves(step(0.5, 0.06, 10 * mib)));
  CHECK(costs_more_than_it_saves(step(0.5, 0.05, 10 * mib)));
  CHECK(costs_more_than_it_saves(step(0.5, 1, mib + mib / 10)));
  // Nobody waits: saved bytes would have taken no time either.
  CHECK(saved_seconds(step(0.001, 0, 10 * mib)) == 0);
  CHECK(costs_more_than_it_saves(step(0.001, 0, 10 * mib)));
  // Nothing is saved, or nothing is sent, whatever was measured.
  CHECK_FALSE(costs_more_than_it_saves(step(1, 1, mib)));
  CHECK_FALSE(costs_more_than_it_saves({1, 1, 1, 0, 10 * mib}));
  CHECK_FALSE(costs_more_than_it_saves({}));
}

TEST_CASE("times of compression add up over steps", "[train][power_sgd]") {
  CompressionTimes sum;
  sum.add(step(0.25, 1, 3 * mib));
  sum.add(step(0.5, 2, 3 * mib));
  CHECK(sum.steps == 2);
  CHECK(sum.computing_seconds == 0.75);
  CHECK(sum.waiting_seconds == 3);
  CHECK(sum.sent_bytes == 2 * mib);
  CHECK(sum.whole_bytes == 6 * mib);
  CHECK(saved_seconds(sum) == Approx(6));  // of both
}
