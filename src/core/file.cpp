#include "core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/file_state.h"

namespace bitloom {
namespace {

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
int open_file(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  int descriptor;
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

[[noreturn]] void fail_reading(const std::filesystem::path& path, int error) {
  fail(ErrorKind::data, "cannot read '{}': {}", path.string(), std::strerror(error));
}

// A descriptor, which is the caller's.
int open_regular(const std::filesystem::path& path, std::uint64_t& size) {
  Descriptor file(open_file(path, O_RDONLY));
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
  Container content;
  content.resize(status.st_size > 0 ? static_cast<std::size_t>(status.st_size) + 1 : first_guess);
  std::size_t used = 0;
  while (true) {
    if (used == content.size()) content.resize(2 * used);
    const ssize_t got = ::read(file.get(), content.data() + used, content.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_reading(path, errno);
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  content.resize(used);
  return content;
}

// 0, or the errno of what failed.
int write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    if (wrote == 0) return ENOSPC;
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return 0;
}

// A device or pipe is no file to be replaced: /dev/stdout would be gone. Nor has it places.
void write_in_place(const std::filesystem::path& path, const std::function<void(const WritePart& write)>& produce) {
  Descriptor target(open_file(path, O_WRONLY));
  const auto check = [&](int error) {
    if (error != 0) fail(ErrorKind::io, "cannot write '{}': {}", path.string(), std::strerror(error));
  };
  check(target.get() < 0 ? errno : 0);
  std::uint64_t written = 0;
  std::map<std::uint64_t, std::vector<std::byte>> early;  // by place
  produce([&](std::uint64_t place, std::span<const std::byte> part) {
    if (part.empty()) return;
    if (place != written) {
      early.emplace(place, std::vector<std::byte>(part.begin(), part.end()));
      return;
    }
    check(write_all(target.get(), part));
    written += part.size();
    for (auto next = early.extract(written); !next.empty(); next = early.extract(written)) {
      check(write_all(target.get(), next.mapped()));
      written += next.mapped().size();
    }
  });
}

// 0, or the errno of what failed. Systems that cannot flush this kind of file say EINVAL: nothing to be done about it.
int flush(int descriptor) {
  int result;
  do result = ::fsync(descriptor);
  while (result != 0 && errno == EINTR);
  return result == 0 || errno == EINVAL ? 0 : errno;
}

bool is_same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// 0, or the errno; EWOULDBLOCK if another open file has the lock.
int try_to_lock(int descriptor) {
  int result;
  do result = ::flock(descriptor, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

constexpr std::string_view temporary_suffix = ".tmp";

// A name that nobody has had: process ids and counters repeat in containers and on hosts that share a folder, and a name that
// comes again could be removed as that of a dead writer while it is a living one's.
std::filesystem::path temporary_of(const std::filesystem::path& target) {
  static std::atomic<std::uint64_t> serial{0};
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random)) {
    random = static_cast<std::uint64_t>(::getpid()) << 32 | serial++;
  }
  std::filesystem::path temporary = target;
  temporary += fmt::format(".{}-{:016x}{}", ::getpid(), random, temporary_suffix);
  return temporary;
}

// The name of the file that a temporary was to become, "" if `name` is not a temporary's.
std::string_view target_of(std::string_view name) {
  if (!name.ends_with(temporary_suffix)) return {};
  name.remove_suffix(temporary_suffix.size());
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view writer = name.substr(dot + 1);
  const std::size_t dash = writer.find('-');
  if (dash == 0 || dash == std::string_view::npos || dash + 1 == writer.size()) return {};
  const bool is_id = writer.substr(0, dash).find_first_not_of("0123456789") == std::string_view::npos;
  const bool is_number = writer.substr(dash + 1).find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_id && is_number ? name.substr(0, dot) : std::string_view();
}

// Opens a temporary for `target` and locks it, which tells others that its writer lives. -1 and errno if that fails; a file
// system without locks does not count, since nobody can lock there what is to be removed either.
int open_temporary(const std::filesystem::path& target, std::filesystem::path& temporary) {
  while (true) {
    temporary = temporary_of(target);
    const int descriptor = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (descriptor < 0 && errno == EEXIST) continue;
    if (descriptor < 0) return descriptor;
    const int error = try_to_lock(descriptor);
    struct stat status {};
    if (error != EWOULDBLOCK && ::fstat(descriptor, &status) == 0 && status.st_nlink > 0) return descriptor;
    ::unlink(temporary.c_str());  // somebody took it for abandoned before it was locked
    ::close(descriptor);
  }
}

void remove_if_abandoned(const std::filesystem::path& temporary) {
  const Descriptor file(open_file(temporary, O_WRONLY | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (try_to_lock(file.get()) == 0) ::unlink(temporary.c_str());
}

// Those of `target` alone, or of any file if that is "".
void remove_abandoned(const std::filesystem::path& folder, std::string_view target) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  std::filesystem::directory_iterator files(folder, ignored);
  for (; !ignored && files != std::filesystem::directory_iterator(); files.increment(ignored)) {
    const std::string name = files->path().filename().string();
    const std::string_view wanted = target_of(name);
    if (!wanted.empty() && (target.empty() || wanted == target)) found.push_back(files->path());
  }
  std::for_each(found.begin(), found.end(), remove_if_abandoned);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// The process id in a lock file, or "" while its holder has not written it yet.
std::string read_holder(int descriptor) {
  char text[32];
  const ssize_t got = ::pread(descriptor, text, sizeof text, 0);
  std::string holder;
  for (ssize_t i = 0; i < got && text[i] >= '0' && text[i] <= '9'; ++i) holder += text[i];
  return holder;
}

}  // namespace

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

void write_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  write_atomically(path, [&](const TakeBytes& take) { take(bytes); });
}

void write_atomically(const std::filesystem::path& path, const std::function<void(const TakeBytes& take)>& produce) {
  write_parts_atomically(path, [&](const WritePart& write) {
    std::uint64_t place = 0;
    produce([&](std::span<const std::byte> part) {
      write(place, part);
      place += part.size();
    });
  });
}

void write_parts_atomically(const std::filesystem::path& path, const std::function<void(const WritePart& write)>& produce) {
  std::error_code ignored;
  const std::filesystem::file_type type = std::filesystem::status(path, ignored).type();
  using enum std::filesystem::file_type;
  if (type == character || type == block || type == fifo || type == socket) return write_in_place(path, produce);
  const std::filesystem::path folder = folder_of(path);
  remove_abandoned(folder, path.filename().string());  // before, since the room may be needed
  std::filesystem::path temporary;
  int descriptor = open_temporary(path, temporary);
  const auto check = [&](int error) {
    if (error != 0) fail(ErrorKind::io, "cannot write '{}': {}", path.string(), std::strerror(error));
  };
  check(descriptor < 0 ? errno : 0);
  try {
    produce([&](std::uint64_t place, std::span<const std::byte> part) { check(write_at(descriptor, place, part)); });
    check(flush(descriptor));
    check(::rename(temporary.c_str(), path.c_str()) != 0 ? errno : 0);
    // Not before: the lock on the file ends here. All of it is on the device, so that closing has nothing left to fail at.
    ::close(std::exchange(descriptor, -1));
  } catch (...) {
    if (descriptor >= 0) ::close(descriptor);
    ::unlink(temporary.c_str());
    throw;
  }

  Descriptor folder_descriptor(open_file(folder, O_RDONLY | O_DIRECTORY));
  // A folder that may be written but not read cannot be flushed; the new file is in place all the same.
  if (folder_descriptor.get() < 0) return;
  const int error = flush(folder_descriptor.get());
  if (error != 0) fail(ErrorKind::io, "cannot flush the folder of '{}': {}", path.string(), std::strerror(error));
}

void write_atomically(const std::filesystem::path& path, std::string_view text) {
  write_atomically(path, std::as_bytes(std::span(text.data(), text.size())));
}

void remove_abandoned_temporaries(const std::filesystem::path& folder) { remove_abandoned(folder, {}); }

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
