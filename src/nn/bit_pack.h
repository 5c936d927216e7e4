// Small numbers packed into bytes without gaps: number i of b bits has bits i b .. i b + b - 1 of the stream, where bit k of
// the stream is bit k % 8 of byte k / 8, least significant first. The unused bits of the last byte are 0. Everything in src/nn
// that stores fewer than 8 bits per element does it this way.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bitloom::nn {

// ceil(count bits / 8), bits in 1..8.
constexpr std::size_t packed_bytes(std::size_t count, unsigned bits) {
  return count / 8 * bits + (count % 8 * bits + 7) / 8;  // count * bits may not fit
}

// Writes numbers one after the other; finish() after the last one.
class BitPacker {
 public:
  // `out` has packed_bytes(count, bits) bytes for the `count` numbers to come.
  BitPacker(std::uint8_t* out, unsigned bits) : out_(out), bits_(bits) {}

  // number < 2^bits.
  void put(std::uint32_t number) {
    held_ |= number << used_;
    used_ += bits_;
    if (used_ < 8) return;
    *out_++ = static_cast<std::uint8_t>(held_);
    held_ >>= 8U;
    used_ -= 8;
  }

  void finish() {
    if (used_ > 0) *out_++ = static_cast<std::uint8_t>(held_);
    held_ = 0;
    used_ = 0;
  }

 private:
  std::uint8_t* out_;
  unsigned bits_;
  std::uint32_t held_ = 0;
  unsigned used_ = 0;  // bits of held_, fewer than 8 between calls
};

// Reads them in the same order; reads no byte before it is needed.
class BitUnpacker {
 public:
  BitUnpacker(const std::uint8_t* in, unsigned bits) : in_(in), bits_(bits) {}

  std::uint32_t get() {
    if (left_ < bits_) {
      held_ |= std::uint32_t{*in_++} << left_;
      left_ += 8;
    }
    const std::uint32_t number = held_ & ((1U << bits_) - 1);
    held_ >>= bits_;
    left_ -= bits_;
    return number;
  }

 private:
  const std::uint8_t* in_;
  unsigned bits_;
  std::uint32_t held_ = 0;
  unsigned left_ = 0;
};

}  // namespace bitloom::nn
