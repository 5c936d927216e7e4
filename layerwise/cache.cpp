#include "layerwise/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/hash.h"

namespace bitloom::layerwise {
namespace {

constexpr std::array<char, 8> cache_magic{'B', 'L', 'C', 'A', 'C', 'H', 'E', '\n'};
constexpr std::uint32_t file_version = 1;
constexpr std::size_t tail_bytes = 64;
constexpr const char* blob_extension = ".blob";
constexpr const char* records_extension = ".records";

struct CacheHeader {
  std::array<char, 8> magic = cache_magic;
  std::uint32_t version = file_version;
  std::uint32_t header_bytes = 64;
  std::uint64_t body_bytes = 0;
  std::uint64_t checksum_low = 0;
  std::uint64_t checksum_high = 0;
  std::array<std::uint64_t, 3> zeros{};
};
static_assert(sizeof(CacheHeader) == 64 && sizeof(CacheHeader) + tail_bytes == Cache::entry_overhead);

Hash128 checksum_of(const std::string& key, std::span<const std::byte> body) {
  return Hasher().update(key).update(body.size()).update(body).finish();
}

bool is_key(const std::string& key) {
  return key.size() >= 16 && key.size() <= 64 && key.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Describes the fault in the file of an entry; "" if there is none.
std::string fault_of(const std::string& key, const CacheHeader& header, std::span<const std::byte> file) {
  const CacheHeader expected;
  if (header.magic != expected.magic) return "it does not begin as a cache entry";
  if (header.header_bytes != expected.header_bytes || header.zeros != expected.zeros) return "its header is not valid";
  if (header.body_bytes != file.size() - Cache::entry_overhead) {
    return fmt::format("its header tells {} bytes, but it holds {}", header.body_bytes, file.size() - Cache::entry_overhead);
  }
  const auto tail = file.last(tail_bytes);
  const bool tail_is_zero = std::all_of(tail.begin(), tail.end(), [](std::byte b) { return b == std::byte{0}; });
  const Hash128 checksum = checksum_of(key, file.subspan(sizeof(CacheHeader), header.body_bytes));
  if (!tail_is_zero || checksum != Hash128{.low = header.checksum_low, .high = header.checksum_high}) {
    return "its checksum does not match its content";
  }
  return {};
}

bool is_disk_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

// The file an entry is written to before it gets its name. The writer holds a lock on it, so that others can tell a file being
// written from one whose writer died. Removed at the end of its scope unless published.
class Temporary {
 public:
  // Holds no file, with an errno, if it cannot be made.
  explicit Temporary(const std::filesystem::path& target) {
    static std::atomic<unsigned> serial{0};
    do {  // process ids repeat where containers share a folder
      path_ = target;
      path_.replace_extension(fmt::format(".{}-{}.tmp", ::getpid(), serial++));
      descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && (errno == EEXIST || errno == EINTR));
    if (descriptor_ < 0 || ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) error_ = errno;
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (descriptor_ < 0) return;
    if (!path_.empty()) ::unlink(path_.c_str());
    ::close(descriptor_);
  }

  const std::filesystem::path& path() const { return path_; }
  // The errno of the first thing that failed, 0 if all is well.
  int error() const { return error_; }
  // A second descriptor, which may outlive this object.
  int duplicate() const { return ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0); }

  // Gives the file its final length, which others count while it is being written.
  void reserve(std::uint64_t bytes) {
    if (error_ == 0 && ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) error_ = errno;
  }

  void write(std::span<const std::byte> bytes) {
    while (error_ == 0 && !bytes.empty()) {
      const ssize_t wrote = ::write(descriptor_, bytes.data(), bytes.size());
      if (wrote < 0) {
        if (errno != EINTR) error_ = errno;
      } else {
        bytes = bytes.subspan(static_cast<std::size_t>(wrote));
      }
    }
  }

  void publish(const std::filesystem::path& target) {
    if (error_ != 0) return;
    if (::rename(path_.c_str(), target.c_str()) != 0) {
      error_ = errno;
    } else {
      path_.clear();
    }
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int error_ = 0;
};

// Removes a temporary file whose writer is gone. Returns whether it did.
bool remove_if_abandoned(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool abandoned = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && ::unlink(path.c_str()) == 0;
  ::close(descriptor);
  return abandoned;
}

// Use is recorded as the file's time of modification; the system's own stamp would only be as fine as its clock tick.
void mark_used(const std::filesystem::path& path) {
  std::error_code ignored;  // evicted meanwhile, or a folder that may only be read
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now(), ignored);
}

}  // namespace

struct Cache::Entry {
  std::filesystem::path path;
  std::uint64_t bytes;
  std::filesystem::file_time_type used;
};

struct Cache::Listing {
  std::vector<Entry> entries;
  std::vector<Entry> temporaries;
};

Cache::Cache(std::filesystem::path folder, std::uint64_t limit_bytes, OnUnusable on_unusable,
             std::chrono::milliseconds lock_timeout)
    : folder_(std::move(folder)), limit_(limit_bytes), on_unusable_(std::move(on_unusable)), lock_timeout_(lock_timeout) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) fail(ErrorKind::io, "cannot create the cache folder '{}': {}", folder_.string(), error.message());
}

