#include "optim/schedule.h"

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using bitloom::test::has;
using bitloom::test::message_of;

TEST_CASE("power multiplies, and equals the C library's to rounding", "[optim]") {
  CHECK(power(0.9, 0) == 1.0);
  CHECK(power(0.9, 1) == 0.9);
  CHECK(power(2.0, 62) == 0x1p62);
  CHECK(power(0.0, 0) == 1.0);
  for (const double base : {0.9, 0.999, 1.5}) {
    for (std::uint64_t exponent = 1; exponent < 400; exponent += 7) {
      const double expected = std::pow(base, static_cast<double>(exponent));
      CHECK(std::fabs(power(base, exponent) - expected) <= 1e-13 * expected);
    }
  }
  CHECK(power(0.5, 5000) == 0.0);
}

TEST_CASE("cos_pi is the cosine of pi x within a billionth", "[optim]") {
  CHECK(cos_pi(0) == 1.0);
  CHECK(cos_pi(1) == -1.0);
  for (int i = 0; i <= 1000; ++i) {
    const double x = i / 1000.0;
    CHECK(std::fabs(cos_pi(x) - std::cos(3.14159265358979323846 * x)) < 1e-9);
  }
}

TEST_CASE("cosine_decay falls from one to the floor and stays there", "[optim]") {
  CHECK(cosine_decay(-1, 0.1) == 1.0);
  CHECK(cosine_decay(0, 0.1) == 1.0);
  CHECK(cosine_decay(std::nan(""), 0.1) == 1.0);
  CHECK(std::fabs(cosine_decay(0.5, 0.1) - 0.55) < 1e-9);
  CHECK(cosine_decay(1, 0.1) == 0.1);
  CHECK(cosine_decay(7, 0.1) == 0.1);
  for (int i = 0; i < 1000; ++i) CHECK(cosine_decay((i + 1) / 1000.0, 0.01) < cosine_decay(i / 1000.0, 0.01));
}

TEST_CASE("a triangle rises from its start to the peak and falls to its floor", "[optim]") {
  RateSchedule rate;
  rate.peak = 2;
  rate.start = 0.4;
  rate.floor = 0.1;
  rate.warmup = 20;
  rate.decay = 80;
  rate.is_linear = true;
  CHECK(rate.at(0) == 0.4);
  CHECK(rate.at(20) == 2);
  CHECK(rate.at(100) == Approx(0.1).epsilon(1e-12));
  CHECK(rate.at(100000) == rate.at(100));
  for (std::uint64_t step = 0; step <= 100; ++step) {
    const double x = static_cast<double>(step);
    const double expected = step < 20 ? 0.4 + 1.6 * x / 20 : 2 - 1.9 * (x - 20) / 80;
    CHECK(rate.at(step) == Approx(expected).epsilon(1e-12));
  }
  rate.is_linear = false;  // half a cosine is above the line first and below it later
  CHECK(rate.at(40) > 2 - 1.9 * 20 / 80);
  CHECK(rate.at(80) < 2 - 1.9 * 60 / 80);
  rate.start = 0;
  CHECK(rate.at(0) == Approx(2.0 / 21));
  CHECK(rate.at(19) == Approx(2.0 * 20 / 21));
}

TEST_CASE("a long training has the rates of its paper", "[optim]") {
  // Shoeybi et al. 2019, section 4.1: to 1.5e-4 in 3,000 steps, along half a cosine in 297,000 to 1e-5.
  const RateSchedule megatron{.peak = 1.5e-4, .warmup = 3000, .decay = 297000, .floor = 1e-5};
  CHECK(megatron.at(0) == Approx(1.5e-4 / 3001));
  CHECK(megatron.at(1500) == Approx(1.5e-4 * 1501 / 3001));
  CHECK(megatron.at(3000) == Approx(1.5e-4));
  CHECK(megatron.at(3000 + 148500) == Approx((1.5e-4 + 1e-5) / 2));
  CHECK(megatron.at(3000 + 74250) == Approx(1e-5 + (1.5e-4 - 1e-5) * (1 + std::sqrt(0.5)) / 2));
  CHECK(megatron.at(300000) == Approx(1e-5));
  CHECK(megatron.at(400000) == Approx(1e-5));
  // Ramesh et al. 2021, appendix B.2: five halvings after a warm-up of 5,000 steps.
  const RateSchedule dalle{.peak = 4.5e-4, .warmup = 5000, .halvings = {100, 200, 300, 400, 500}};
  RateSchedule later = dalle;
  for (std::uint64_t& step : later.halvings) step += 300000;
  CHECK(later.at(5000) == Approx(4.5e-4));
  CHECK(later.at(300099) == Approx(4.5e-4));
  CHECK(later.at(300100) == Approx(4.5e-4 / 2));
  CHECK(later.at(300499) == Approx(4.5e-4 / 16));
  CHECK(later.at(430000) == Approx(4.5e-4 / 32));
}

TEST_CASE("rates that are no schedule are refused", "[optim]") {
  const auto refused = [](double peak, double start, double floor) {
    RateSchedule rate;
    rate.peak = peak;
    rate.start = start;
    rate.floor = floor;
    return message_of(ErrorKind::usage, [&] { check(rate); });
  };
  CHECK(refused(1, 1, 1) == "no error");
  CHECK(has(refused(1, 1.5, 0), "start of the learning rate: 1.5; expected 0 to the learning rate, 1"));
  CHECK(has(refused(1, -1, 0), "start of the learning rate: -1"));
  CHECK(has(refused(1, 0, std::nan("")), "floor of the learning rate: nan"));
  CHECK(has(refused(HUGE_VAL, 0, 0), "`learning_rate`: inf"));
}
