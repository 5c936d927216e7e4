// Schedules and the few elementary functions they need, as fixed sequences of IEEE operations: the C library's own cos and pow
// round differently from one processor to the next.
#pragma once

#include <cstdint>

namespace bitloom {

// base^exponent by repeated squaring.
double power(double base, std::uint64_t exponent);

// cos(pi x) for 0 <= x <= 1, absolute error below 1e-9.
double cos_pi(double x);

// 1 at progress 0, falling along half a cosine to `floor` at progress 1 and beyond (Loshchilov, Hutter 2017).
double cosine_decay(double progress, double floor);

}  // namespace bitloom
