#include "optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"

namespace bitloom {

double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) {
    if ((exponent & 1U) != 0) result *= base;
  }
  return result;
}

double cos_pi(double x) {
  // cos(pi x) = -cos(pi (1 - x)) brings x to [0, 1/2]; there the Taylor series to the 16th power is good to 1e-11.
  const bool flipped = x > 0.5;
  const double y = 3.14159265358979323846 * (flipped ? 1 - x : x);
  const double z = y * y;
  double term = 1;
  double sum = 1;
  for (int i = 1; i <= 8; ++i) {
    term *= -z / ((2 * i - 1) * (2 * i));
    sum += term;
  }
  return flipped ? -sum : sum;
}

double cosine_decay(double progress, double floor) {
  if (!(progress > 0)) return 1;
  if (progress >= 1) return floor;
  return floor + (1 - floor) * 0.5 * (1 + cos_pi(progress));
}

double cosine_between(double from, double to, std::uint64_t step, std::uint64_t steps) {
  const double progress = steps == 0 ? 1 : static_cast<double>(step) / static_cast<double>(steps);
  return to + (from - to) * cosine_decay(progress, 0);
}

double RateSchedule::at(std::uint64_t step) const {
  double rate = peak;
  if (step < warmup) {
    rate = start > 0 ? start + (peak - start) * static_cast<double>(step) / static_cast<double>(warmup)
                     : peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  } else if (decay != 0) {
    const std::uint64_t done = std::min(step - warmup, decay);
    rate = is_linear ? peak + (floor - peak) * static_cast<double>(done) / static_cast<double>(decay)
                     : cosine_between(peak, floor, step - warmup, decay);
  }
  for (const std::uint64_t halving : halvings) rate *= step >= halving ? 0.5 : 1;
  return rate;
}

namespace {

RateSchedule triangle(double peak, std::uint64_t steps) {
  RateSchedule rate;
  rate.peak = peak;
  rate.start = 0.2 * peak;
  rate.floor = 0.07 * peak;
  rate.warmup = std::min<std::uint64_t>(static_cast<std::uint64_t>(0.23 * static_cast<double>(steps)), steps - 1);
  rate.decay = steps - rate.warmup;
  rate.is_linear = true;
  return rate;
}

RateSchedule cosine(double peak, std::uint64_t steps) {
  RateSchedule rate;
  rate.peak = peak;
  rate.warmup = steps / 20;
  rate.decay = steps - rate.warmup;
  return rate;
}

RateSchedule constant(double peak, std::uint64_t /*steps*/) {
  RateSchedule rate;
  rate.peak = peak;
  return rate;
}

constexpr NamedCourse courses[] = {{"triangle", &triangle}, {"cosine", &cosine}, {"constant", &constant}};

}  // namespace

std::vector<std::string> rate_course_names() { return names_of(courses); }

const NamedCourse& find_rate_course(std::string_view name) { return find_named(courses, name, marked_field("schedule")); }

void check(const RateSchedule& schedule) {
  if (!(schedule.peak >= 0) || !std::isfinite(schedule.peak)) {
    fail_field(ErrorKind::usage, "learning_rate", "{}; expected 0 or more", schedule.peak);
  }
  if (!(schedule.floor >= 0 && schedule.floor <= schedule.peak)) {
    fail(ErrorKind::usage, "floor of the learning rate: {}; expected 0 to the learning rate, {}", schedule.floor,
         schedule.peak);
  }
  if (!(schedule.start >= 0 && schedule.start <= schedule.peak)) {
    fail(ErrorKind::usage, "start of the learning rate: {}; expected 0 to the learning rate, {}", schedule.start,
         schedule.peak);
  }
  if (!std::is_sorted(schedule.halvings.begin(), schedule.halvings.end())) {
    fail(ErrorKind::usage, "halvings of the learning rate: expected ascending steps");
  }
}

}  // namespace bitloom
