#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/environment.h"
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
  TempDir dir;
  const Environment data("BITLOOM_DATA", dir.path().c_str());
  CHECK(data_folder() == dir.path());
}
