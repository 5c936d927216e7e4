#include "tests/support/files.h"

#include <stdlib.h>  // mkdtemp is POSIX, not C++

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>

#include "tests/support/catch.h"

namespace bitloom::test {

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "bitloom-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "cannot make " + name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;  // a leftover in the temporary folder is no reason to end the tests
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path source_folder() {
  const char* unpacked = std::getenv("BITLOOM_SOURCE");  // where the tests run on another machine than that which built them
  return unpacked == nullptr || *unpacked == '\0' ? BITLOOM_SOURCE_DIR : unpacked;
}

std::optional<std::filesystem::path> data_folder() {
  const char* name = std::getenv("BITLOOM_DATA");
  if (name == nullptr || *name == '\0') {
    if (std::getenv("CI") != nullptr) FAIL("BITLOOM_DATA is not set, and in continuous integration no test may be skipped");
    std::cout << "SKIPPED: BITLOOM_DATA is not set" << std::endl;
    return std::nullopt;
  }
  if (!std::filesystem::is_directory(name)) FAIL("BITLOOM_DATA names " << name << ", which is not a folder");
  return name;
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream contents;
  contents << in.rdbuf();
  if (!in.good()) FAIL("cannot read " << file);
  return contents.str();
}

void write_file(const std::filesystem::path& file, std::string_view bytes) {
  std::ofstream out(file, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out.good()) FAIL("cannot write " << file);
}

void write_program(const std::filesystem::path& file, std::string_view text) {
  write_file(file, text);
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
}

std::size_t temporaries_in(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) count += entry.path().extension() == ".tmp" ? 1 : 0;
  return count;
}

}  // namespace bitloom::test
