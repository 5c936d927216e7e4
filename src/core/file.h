// Files: whole-file reading, read-only mappings, atomic replacement, locks between processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom {

// The whole file. Throws a data error that names the path and the reason (missing, a folder, no permission, ...).
std::string read_text(const std::filesystem::path& path);
std::vector<std::byte> read_bytes(const std::filesystem::path& path);

// A read-only view of a whole regular file in memory; an empty file is an empty span. The file must not be truncated
// while it is mapped: files that Bitloom writes are replaced (write_atomically), never changed in place.
class FileMapping {
 public:
  FileMapping() = default;
  // Throws a data error that names the path and the reason.
  explicit FileMapping(const std::filesystem::path& path);
  FileMapping(FileMapping&& other) noexcept;
  FileMapping& operator=(FileMapping&& other) noexcept;
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  std::size_t size() const noexcept { return size_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A regular file that is read at any place, for what may be larger than memory; also once it was renamed or replaced.
class FileReader {
 public:
  // Throws a data error that names the path and the reason.
  explicit FileReader(const std::filesystem::path& path);
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&& other) noexcept;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  ~FileReader();

  std::uint64_t size() const noexcept { return size_; }
  // All of `bytes`, from a place on. Throws an io error that names the path and the reason.
  void read(std::uint64_t place, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  std::uint64_t size_ = 0;  // when it was opened
  int descriptor_ = -1;
};

// Read or write all bytes at a place of an open file; return 0, or the errno of what failed: EIO at the end of the file, ENOSPC
// where nothing more is written.
int read_at(int descriptor, std::uint64_t place, std::span<std::byte> bytes) noexcept;
int write_at(int descriptor, std::uint64_t place, std::span<const std::byte> bytes) noexcept;

// Bytes that are free on the device of a folder, which may not be there yet; all ones if the system does not say.
std::uint64_t free_space(const std::filesystem::path& folder);

// Replaces (or creates) a file so that a reader, or the next run after a crash, finds either the old content or the new:
// writes a temporary file in the same folder, flushes it to the device, renames it, flushes the folder. On failure (disk
// full, no permission, no such folder) the temporary is removed, the old file is untouched, and an io error names the path
// and the system's reason. A device, a pipe or what a process has open
// (/dev/stdout) is written to as it is.
void write_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_atomically(const std::filesystem::path& path, std::string_view text);

// The same for what need not be in memory at once: `produce` is called once and calls take(part) for all of it, in order. What
// it throws is thrown here, and the old file is untouched.
using TakeBytes = std::function<void(std::span<const std::byte> part)>;
void write_atomically(const std::filesystem::path& path, const std::function<void(const TakeBytes& take)>& produce);

// The same for parts that come in any order: `produce` calls write(place, part) for all of the file, each byte once. A device
// or pipe gets them in their order; those that come too early wait in memory.
using WritePart = std::function<void(std::uint64_t place, std::span<const std::byte> part)>;
void write_parts_atomically(const std::filesystem::path& path, const std::function<void(const WritePart& write)>& produce);

// Holds a lock file (created if missing, left in place afterwards) for as long as the object lives; the system releases it
// when the process dies. The file holds the holder's process id.
class FileLock {
 public:
  // Does not wait: throws a busy error that names the path and the holder's process id if someone else holds the lock (this
  // process included), an io error if the lock file cannot be created.
  explicit FileLock(const std::filesystem::path& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  void release() noexcept;

  int descriptor_ = -1;
};

// Where caches go: $XDG_CACHE_HOME/bitloom, or $HOME/.cache/bitloom. Not created. Throws a usage error if neither variable
// holds an absolute path (the XDG base directory specification ignores relative ones).
std::filesystem::path user_cache_folder();

}  // namespace bitloom
