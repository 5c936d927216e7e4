// Folders that tests read and write.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace bitloom::test {

// A new, empty folder in the system's folder for temporary files, removed with its contents at the end of its scope.
class TempDir {
 public:
  TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// The repository's root: for tests that read files of the source tree (tests/golden, models/binary/nets).
std::filesystem::path source_folder();

// The folder named by the environment variable BITLOOM_DATA, which holds cifar-10-batches-bin and others. Where it is unset a
// test prints that it was skipped (CTest then counts it as skipped) and the result is empty:
//   const auto data = data_folder();
//   if (!data) return;
// In continuous integration, where the environment variable CI is set, that is a failure of the test instead. A folder that is
// named but does not exist is one everywhere.
std::optional<std::filesystem::path> data_folder();

// The whole contents of a file as bytes; the test fails if it cannot be read.
std::string read_file(const std::filesystem::path& file);
void write_file(const std::filesystem::path& file, std::string_view bytes);
// A script that can be run.
void write_program(const std::filesystem::path& file, std::string_view text);

// Number of files in a folder that are being written (write_atomically in core/file.h), or that killed writers left.
std::size_t temporaries_in(const std::filesystem::path& folder);

}  // namespace bitloom::test
