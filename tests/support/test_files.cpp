#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom::test;

TEST_CASE("a temporary folder is new, writable and removed", "[files]") {
  std::filesystem::path path;
  {
    TempDir dir;
    TempDir other;
    path = dir.path();
    REQUIRE(std::filesystem::is_directory(path));
    CHECK(path != other.path());
    const std::string bytes("a\0\r\nb", 5);
    write_file(dir / "file", bytes);
    CHECK(read_file(dir / "file") == bytes);
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("the source folder is the repository's root", "[files]") {
  CHECK(std::filesystem::exists(source_folder() / "src" / "core" / "bits.h"));
}

TEST_CASE("the data folder is the one that BITLOOM_DATA names", "[files]") {
  const char* before = std::getenv("BITLOOM_DATA");
  const std::optional<std::string> saved = before == nullptr ? std::nullopt : std::optional<std::string>(before);
  TempDir dir;
  REQUIRE(setenv("BITLOOM_DATA", dir.path().c_str(), 1) == 0);
  CHECK(data_folder() == dir.path());
  REQUIRE((saved ? setenv("BITLOOM_DATA", saved->c_str(), 1) : unsetenv("BITLOOM_DATA")) == 0);
}
