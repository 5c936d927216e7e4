#include "core/file.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/file_descriptor.h"
#include "core/file_state.h"

namespace bitloom {
namespace {

[[noreturn]] void fail_reading(const std::filesystem::path& path, int error) {
  fail(ErrorKind::data, "cannot read '{}': {}", path.string(), std::strerror(error));
}

// A descriptor, which is the caller's.
int open_regular(const std::filesystem::path& path, std::uint64_t& size) {
  Descriptor file(open_file(path, O_RDONLY | O_NONBLOCK));  // a pipe would be waited for
  if (file.get() < 0) fail_reading(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_reading(path, errno);
  if (S_ISDIR(status.st_mode)) fail_reading(path, EISDIR);
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::data, "cannot read '{}': not a regular file", path.string());
  size = static_cast<std::uint64_t>(status.st_size);
  return file.release();
}

// Reads to the end, whatever kind of file it is (the size that the system tells is only where to start).
template <typename Container>
Container read_all(const std::filesystem::path& path) {
  Descriptor file(open_file(path, O_RDONLY));
  if (file.get() < 0) fail_reading(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_reading(path, errno);
  constexpr std::size_t first_guess = 4096;
  constexpr std::size_t most_of_a_pipe = std::size_t{1} << 30;  // or of a device, which may have no end
  Container content;
  content.resize(status.st_size > 0 ? static_cast<std::size_t>(status.st_size) + 1 : first_guess);
  std::size_t used = 0;
  while (true) {
    if (used == content.size()) {
      if (used >= most_of_a_pipe && !S_ISREG(status.st_mode)) {
        fail(ErrorKind::data, "cannot read '{}': more than {} MiB that are no regular file", path.string(), used >> 20U);
      }
      content.resize(2 * used);
    }
    const ssize_t got = ::read(file.get(), content.data() + used, content.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_reading(path, errno);
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  content.resize(used);
  return content;
}

}  // namespace

int opening_error(const std::filesystem::path& path) {
  const Descriptor file(open_file(path, O_RDONLY | O_NONBLOCK));
  return file.get() < 0 ? errno : 0;
}

std::string read_text(const std::filesystem::path& path) { return read_all<std::string>(path); }

std::vector<std::byte> read_bytes(const std::filesystem::path& path) { return read_all<std::vector<std::byte>>(path); }

FileMapping::FileMapping(const std::filesystem::path& path) {
  std::uint64_t size = 0;
  const Descriptor file(open_regular(path, size));
  if (size == 0) return;  // mmap refuses empty mappings
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail_reading(path, errno);
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
}

FileMapping::FileMapping(FileMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileMapping::~FileMapping() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

FileReader::FileReader(const std::filesystem::path& path) : path_(path), descriptor_(open_regular(path, size_)) {}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)), size_(other.size_), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

FileReader::~FileReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileReader::read(std::uint64_t place, std::span<std::byte> bytes) const {
  const int error = read_at(descriptor_, place, bytes);
  if (error != 0) fail(ErrorKind::io, "cannot read '{}': {}", path_.string(), std::strerror(error));
}

std::filesystem::path user_cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') {
    return std::filesystem::path(cache) / "bitloom";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::filesystem::path(home) / ".cache" / "bitloom";
  }
  fail(ErrorKind::usage, "cannot tell where the cache is: set XDG_CACHE_HOME or HOME to an absolute path");
}

int read_at(int descriptor, std::uint64_t place, std::span<std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(place));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    place += static_cast<std::uint64_t>(got);
  }
  return 0;
}

int write_at(int descriptor, std::uint64_t place, std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(place));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote < 0 ? errno : ENOSPC;
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    place += static_cast<std::uint64_t>(wrote);
  }
  return 0;
}

std::uint64_t free_space(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  return std::filesystem::space(there, error).available;  // all ones after an error
}

}  // namespace bitloom
