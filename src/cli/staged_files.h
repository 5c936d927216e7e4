// Files that belong together and come into a folder one after the other once all of them are written.
#pragma once

#include <filesystem>

namespace bitloom::cli {

// They are written into a folder in that folder first: until move() a full disk, or a process that is killed, leaves the files
// of the same names as they were.
class StagedFiles {
 public:
  // folder: is made if it is not there. Throws Error(io) that names the option.
  StagedFiles(const char* option, const std::filesystem::path& folder);
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;
  ~StagedFiles();  // removes what has not been moved

  // Where to write them.
  const std::filesystem::path& path() const { return staging_; }
  // Puts all files that are there into the folder. Throws Error(io).
  void move();

 private:
  std::filesystem::path folder_, staging_;
};

}  // namespace bitloom::cli
