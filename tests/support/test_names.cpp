// CTest calls a test by its name, as an argument: one that began with "--" was taken for an option and passed without having
// run.
#include <cctype>
#include <filesystem>
#include <regex>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom::test;

TEST_CASE("names of tests begin with a letter or a digit") {
  static const std::regex name(R"re(\bTEST_CASE\(\s*"([^"]*))re");
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_folder() / "tests")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = read_file(entry.path());
    for (std::sregex_iterator found(text.begin(), text.end(), name), none; found != none; ++found) {
      const std::string own = (*found)[1];
      INFO(entry.path() << ": " << own);
      CHECK((!own.empty() && std::isalnum(static_cast<unsigned char>(own[0])) != 0));
      ++count;
    }
  }
  CHECK(count > 1000);
}
