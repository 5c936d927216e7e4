// How benchmarks time: contenders take turns, so that what the machine does besides hits all of them alike.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace bitloom::bench {

// Something with a speed. `rate` runs it for a short slot and returns operations per second.
struct Contender {
  std::string name;
  std::function<double()> rate;
};

// Rates (contenders, rounds): in every round each contender gets one slot, in turn. One more round goes before, not counted.
std::vector<std::vector<double>> alternate(const std::vector<Contender>& contenders, std::size_t rounds);

// Seconds since some moment, as the wall has it, or spent on a processor by all threads of this process together.
double wall_seconds();
double cpu_seconds();

// Seconds of the fastest of several calls of `pass` that take `slot` seconds together (one call at least). The fastest,
// since other work on the cores can only slow one down; simd::measure_peak counts in the same way.
double fastest(double slot, const std::function<void()>& pass, double (*now)() = wall_seconds);

// Seconds of one call of `pass`, the mean over as many as `slot` seconds hold, but at least `least`: for contenders whose calls
// differ in length, since the shorter a call, the likelier one of many goes undisturbed.
double sustained(double slot, std::size_t least, const std::function<void()>& pass);

// values must not be empty.
double median(std::vector<double> values);
// The median over rounds of numerator / denominator: both of a round saw the same clock rate.
double median_ratio(const std::vector<double>& numerator, const std::vector<double>& denominator);

// Reads a command-line argument of at least 1; throws a usage error that calls it `name`.
std::size_t parse_count(const std::string& text, const std::string& name);

// From /proc/cpuinfo: the model's name ("unknown" where it is missing), and whether a word stands among the features.
std::string cpu_name();
bool cpu_has(const std::string& feature);

}  // namespace bitloom::bench
