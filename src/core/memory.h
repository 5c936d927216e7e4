// Memory of the system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace bitloom {

// Bytes; 0 where /proc/meminfo is missing.
std::uint64_t total_memory();
// Bytes that new work could use, the page cache included, and no more than the process's container leaves it.
std::uint64_t available_memory();

// Bytes that the control group `path` ("/a/b") and those above it leave their processes, page cache that could go included: all
// ones where they set no limit. `root` is where version 2 of control groups is mounted.
std::uint64_t available_in_group(const std::filesystem::path& root, const std::string& path);

}  // namespace bitloom
