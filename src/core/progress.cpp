#include "core/progress.h"

#include <fmt/format.h>

#include <cmath>

namespace bitloom {

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "unknown";
  constexpr double longest = 1e15;  // keeps the conversion to an integer defined
  if (seconds >= longest) return "for ever";
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const std::uint64_t whole = static_cast<std::uint64_t>(std::llround(seconds));
  const std::uint64_t minutes = (whole + 30) / 60;
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  if (minutes < 24 * 60) return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
  const std::uint64_t hours = (whole + 1800) / 3600;
  return fmt::format("{} d {:02} h", hours / 24, hours % 24);
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  const char* unit = "KMGTPE";
  // 1023.95 would be printed as 1024.0.
  while (value >= 1023.95 && unit[1] != '\0') {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}iB", value, *unit);
}

std::string format_count(std::uint64_t number) {
  if (number < 10000) return fmt::format("{}", number);
  double value = static_cast<double>(number) / 1e3;
  const char* unit = "kMGTPE";
  // Three significant digits; 999.5 would be printed as 1000.
  while (value >= 999.5 && unit[1] != '\0') {
    value /= 1e3;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, *unit);
}

}  // namespace bitloom
