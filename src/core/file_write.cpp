#include <fcntl.h>
#include <sys/random.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/file_descriptor.h"
#include "core/file_state.h"
#include "core/hash.h"
#include "core/listing_pace.h"
#include "core/text.h"

namespace bitloom {
namespace {

// The place under /proc that a path leads to where it names a file that a process has open, as /dev/stdout does; "" otherwise.
std::filesystem::path open_file_of(std::filesystem::path path) {
  std::error_code error;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path, error); ++links) {
    const std::filesystem::path folder = std::filesystem::canonical(path.has_parent_path() ? path.parent_path() : ".", error);
    if (error) break;
    const std::string name = folder.string();
    if (name.starts_with("/proc/") && name.ends_with("/fd")) return folder / path.filename();
    path = folder / std::filesystem::read_symlink(path, error);
  }
  return {};
}

// A descriptor for writing to what is there already: this process's own, so that what it writes before and after keeps its
// place, or a new one. -1 and errno where that fails.
int open_in_place(const std::filesystem::path& path) {
  const std::filesystem::path place = open_file_of(path);
  const auto number = parse_int(place.filename().string());
  if (number && place.parent_path() == fmt::format("/proc/{}/fd", ::getpid())) {
    return ::fcntl(static_cast<int>(*number), F_DUPFD_CLOEXEC, 0);
  }
  return open_file(path, O_WRONLY | O_APPEND);
}

// A device or pipe is no file to be replaced: /dev/stdout would be gone. Nor has it places.
void write_in_place(const std::filesystem::path& path, const std::function<void(const WritePart& write)>& produce) {
  Descriptor target(open_in_place(path));
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

constexpr std::string_view temporary_suffix = ".tmp";

constexpr std::size_t host_digits = 8, random_digits = 8;  // of a temporary's name, hexadecimal

// The same for all processes that see each other's locks: those of one kernel, whatever containers call their hosts.
const std::string& host_tag() {
  static const std::string tag = [] {
    std::string host;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), host);
    if (host.empty()) {
      std::array<char, 256> name{};
      ::gethostname(name.data(), name.size() - 1);
      host = name.data();
    }
    return Hasher().update(std::string_view(host)).finish().hex().substr(0, host_digits);
  }();
  return tag;
}

// A name that nobody has had: process ids and counters repeat in containers and on hosts that share a folder, and a name that
// comes again could be removed as that of a dead writer while it is a living one's.
std::filesystem::path temporary_of(const std::filesystem::path& target) {
  static std::atomic<std::uint32_t> serial{0};
  std::uint32_t random = 0;
  if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof random)) random = serial++;
  std::filesystem::path temporary = target;
  temporary += fmt::format(".{}-{}{:08x}{}", ::getpid(), host_tag(), random, temporary_suffix);
  return temporary;
}

struct TemporaryName {
  std::string_view target;  // name of the file that it was to become; "" if this is no temporary's name
  std::string_view host;    // tag of its writer's
};

TemporaryName parse_temporary(std::string_view name) {
  if (!name.ends_with(temporary_suffix)) return {};
  name.remove_suffix(temporary_suffix.size());
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view writer = name.substr(dot + 1);
  const std::size_t dash = writer.find('-');
  if (dash == 0 || dash == std::string_view::npos) return {};
  const std::string_view number = writer.substr(dash + 1);
  const bool is_id = writer.substr(0, dash).find_first_not_of("0123456789") == std::string_view::npos;
  const bool is_number =
      number.size() == host_digits + random_digits && number.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_id && is_number ? TemporaryName{name.substr(0, dot), number.substr(0, host_digits)} : TemporaryName();
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

// A living writer of another host has its lock there alone, where the file system keeps locks by host (network file systems
// mounted without them, buckets): what is written to now and then is left alone.
void remove_if_abandoned(const std::filesystem::path& temporary, bool of_this_host) {
  constexpr std::int64_t silent_seconds = 3600;
  const Descriptor file(open_file(temporary, O_WRONLY | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (!of_this_host && std::time(nullptr) - status.st_mtime < silent_seconds) return;
  if (try_to_lock(file.get()) == 0) ::unlink(temporary.c_str());
}

// Those of `target` alone, or of any file if that is "".
void remove_abandoned(const std::filesystem::path& folder, std::string_view target) {
  std::vector<std::pair<std::filesystem::path, bool>> found;  // and whether it is of this host
  std::error_code ignored;
  std::filesystem::directory_iterator files(folder, ignored);
  for (; !ignored && files != std::filesystem::directory_iterator(); files.increment(ignored)) {
    const std::string name = files->path().filename().string();
    const TemporaryName parsed = parse_temporary(name);
    if (parsed.target.empty() || (!target.empty() && parsed.target != target)) continue;
    found.emplace_back(files->path(), parsed.host == host_tag());
  }
  for (const auto& [path, of_this_host] : found) remove_if_abandoned(path, of_this_host);
}

// The same before the target is written; of many files that are written into one folder not each lists it.
void remove_abandoned_before(const std::filesystem::path& folder, std::string_view target) {
  static ListingPace pace;
  const Clock::time_point start = Clock::now();
  if (!pace.is_due(folder, start)) return;
  remove_abandoned(folder, target);
  pace.add(folder, start, Clock::now());
}

// Explains why a name that the system allows is too long.
void check_name_length(const std::filesystem::path& path, const std::filesystem::path& temporary) {
  const std::size_t length = path.filename().string().size(), added = temporary.filename().string().size() - length;
  if (length > NAME_MAX || length + added <= NAME_MAX) return;
  fail(ErrorKind::io,
       "cannot write '{}': its name has {} bytes; expected at most {}, since a file has {} more until it is whole",
       path.string(), length, NAME_MAX - added, added);
}

// Bytes after which the system is to begin to write them to the device. Gigabytes that it keeps until flush() take minutes
// then, in which nothing shows that the program is alive.
constexpr std::uint64_t most_unsent = std::uint64_t{64} << 20U;

// Waits for what was sent on before, so that flush() has little left. Gives the error of writing to the device, which flush()
// does not tell again, or 0, also where a file system does not know the call.
int send_on([[maybe_unused]] int descriptor) {
#ifdef SYNC_FILE_RANGE_WRITE
  if (::sync_file_range(descriptor, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE) != 0) {
    if (errno == EIO || errno == ENOSPC || errno == EDQUOT) return errno;
  }
#endif
  return 0;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

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
  if (type == character || type == block || type == fifo || type == socket || !open_file_of(path).empty()) {
    return write_in_place(path, produce);
  }
  const std::filesystem::path folder = folder_of(path);
  remove_abandoned_before(folder, path.filename().string());  // the room may be needed
  std::filesystem::path temporary;
  int descriptor = open_temporary(path, temporary);
  const auto check = [&](int error) {
    if (error != 0) fail(ErrorKind::io, "cannot write '{}': {}", path.string(), std::strerror(error));
  };
  if (descriptor < 0 && errno == ENAMETOOLONG) check_name_length(path, temporary);
  check(descriptor < 0 ? errno : 0);
  try {
    std::uint64_t unsent = 0;
    produce([&](std::uint64_t place, std::span<const std::byte> part) {
      check(write_at(descriptor, place, part));
      unsent += part.size();
      if (unsent < most_unsent) return;
      unsent = 0;
      check(send_on(descriptor));
    });
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

}  // namespace bitloom
