#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/file_descriptor.h"
#include "core/file_state.h"

namespace bitloom {
namespace {

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

}  // namespace bitloom
