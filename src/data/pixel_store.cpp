#include "data/pixel_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "core/random.h"
#include "data/bad_images.h"

namespace bitloom::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* extension = ".pixels";
constexpr std::uint64_t header_bytes = 64;

struct Header {
  std::array<char, 8> magic{'B', 'L', 'P', 'I', 'X', ' ', ' ', '\n'};
  std::uint32_t version = 1;
  std::uint32_t complete = 0;
  std::uint64_t images = 0;
  std::uint64_t image_bytes = 0;
  std::uint64_t key_low = 0;
  std::uint64_t key_high = 0;
  std::array<std::uint64_t, 2> zeros{};

  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == header_bytes);

Header complete_header(const Hash128& key, std::uint64_t images, std::uint64_t image_bytes) {
  Header header;
  header.complete = 1;
  header.images = images;
  header.image_bytes = image_bytes;
  header.key_low = key.low;
  header.key_high = key.high;
  return header;
}

// Held until the end of the scope; waits for other processes.
class FileTurn {
 public:
  explicit FileTurn(int descriptor) : descriptor_(descriptor) {
    while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  FileTurn(const FileTurn&) = delete;
  FileTurn& operator=(const FileTurn&) = delete;
  ~FileTurn() { ::flock(descriptor_, LOCK_UN); }

 private:
  int descriptor_;
};

// Removes files of pixels other than `kept`, the longest unused first, until they take at most `room` bytes. Whoever has one
// open goes on reading it.
void make_room(const fs::path& folder, const fs::path& kept, std::uint64_t room) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == extension && entry.path() != kept) {
      files.emplace_back(entry.last_write_time(error), entry.path());
    }
  }
  std::sort(files.rbegin(), files.rend());  // the latest first
  std::uint64_t bytes = 0;
  for (const auto& [time, path] : files) {
    const std::uint64_t size = fs::file_size(path, error);
    bytes += error ? 0 : size;
    if (bytes > room) fs::remove(path, error);
  }
}

}  // namespace

void for_all_images(std::size_t images, const std::function<void(std::size_t i)>& f) {
  BadImages bad;
  std::mutex mutex;
  std::exception_ptr error;
  std::atomic<std::size_t> first_error = images;
#pragma omp parallel for schedule(dynamic, 16)
  for (std::size_t i = 0; i < images; ++i) {
    if (i > first_error) continue;
    try {
      bad.attempt(i, [&] { f(i); });
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (i < first_error) {
        first_error = i;
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
  bad.check(images);
}

PixelStore::PixelStore(fs::path path, int descriptor, const Hash128& key, std::size_t images, std::size_t image_bytes)
    : path_(std::move(path)), descriptor_(descriptor), key_(key), images_(images), image_bytes_(image_bytes), failed_(images) {}

PixelStore::~PixelStore() { ::close(descriptor_); }

std::uint64_t PixelStore::place_of(std::size_t i) const {
  return header_bytes + std::uint64_t{i} * (sizeof(std::uint64_t) + image_bytes_);
}

// The place and the key are part of it, so that a record which strayed is none. Never 0.
std::uint64_t PixelStore::checksum_of(std::size_t i, std::span<const std::uint8_t> bytes) const {
  return std::max<std::uint64_t>(hash_bytes(std::as_bytes(bytes)).low ^ mix64(key_.low + i), 1);
}

void PixelStore::write(std::uint64_t place, std::span<const std::byte> bytes) const {
  const int error = write_at(descriptor_, place, bytes);
  if (error != 0) fail(ErrorKind::io, "{}: cannot be written: {}", path_.string(), std::strerror(error));
}

bool PixelStore::is_complete() const {
  Header header;
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 && static_cast<std::uint64_t>(status.st_size) == place_of(images_) &&
         read_at(descriptor_, 0, std::as_writable_bytes(std::span(&header, 1))) == 0 &&
         header == complete_header(key_, images_, image_bytes_);
}

bool PixelStore::try_read(std::size_t i, std::span<std::uint8_t> out) const noexcept {
  std::uint64_t checksum = 0;
  return read_at(descriptor_, place_of(i), std::as_writable_bytes(std::span(&checksum, 1))) == 0 && checksum != 0 &&
         read_at(descriptor_, place_of(i) + sizeof checksum, std::as_writable_bytes(out)) == 0 &&
         checksum == checksum_of(i, out);
}

// Records have their checksum written after their bytes, so what a killed process left is used as far as it is whole.
void PixelStore::fill(const DecodeImage& decode) {
  for_all_images(images_, [&](std::size_t i) {
    thread_local std::vector<std::uint8_t> pixels;
    pixels.resize(image_bytes_);
    if (try_read(i, pixels)) return;
    decode(i, pixels);
    const std::uint64_t checksum = checksum_of(i, pixels);
    write(place_of(i) + sizeof checksum, std::as_bytes(std::span(pixels)));
    write(place_of(i), std::as_bytes(std::span(&checksum, 1)));
  });
  // Before it counts as complete, it is on the device.
  if (::fdatasync(descriptor_) != 0) fail(ErrorKind::io, "{}: cannot be written: {}", path_.string(), std::strerror(errno));
  const Header header = complete_header(key_, images_, image_bytes_);
  write(0, std::as_bytes(std::span(&header, 1)));
}

std::shared_ptr<const PixelStore> PixelStore::open(const fs::path& folder, std::uint64_t limit, const Hash128& key,
                                                   std::size_t images, std::size_t image_bytes, const DecodeImage& decode) {
  std::error_code error;
  fs::create_directories(folder, error);
  const fs::path path = folder / (key.hex() + extension);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (descriptor < 0) fail(ErrorKind::io, "{}: cannot be made: {}", path.string(), std::strerror(errno));
  const std::shared_ptr<PixelStore> store(new PixelStore(path, descriptor, key, images, image_bytes));
  if (!store->is_complete()) {
    const FileTurn turn(descriptor);
    if (!store->is_complete()) {  // nobody did it while this process waited
      const std::uint64_t bytes = store->place_of(images);
      make_room(folder, path, limit - std::min(limit, bytes));
      struct stat status {};
      const std::uint64_t there = ::fstat(descriptor, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
      struct statvfs device {};
      const bool known = ::fstatvfs(descriptor, &device) == 0;
      const std::uint64_t free = known ? std::uint64_t{device.f_bavail} * device.f_frsize : ~std::uint64_t{0};
      if (bytes > there && bytes - there > free) {
        ::unlink(path.c_str());
        fail(ErrorKind::io,
             "{}: {} images take {} and the device has {} left; expected smaller images, or a cache on another device",
             folder.string(), images, format_bytes(bytes), format_bytes(free));
      }
      if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
        fail(ErrorKind::io, "{}: cannot be made: {}", path.string(), std::strerror(errno));
      }
      store->fill(decode);
    }
  }
  ::futimens(descriptor, nullptr);  // used now
  return store;
}

void PixelStore::read(std::size_t i, std::span<std::uint8_t> out) const noexcept {
  if (try_read(i, out)) return;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  failed_ = std::min(failed_.load(), i);
}

void PixelStore::prefetch(std::size_t i) const noexcept {
  ::posix_fadvise(descriptor_, static_cast<off_t>(place_of(i)), static_cast<off_t>(sizeof(std::uint64_t) + image_bytes_),
                  POSIX_FADV_WILLNEED);
}

void PixelStore::check() const {
  if (!has_failed()) return;
  fail(ErrorKind::io, "{}: image {} cannot be read or is damaged; remove the file, and it is made again", path_.string(),
       failed_.load());
}

}  // namespace bitloom::data
