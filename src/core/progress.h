// Messages of long-running library code to its caller while it runs (the library itself never prints), and numbers as people
// read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bitloom {

class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  // A message to keep.
  virtual void line(std::string_view text) = 0;
  // The current state, replaced by the next one; may be dropped (for example when the output is not a terminal).
  virtual void update(std::string_view text) = 0;
};

std::string format_duration(double seconds);     // "850 ms", "4.2 s", "3 min 05 s", "2 h 13 min", "3 d 04 h"
std::string format_bytes(std::uint64_t bytes);   // "512 B", "1.5 KiB", "2.0 GiB"
std::string format_count(std::uint64_t number);  // "9999", "12.3 k", "1.23 M", "456 G"

}  // namespace bitloom
