// A file of equal records that is filled as they are computed, and read instead of computing them again: the inputs that a
// stage takes from its frozen layers, one record per image and augmented copy.
//
// All processes that have the file open fill it together. A record carries a checksum of its own; one that is not there, that
// a crash tore or that is damaged reads as missing, so its reader computes and writes it again, and nobody has to agree on
// anything. Read and written by pread and pwrite: the page cache keeps what is used, a device that fails or is full is an error
// code instead of a signal, and no anonymous memory is needed.
//
// Little-endian: magic (8 bytes), version (4), length of this header (4), records (8), words of a record (8), XXH3-128 of key
// and sizes (16), zeros up to 64 bytes; then per record a checksum (8; 0 means that nothing is there) and its words.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace bitloom::layerwise {

// Counts of records since the last take_counts().
struct RecordCounts {
  std::uint64_t read = 0;
  std::uint64_t missing = 0;  // damaged ones included
  std::uint64_t damaged = 0;
  std::uint64_t written = 0;
};

// May be used by several threads at once.
class RecordFile {
 public:
  // Takes over an open file of file_bytes() bytes and closes it in the end.
  RecordFile(int descriptor, const std::string& key, std::uint64_t records, std::uint64_t words);
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  ~RecordFile();

  static constexpr std::uint32_t format_version = 1;

  static std::uint64_t file_bytes(std::uint64_t records, std::uint64_t words) {
    return header_bytes + records * (1 + words) * sizeof(std::uint64_t);
  }

  // Writes the header of a new file; returns 0 or the errno of what failed.
  int write_header() const;
  // Describes the fault in the header or the size of the file; "" if there is none.
  std::string fault() const;
  // The version in the header, if that is not format_version.
  std::optional<std::uint32_t> other_version() const;

  std::uint64_t records() const noexcept { return records_; }
  std::uint64_t words() const noexcept { return words_; }

  // Reads record i < records() to `record`: 1 + words() words, of which the first is the file's own. Returns false, with
  // unspecified words, if there is none.
  bool read(std::uint64_t i, std::span<std::uint64_t> record);
  // Stores record[1] and what follows, and sets record[0]. A failure is remembered in error(), and nothing more is written:
  // what is missing will be computed again.
  void write(std::uint64_t i, std::span<std::uint64_t> record);
  // Stores a record as another file of the same key has it, checksum included. False if that does not match.
  bool accept(std::uint64_t i, std::span<std::uint64_t> record);
  // Whether record i has a checksum, right or wrong.
  bool seems_there(std::uint64_t i) const;
  // The same for all processes of a host that have the file open, and for no other file there.
  std::uint64_t identity() const;
  // The errno of the first write that failed, 0 if none did.
  int error() const noexcept { return error_; }

  RecordCounts take_counts() noexcept;
  // The share of records that seem to be there, from a look at up to `samples` of them, evenly spread.
  double filled_share(std::uint64_t samples) const;
  // Flushes the file and asks the system to drop it from memory, so that the next reads are the device's.
  void drop_from_memory() const;

 private:
  static constexpr std::uint64_t header_bytes = 64;

  std::uint64_t place_of(std::uint64_t i) const { return header_bytes + i * (1 + words_) * sizeof(std::uint64_t); }
  std::uint64_t checksum_of(std::uint64_t i, std::span<const std::uint64_t> words) const;

  int descriptor_;
  std::string key_;
  std::uint64_t records_, words_;
  std::uint64_t salt_;  // salt of the checksums: from the key
  std::atomic<int> error_{0};
  std::atomic<std::uint64_t> read_{0}, missing_{0}, damaged_{0}, written_{0};
};

}  // namespace bitloom::layerwise
