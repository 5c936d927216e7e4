#include "optim/schedule.h"

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

}  // namespace bitloom
