// Schedules and the few elementary functions they need, as fixed sequences of IEEE operations: the C library's own cos and pow
// round differently from one processor to the next.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom {

// base^exponent by repeated squaring.
double power(double base, std::uint64_t exponent);

// cos(pi x) for 0 <= x <= 1, absolute error below 1e-9.
double cos_pi(double x);

// 1 at progress 0, falling along half a cosine to `floor` at progress 1 and beyond (Loshchilov, Hutter 2017).
double cosine_decay(double progress, double floor);

// From `from` at step 0 along half a cosine to `to` at step `steps`, where it stays (Ramesh et al. 2021, appendix A.2).
double cosine_between(double from, double to, std::uint64_t step, std::uint64_t steps);

// The learning rate of an optimiser step, counted from 0.
struct RateSchedule {
  double peak = 1e-3;
  // It rises linearly to the peak, which step `warmup` has (Goyal et al. 2017); step 0 already learns: at `start` or, where
  // that is 0, at peak / (warmup + 1).
  std::uint64_t warmup = 0;
  // After the warm-up along half a cosine to `floor` at step warmup + decay, where it stays (Shoeybi et al. 2019, section 4.1),
  // or linearly; 0: it stays at the peak.
  std::uint64_t decay = 0;
  double floor = 0;
  // Halved at each of these steps, which ascend (Ramesh et al. 2021, appendix B.2).
  std::vector<std::uint64_t> halvings = {};
  double start = 0;
  bool is_linear = false;

  double at(std::uint64_t step) const;
};

// A course of the learning rate over a run.
struct NamedCourse {
  const char* name;
  // Makes the course of `steps` steps, at least 1, to this peak.
  RateSchedule (*make)(double peak, std::uint64_t steps);
};
// "triangle": up from a fifth in 23% of the steps, down to 7% (Jordan 2024); "cosine": a twentieth of warm-up, down to 0;
// "constant".
std::vector<std::string> rate_course_names();
// Throws Error(usage) that names the field `schedule`.
const NamedCourse& find_rate_course(std::string_view name);

// Throws Error(usage), which names the option, for rates that are not 0 <= floor, start <= peak and finite.
void check(const RateSchedule& schedule);

}  // namespace bitloom
