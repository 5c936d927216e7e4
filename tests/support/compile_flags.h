// How the build that these tests are part of compiles its files.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace bitloom::test {

// The -m flags of a source file, a path from the repository's root, in the build's compile_commands.json. The test fails if the
// file is not in there.
std::set<std::string> machine_flags(std::string_view file);

// "avx2 popcnt" as -mavx2, -mpopcnt.
std::set<std::string> as_machine_flags(std::string_view features);

}  // namespace bitloom::test
