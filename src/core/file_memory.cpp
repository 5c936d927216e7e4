#include "core/file_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/progress.h"

namespace bitloom {
namespace {

// A file without a name; below 0, with errno, if there can be none.
int open_nameless(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return descriptor;
  // File systems that know no such files, NFS for one.
  std::string name = (folder / "memory.XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

FileMemory::FileMemory(const std::filesystem::path& folder, std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const auto check = [&](bool good, int error) {
    if (good) return;
    fail(ErrorKind::io, "cannot have {} in a file in '{}': {}", format_bytes(bytes), folder.string(), std::strerror(error));
  };
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  check(!error, error.value());
  const int descriptor = open_nameless(folder);
  check(descriptor >= 0, errno);
  // A file with holes would end the process by a signal where the disk is full.
  const int full = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  void* const data = full != 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  const int reason = full != 0 ? full : errno;
  ::close(descriptor);
  check(data != MAP_FAILED, reason);
  data_ = static_cast<std::byte*>(data);
}

FileMemory::FileMemory(FileMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileMemory& FileMemory::operator=(FileMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileMemory::~FileMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace bitloom
