// The decoded images of a data set that is too large for memory: a file of equal records, one per image, which is filled once
// and then read image by image. The page cache keeps what is used; nothing of it is anonymous memory.
//
// Little-endian: magic (8 bytes), version (4), whether all is there (4), images (8), bytes of an image (8), key (16), zeros up
// to 64 bytes; then per image a checksum (8; 0 means that nothing is there yet) and its bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "core/hash.h"

namespace bitloom::data {

// Puts image i, as bytes, into `out`. Called by several threads at once, for each i at most once.
using DecodeImage = std::function<void(std::size_t i, std::span<std::uint8_t> out)>;

// Calls f(i) for all i < images, on all threads. Throws Error(data) for all that f threw (bad_images.h), others at once.
void for_all_images(std::size_t images, const std::function<void(std::size_t i)>& f);

// May be read by several threads at once.
class PixelStore {
 public:
  // Opens FOLDER/KEY.pixels, or makes it: the processes of a host wait for the one that fills it, and what it did is there for
  // the next one if it is killed. Other files of pixels in the folder, the longest unused first, are removed until they and
  // this one take at most `limit` bytes; the file itself may exceed it. Throws Error(io) if the device has no room for it, or
  // fails, and what for_all_images() throws where `decode` does.
  static std::shared_ptr<const PixelStore> open(const std::filesystem::path& folder, std::uint64_t limit, const Hash128& key,
                                                std::size_t images, std::size_t image_bytes, const DecodeImage& decode);
  PixelStore(const PixelStore&) = delete;
  PixelStore& operator=(const PixelStore&) = delete;
  ~PixelStore();

  std::size_t images() const noexcept { return images_; }
  // Puts image i < images() into `out`, of the bytes of an image. What cannot be read is 0, and check() says so: threads of a
  // parallel loop must not throw.
  void read(std::size_t i, std::span<std::uint8_t> out) const noexcept;
  // Asks the system to fetch image i from the device; does not wait for it.
  void prefetch(std::size_t i) const noexcept;
  // Throws Error(io) if a read failed.
  void check() const;
  bool has_failed() const noexcept { return failed_ != images_; }

 private:
  PixelStore(std::filesystem::path path, int descriptor, const Hash128& key, std::size_t images, std::size_t image_bytes);

  std::uint64_t place_of(std::size_t i) const;
  std::uint64_t checksum_of(std::size_t i, std::span<const std::uint8_t> bytes) const;
  bool is_complete() const;
  bool try_read(std::size_t i, std::span<std::uint8_t> out) const noexcept;
  void fill(const DecodeImage& decode);
  void write(std::uint64_t place, std::span<const std::byte> bytes) const;

  std::filesystem::path path_;
  int descriptor_;
  Hash128 key_;
  std::size_t images_, image_bytes_;
  mutable std::atomic<std::size_t> failed_;  // the first image that could not be read; images_: none
};

}  // namespace bitloom::data
