// The commands of the program and their options, as it lists them itself.
#pragma once

#include <string>
#include <vector>

namespace bitloom::test {

std::vector<std::string> words(const std::string& text);

// "train binary", "info", ...: the names under "Commands:" of the general help.
std::vector<std::string> listed_commands();

// The options that a help text lists, without their dashes, in its order.
std::vector<std::string> options_in(const std::string& help);

}  // namespace bitloom::test
