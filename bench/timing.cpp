#include "bench/timing.h"

#include <time.h>  // POSIX

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <sstream>

#include "core/error.h"

namespace bitloom::bench {
namespace {

// Text after "key : " in the first such line of /proc/cpuinfo.
std::string cpu_line(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

}  // namespace

std::vector<std::vector<double>> alternate(const std::vector<Contender>& contenders, std::size_t rounds) {
  std::vector<std::vector<double>> rates(contenders.size());
  for (std::size_t round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const double rate = contenders[i].rate();
      if (round > 0) rates[i].push_back(rate);
    }
  }
  return rates;
}

double wall_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double fastest(double slot, const std::function<void()>& pass, double (*now)()) {
  const double start = now();
  double before = start;
  double best = 0;
  do {
    pass();
    const double after = now();
    if (best == 0 || after - before < best) best = after - before;
    before = after;
  } while (before - start < slot);
  return best;
}

double sustained(double slot, std::size_t least, const std::function<void()>& pass) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::size_t passes = 0;
  double seconds = 0;
  while (passes < least || seconds < slot) {
    pass();
    ++passes;
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return seconds / static_cast<double>(passes);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double median_ratio(const std::vector<double>& numerator, const std::vector<double>& denominator) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < numerator.size(); ++i) ratios.push_back(numerator[i] / denominator[i]);
  return median(ratios);
}

std::size_t parse_count(const std::string& text, const std::string& name) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value == 0) {
    fail(ErrorKind::usage, "{}: '{}' is not a whole number of at least 1", name, text);
  }
  return value;
}

std::string cpu_name() {
  const std::string name = cpu_line("model name");
  return name.empty() ? "unknown" : name;
}

bool cpu_has(const std::string& feature) {
  std::istringstream words(cpu_line("flags") + ' ' + cpu_line("Features"));
  for (std::string word; words >> word;) {
    if (word == feature) return true;
  }
  return false;
}

}  // namespace bitloom::bench
