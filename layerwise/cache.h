// A store of blobs on disk, for what can be computed again: the bit maps of frozen layers, and trained layers that two nets
// share.
//
// An entry's key is the hash of everything its content depends on (core/hash.h; made by the caller), so entries never change
// and need no invalidation. Processes on one machine may share a folder. Readers take no lock: an entry appears by rename and
// is removed by unlink, which leaves those who read it alone. Entries are not flushed to the device; one that a crash
// tore is found by its checksum, like any other damage, and counts as missing.
//
// File KEY.blob, little-endian: magic (8 bytes), version (4), length of this header (4), length of the body (8), XXH3-128 of
// key and body (16), zeros up to 64 bytes; the body; 64 zero bytes. Files KEY.records (record_file.h) are filled over time and
// counted at their full length from the start. Other files in the folder are left alone, except temporary files of dead
// writers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "layerwise/record_file.h"

namespace bitloom::layerwise {

// To be used by one thread at a time.
class Cache {
 public:
  // Called with the file of an entry that cannot be used, and what is wrong with it and what became of it: "was damaged and is
  // rebuilt: it is cut short".
  using OnUnusable = std::function<void(const std::filesystem::path& file, const std::string& what)>;

  // Bytes that an entry takes besides its body.
  static constexpr std::uint64_t entry_overhead = 128;

  // Creates the folder if it is missing. limit_bytes bounds the files of all entries together; 0 stores nothing. lock_timeout
  // is how long put() waits for other processes. Throws Error(io) if the folder cannot be created.
  Cache(std::filesystem::path folder, std::uint64_t limit_bytes, OnUnusable on_unusable = {},
        std::chrono::milliseconds lock_timeout = std::chrono::seconds(60));

  // The blob, checked against its checksum; nothing if it is missing, unreadable or damaged. Keys are 16 to 64 lower-case
  // hexadecimal digits; anything else throws Error(internal).
  std::optional<std::vector<std::byte>> get(const std::string& key);

  // Stores a blob, evicting the least recently used entries to stay within the limit. Returns false, which is no reason to
  // stop, when the blob does not fit within the limit or on the disk; nothing is evicted for a blob that exceeds the limit
  // alone. Throws Error(busy) when the lock cannot be had in time and Error(io) for other failures (permissions, a failing
  // device).
  bool put(const std::string& key, std::span<const std::byte> bytes);

  // The file of `records` records of `words` words each with that key, whoever made it; nothing if it is missing or damaged,
  // which is reported and removed.
  std::unique_ptr<RecordFile> find_records(const std::string& key, std::uint64_t records, std::uint64_t words);
  // The same, made if it is missing, evicting other entries as put() does: nothing when it does not fit within the limit or is
  // of another version. A file that is evicted while it is open serves its holders to the end. Throws as put() does.
  std::unique_ptr<RecordFile> open_records(const std::string& key, std::uint64_t records, std::uint64_t words);
  // One without a name, for measuring how fast the folder's device is. Throws Error(io).
  std::unique_ptr<RecordFile> probe_records(std::uint64_t records, std::uint64_t words) const;
  // Bytes that the folder's device has left; all ones if it does not say.
  std::uint64_t free_space() const;
  std::uint64_t limit() const noexcept { return limit_; }
  const std::filesystem::path& folder() const noexcept { return folder_; }

  // Entries found damaged so far, and removed.
  std::uint64_t damaged() const noexcept { return damaged_; }

 private:
  struct Entry;
  struct Listing;

  std::filesystem::path path_of(const std::string& key, const char* extension) const;
  Listing list() const;
  FileLock lock() const;
  bool make_room(std::uint64_t need, const std::filesystem::path& replaced);
  void remove_damaged(const std::filesystem::path& file, const std::string& reason);
  void report_other_version(const std::filesystem::path& file, std::uint32_t version, std::uint32_t expected) const;

  std::filesystem::path folder_;
  std::uint64_t limit_;
  OnUnusable on_unusable_;
  std::chrono::milliseconds lock_timeout_;
  std::uint64_t damaged_ = 0;
};

}  // namespace bitloom::layerwise