std::filesystem::path Cache::path_of(const std::string& key, const char* extension) const {
  if (!is_key(key)) fail(ErrorKind::internal, "cache key is '{}', expected 16 to 64 lower-case hexadecimal digits", key);
  return folder_ / (key + extension);
}

std::optional<std::vector<std::byte>> Cache::get(const std::string& key) {
  const std::filesystem::path path = path_of(key, blob_extension);
  FileMapping file;
  try {
    file = FileMapping(path);
  } catch (const Error&) {  // not there, or not for us to read
    return std::nullopt;
  }
  std::string fault = "it is cut short";
  if (file.size() >= entry_overhead) {
    CacheHeader header;
    std::memcpy(&header, file.bytes().data(), sizeof header);
    if (header.magic == cache_magic && header.version != file_version) {
      report_other_version(path, header.version, file_version);
      return std::nullopt;
    }
    fault = fault_of(key, header, file.bytes());
  }
  if (!fault.empty()) {
    remove_damaged(path, fault);
    return std::nullopt;
  }
  mark_used(path);
  const std::span<const std::byte> body = file.bytes().subspan(sizeof(CacheHeader), file.size() - entry_overhead);
  return std::vector<std::byte>(body.begin(), body.end());
}

void Cache::remove_damaged(const std::filesystem::path& file, const std::string& reason) {
  ++damaged_;
  // If another process has replaced the entry meanwhile, a good one is lost, which costs no more than computing it again.
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  if (on_unusable_) on_unusable_(file, "was damaged and is rebuilt: " + reason);
}

void Cache::report_other_version(const std::filesystem::path& file, std::uint32_t version, std::uint32_t expected) const {
  if (!on_unusable_) return;
  on_unusable_(file, fmt::format("was written by another version of the program (format {}; this one: {}); it is kept for that "
                                 "one and not used",
                                 version, expected));
}

bool Cache::put(const std::string& key, std::span<const std::byte> bytes) {
  const std::filesystem::path path = path_of(key, blob_extension);
  const std::uint64_t need = bytes.size() + entry_overhead;
  if (need > limit_) return false;
  std::optional<Temporary> temporary;
  {
    const FileLock held = lock();
    if (!make_room(need, path)) return false;
    temporary.emplace(path);
    temporary->reserve(need);
  }

  // Others may use the folder while this is written; they count the space it takes.
  const Hash128 checksum = checksum_of(key, bytes);
  CacheHeader header;
  header.body_bytes = bytes.size();
  header.checksum_low = checksum.low;
  header.checksum_high = checksum.high;
  constexpr std::array<std::byte, tail_bytes> tail{};
  temporary->write(std::as_bytes(std::span(&header, 1)));
  temporary->write(bytes);
  temporary->write(tail);

  if (temporary->error() == 0) {
    mark_used(temporary->path());
    const FileLock held = lock();  // so that nobody lists the folder in the middle of it
    temporary->publish(path);
  }
  if (is_disk_full(temporary->error())) return false;
  if (temporary->error() != 0) {
    fail(ErrorKind::io, "cannot write the cache entry '{}': {}", path.string(), std::strerror(temporary->error()));
  }
  return true;
}

std::unique_ptr<RecordFile> Cache::find_records(const std::string& key, std::uint64_t records, std::uint64_t words) {
  const std::filesystem::path path = path_of(key, records_extension);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  auto file = std::make_unique<RecordFile>(descriptor, key, records, words);
  if (const std::optional<std::uint32_t> version = file->other_version()) {
    report_other_version(path, *version, RecordFile::format_version);
    return nullptr;
  }
  if (const std::string fault = file->fault(); !fault.empty()) {
    remove_damaged(path, fault);
    return nullptr;
  }
  mark_used(path);
  return file;
}

