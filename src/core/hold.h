// A run that waits for a test, at a step of the test's choice, so that what the test does then never comes too late.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>

namespace bitloom {

// Waits as long as the file is there and does not hold a number above `steps`. Calls goes_on() meanwhile, and ends when that
// says no. Does nothing for an empty path.
void wait_while_held(const std::filesystem::path& file, std::size_t steps, const std::function<bool()>& goes_on);

}  // namespace bitloom
