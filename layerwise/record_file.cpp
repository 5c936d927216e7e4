#include "layerwise/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/random.h"

namespace bitloom::layerwise {
namespace {

constexpr std::array<char, 8> record_magic{'B', 'L', 'R', 'E', 'C', 'S', ' ', '\n'};

struct RecordHeader {
  std::array<char, 8> magic = record_magic;
  std::uint32_t version = RecordFile::format_version;
  std::uint32_t header_bytes = 64;
  std::uint64_t records = 0;
  std::uint64_t words = 0;
  std::uint64_t checksum_low = 0;
  std::uint64_t checksum_high = 0;
  std::array<std::uint64_t, 2> zeros{};

  bool operator==(const RecordHeader&) const = default;
};
static_assert(sizeof(RecordHeader) == 64);

RecordHeader header_of(const std::string& key, std::uint64_t records, std::uint64_t words) {
  RecordHeader header;
  header.records = records;
  header.words = words;
  const Hash128 checksum = Hasher().update(key).update(records).update(words).finish();
  header.checksum_low = checksum.low;
  header.checksum_high = checksum.high;
  return header;
}

// False at the end of the file and on errors: the record then counts as missing.
bool has_read(int descriptor, std::uint64_t place, std::span<std::byte> bytes) {
  return read_at(descriptor, place, bytes) == 0;
}

}  // namespace

RecordFile::RecordFile(int descriptor, const std::string& key, std::uint64_t records, std::uint64_t words)
    : descriptor_(descriptor),
      key_(key),
      records_(records),
      words_(words),
      salt_(header_of(key, records, words).checksum_low) {}

RecordFile::~RecordFile() { ::close(descriptor_); }

int RecordFile::write_header() const {
  const RecordHeader header = header_of(key_, records_, words_);
  return write_at(descriptor_, 0, std::as_bytes(std::span(&header, 1)));
}

std::optional<std::uint32_t> RecordFile::other_version() const {
  RecordHeader header;
  if (!has_read(descriptor_, 0, std::as_writable_bytes(std::span(&header, 1))) || header.magic != record_magic)
    return std::nullopt;
  return header.version == format_version ? std::nullopt : std::optional(header.version);
}

std::string RecordFile::fault() const {
  struct stat status {};
  const std::uint64_t expected = file_bytes(records_, words_);
  if (::fstat(descriptor_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != expected) {
    return fmt::format("it holds {} bytes instead of {}", status.st_size, expected);
  }
  RecordHeader header;
  if (!has_read(descriptor_, 0, std::as_writable_bytes(std::span(&header, 1)))) return "its header cannot be read";
  return header == header_of(key_, records_, words_) ? "" : "its header is not valid";
}

// The place is part of it, so that a record which strayed is no record. Never 0.
std::uint64_t RecordFile::checksum_of(std::uint64_t i, std::span<const std::uint64_t> words) const {
  const std::uint64_t sum = hash_bytes(std::as_bytes(words)).low ^ mix64(salt_ + i);
  return sum == 0 ? 1 : sum;
}

bool RecordFile::read(std::uint64_t i, std::span<std::uint64_t> record) {
  // The checksum stands first and is written last, so a record that somebody writes at this moment is missing, not damaged.
  const bool there = has_read(descriptor_, place_of(i), std::as_writable_bytes(record)) && record[0] != 0;
  const bool sound = there && record[0] == checksum_of(i, record.subspan(1));
  if (there && !sound) ++damaged_;
  ++(sound ? read_ : missing_);
  return sound;
}

void RecordFile::write(std::uint64_t i, std::span<std::uint64_t> record) {
  record[0] = checksum_of(i, record.subspan(1));
  if (error_ != 0) return;
  int error = write_at(descriptor_, place_of(i) + sizeof record[0], std::as_bytes(record.subspan(1)));
  if (error == 0) error = write_at(descriptor_, place_of(i), std::as_bytes(record.first(1)));
  if (error == 0) {
    ++written_;
  } else {
    int none = 0;
    error_.compare_exchange_strong(none, error);
  }
}

bool RecordFile::accept(std::uint64_t i, std::span<std::uint64_t> record) {
  if (record[0] == 0 || record[0] != checksum_of(i, record.subspan(1))) return false;
  write(i, record);
  return true;
}

bool RecordFile::seems_there(std::uint64_t i) const {
  std::uint64_t checksum = 0;
  return has_read(descriptor_, place_of(i), std::as_writable_bytes(std::span(&checksum, 1))) && checksum != 0;
}

std::uint64_t RecordFile::identity() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return 0;
  return Hasher().update(std::uint64_t{status.st_dev}).update(std::uint64_t{status.st_ino}).finish().low;
}

RecordCounts RecordFile::take_counts() noexcept {
  return {read_.exchange(0), missing_.exchange(0), damaged_.exchange(0), written_.exchange(0)};
}

double RecordFile::filled_share(std::uint64_t samples) const {
  const std::uint64_t looks = std::min(samples, records_);
  std::uint64_t found = 0;
  for (std::uint64_t s = 0; s < looks; ++s) {
    found += seems_there(s * records_ / looks) ? 1 : 0;
  }
  return looks == 0 ? 0.0 : static_cast<double>(found) / static_cast<double>(looks);
}

void RecordFile::drop_from_memory() const {
  // Only a request: file systems in memory keep what they have, which is then the truth about reading them.
  if (::fdatasync(descriptor_) == 0) ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace bitloom::layerwise
