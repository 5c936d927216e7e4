// Folders that options name.
#pragma once

#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace bitloom::cli {

// Makes a folder, and those that it lies in, unless it is there. Throws Error(io) that names the option, "--out".
inline void make_folder(const char* option, const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorKind::io, "{}: {}: {}", option, folder.string(), error.message());
}

}  // namespace bitloom::cli
