#include "cli/staged_files.h"

#include <system_error>
#include <vector>

#include "cli/make_folder.h"
#include "core/error.h"

namespace bitloom::cli {

namespace fs = std::filesystem;

StagedFiles::StagedFiles(const char* option, const fs::path& folder) : folder_(folder), staging_(folder / ".bitloom-export") {
  make_folder(option, folder);
  std::error_code ignored;
  fs::remove_all(staging_, ignored);  // of a process that was killed
  make_folder(option, staging_);
}

StagedFiles::~StagedFiles() {
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

void StagedFiles::move() {
  std::vector<fs::path> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(staging_)) names.push_back(entry.path().filename());
  for (const fs::path& name : names) {
    std::error_code error;
    fs::rename(staging_ / name, folder_ / name, error);
    if (error) fail(ErrorKind::io, "{}: cannot be replaced: {}", (folder_ / name).string(), error.message());
  }
}

}  // namespace bitloom::cli
