// What the system says of its memory.
#pragma once

#include <cstdint>

namespace bitloom {

// Bytes; 0 where /proc/meminfo is missing.
std::uint64_t total_memory();
std::uint64_t available_memory();  // what new work could use, the page cache included

}  // namespace bitloom
