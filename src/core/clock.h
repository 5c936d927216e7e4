// Time that only goes forward.
#pragma once

#include <chrono>

namespace bitloom {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace bitloom
