// Memory in a file that has no name.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace bitloom {

// Zeros at first. The system keeps in memory what there is room for, so that more than the machine's memory takes time and not
// the life of the process. Nothing stays behind when the process is killed.
class FileMemory {
 public:
  FileMemory() = default;
  // Makes the folder if it is missing, and reserves all of it on the folder's device: throws an io error that names the folder,
  // the bytes and the system's reason (disk full, ...).
  FileMemory(const std::filesystem::path& folder, std::size_t bytes);
  FileMemory(FileMemory&& other) noexcept;
  FileMemory& operator=(FileMemory&& other) noexcept;
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;
  ~FileMemory();

  std::span<std::byte> bytes() const noexcept { return {data_, size_}; }  // aligned to pages

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace bitloom
