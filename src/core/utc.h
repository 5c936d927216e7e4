// The time of day, for what people read.
#pragma once

#include <ctime>
#include <string>

namespace bitloom {

// "2026-11-20T23:44:00Z"
inline std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace bitloom
