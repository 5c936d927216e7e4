// Open files as the sources of file.h have them, and calls of the system on them. Private to these.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

namespace bitloom {

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

// Opens, trying again after signals.
inline int open_file(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  int descriptor;
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// 0, or the errno of what failed.
inline int write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    if (wrote == 0) return ENOSPC;
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return 0;
}

// To the device; 0, or the errno of what failed. Systems that cannot flush this kind of file say EINVAL: nothing to be done
// about it.
inline int flush(int descriptor) {
  int result;
  do result = ::fsync(descriptor);
  while (result != 0 && errno == EINTR);
  return result == 0 || errno == EINVAL ? 0 : errno;
}

// 0, or the errno; EWOULDBLOCK if another open file has the lock.
inline int try_to_lock(int descriptor) {
  int result;
  do result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

}  // namespace bitloom