std::unique_ptr<RecordFile> Cache::open_records(const std::string& key, std::uint64_t records, std::uint64_t words) {
  const std::filesystem::path path = path_of(key, records_extension);
  const FileLock held = lock();  // so that processes that start together make one file
  if (auto file = find_records(key, records, words)) return file;
  const std::uint64_t need = RecordFile::file_bytes(records, words);
  if (need > limit_ || std::filesystem::exists(path) || !make_room(need, path)) return nullptr;
  Temporary temporary(path);
  temporary.reserve(need);
  int error = temporary.error();
  std::unique_ptr<RecordFile> file;
  if (error == 0) {
    file = std::make_unique<RecordFile>(temporary.duplicate(), key, records, words);
    error = file->write_header();
  }
  if (error == 0) {
    mark_used(temporary.path());
    temporary.publish(path);
    error = temporary.error();
  }
  if (is_disk_full(error)) return nullptr;
  if (error != 0) fail(ErrorKind::io, "cannot write the cache entry '{}': {}", path.string(), std::strerror(error));
  return find_records(key, records, words);
}

std::unique_ptr<RecordFile> Cache::probe_records(std::uint64_t records, std::uint64_t words) const {
  const std::string key = hash_bytes({}).hex();
  Temporary temporary(path_of(key, records_extension));
  temporary.reserve(RecordFile::file_bytes(records, words));
  if (temporary.error() != 0) {
    fail(ErrorKind::io, "cannot write to the cache folder '{}': {}", folder_.string(), std::strerror(temporary.error()));
  }
  return std::make_unique<RecordFile>(temporary.duplicate(), key, records, words);
}

std::uint64_t Cache::free_space() const { return bitloom::free_space(folder_); }

// Frees space for `need` more bytes, at most the limit. `replaced` goes first, since its content is about to be written again.
bool Cache::make_room(std::uint64_t need, const std::filesystem::path& replaced) {
  Listing listing = list();
  std::uint64_t being_written = 0;
  for (const Entry& temporary : listing.temporaries) {
    if (!remove_if_abandoned(temporary.path)) being_written += temporary.bytes;
  }
  if (being_written > limit_ - need) return false;
  const std::uint64_t allowed = limit_ - need - being_written;
  std::uint64_t used = 0;
  for (const Entry& entry : listing.entries) used += entry.bytes;
  std::sort(listing.entries.begin(), listing.entries.end(), [&](const Entry& a, const Entry& b) {
    return std::tuple(a.path != replaced, a.used, a.path) < std::tuple(b.path != replaced, b.used, b.path);
  });
  for (const Entry& entry : listing.entries) {
    if (used <= allowed) break;
    std::error_code error;
    std::filesystem::remove(entry.path, error);
    if (error) fail(ErrorKind::io, "cannot remove the cache entry '{}': {}", entry.path.string(), error.message());
    used -= entry.bytes;
  }
  return true;
}

Cache::Listing Cache::list() const {
  Listing listing;
  std::error_code error;
  std::filesystem::directory_iterator files(folder_, error);
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
    const std::filesystem::path& path = files->path();
    const std::string name = path.filename().string();
    const bool is_entry = path.extension() == blob_extension || path.extension() == records_extension;
    if (!is_key(name.substr(0, name.find('.'))) || (!is_entry && path.extension() != ".tmp")) continue;
    std::error_code gone;  // another process may remove files while this one lists them
    Entry entry{path, std::filesystem::file_size(path, gone), {}};
    if (!gone) entry.used = std::filesystem::last_write_time(path, gone);
    if (!gone) (is_entry ? listing.entries : listing.temporaries).push_back(std::move(entry));
  }
  if (error) fail(ErrorKind::io, "cannot list the cache folder '{}': {}", folder_.string(), error.message());
  return listing;
}

FileLock Cache::lock() const {
  const auto deadline = std::chrono::steady_clock::now() + lock_timeout_;
  std::chrono::milliseconds pause(1);
  while (true) {
    try {
      return FileLock(folder_ / "lock");
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::busy || std::chrono::steady_clock::now() >= deadline) throw;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(20));
  }
}

}  // namespace bitloom::layerwise
