#include "tests/support/compile_flags.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/files.h"

namespace bitloom::test {

std::set<std::string> machine_flags(std::string_view file) {
  const std::string path = (source_folder() / file).string();
  for (const nlohmann::json& entry : nlohmann::json::parse(read_file(BITLOOM_COMPILE_COMMANDS))) {
    if (entry.at("file") != path) continue;
    std::set<std::string> flags;
    std::istringstream words(entry.at("command").get<std::string>());
    for (std::string word; words >> word;) {
      if (word.starts_with("-m")) flags.insert(word);
    }
    return flags;
  }
  FAIL(BITLOOM_COMPILE_COMMANDS << " does not have " << path);
  return {};
}

std::set<std::string> as_machine_flags(std::string_view features) {
  std::set<std::string> flags;
  std::istringstream words{std::string(features)};
  for (std::string word; words >> word;) flags.insert("-m" + word);
  return flags;
}

}  // namespace bitloom::test
