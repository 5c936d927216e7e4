#include <algorithm>
#include <chrono>

#include "simd/kernels.h"

namespace bitloom::simd {

double measure_peak(const Kernels& table, double seconds) {
  using Clock = std::chrono::steady_clock;
  // Rounds of about a millisecond; the fastest counts, since what else runs on the core can only slow one down.
  std::uint64_t iterations = 1 << 10;
  double round = 0;
  double best = 0;
  const auto start = Clock::now();
  do {
    const auto before = Clock::now();
    const std::uint64_t macs = table.peak_loop(iterations);
    round = std::chrono::duration<double>(Clock::now() - before).count();
    if (round < 1e-3) {
      iterations *= 2;
    } else {
      best = std::max(best, static_cast<double>(macs) / round);
    }
  } while (best == 0 || std::chrono::duration<double>(Clock::now() - start).count() < seconds);
  return best;
}

}  // namespace bitloom::simd
