// What the system says of its memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace bitloom {

// Bytes; 0 where /proc/meminfo is missing.
std::uint64_t total_memory();
// What new work could use, the page cache included, and no more than the process's container leaves it.
std::uint64_t available_memory();

// What the control group `path` ("/a/b") and those above it leave to their processes, page cache that could go included: all
// ones where they set no limit. `root` is where version 2 of control groups is mounted.
std::uint64_t available_in_group(const std::filesystem::path& root, const std::string& path);

}  // namespace bitloom
