#include <cstring>

#include "core/error.h"
#include "core/file.h"
#include "core/file_descriptor.h"
#include "core/file_state.h"

namespace bitloom {
namespace {

bool is_same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// The process id in a lock file, or "" while its holder has not written it yet.
std::string read_holder(int descriptor) {
  char text[32];
  const ssize_t got = ::pread(descriptor, text, sizeof text, 0);
  std::string holder;
  for (ssize_t i = 0; i < got && text[i] >= '0' && text[i] <= '9'; ++i) holder += text[i];
  return holder;
}

}  // namespace

bool names_open_file(const std::filesystem::path& path, int descriptor) {
  struct stat named {};
  struct stat open {};
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &open) == 0 && is_same_file(named, open);
}

FileLock::FileLock(const std::filesystem::path& path) {
  do {  // a file that was deleted or replaced before it was locked is nobody else's lock
    release();
    // Not through a symbolic link: its target would be emptied.
    descriptor_ = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (descriptor_ < 0 && errno == ELOOP) {
      fail(ErrorKind::io, "the lock file '{}' is a symbolic link; expected a file of its own", path.string());
    }
    if (descriptor_ < 0) fail(ErrorKind::io, "cannot create the lock file '{}': {}", path.string(), std::strerror(errno));
    if (const int error = try_to_lock(descriptor_); error != 0) {
      const std::string holder = read_holder(descriptor_);
      ::close(std::exchange(descriptor_, -1));
      if (error != EWOULDBLOCK) fail(ErrorKind::io, "cannot lock '{}': {}", path.string(), std::strerror(error));
      fail(ErrorKind::busy, "'{}' is held by {}; wait until it has finished, or stop it", path.string(),
           holder.empty() ? "another process" : "process " + holder);
    }
  } while (!names_open_file(path, descriptor_));
  // The id only serves the message above, and a full disk should not keep anyone from reading a run: errors are ignored.
  const std::string id = fmt::format("{}\n", ::getpid());
  if (::ftruncate(descriptor_, 0) == 0) write_all(descriptor_, std::as_bytes(std::span(id)));
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this != &other) {
    release();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

FileLock::~FileLock() { release(); }

void FileLock::release() noexcept {
  if (descriptor_ < 0) return;
  // The file stays: unlinking it would let two processes lock two files of one name. Unlocking explicitly also frees
  // descriptors that a fork copied.
  ::flock(descriptor_, LOCK_UN);
  ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace bitloom
