// Bits in bytes, least significant first, with the codes of sparse messages. Private to mpi/.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "core/error.h"

namespace bitloom::mpi {

inline constexpr unsigned rice_escape = 24;  // zeros that announce a number in full

inline std::uint64_t rice_bits(std::uint64_t u, unsigned parameter) {
  const std::uint64_t quotient = u >> parameter;
  return quotient < rice_escape ? quotient + 1 + parameter : rice_escape + 64;
}

// A varint holds 7 bits a byte, the lowest first, bit 7 set in all but the last.
inline void put_varint(std::vector<std::byte>& out, std::uint64_t number) {
  for (; number >= 0x80U; number >>= 7U) out.push_back(static_cast<std::byte>(number | 0x80U));
  out.push_back(static_cast<std::byte>(number));
}

inline std::size_t varint_bytes(std::uint64_t number) {
  return (static_cast<std::size_t>(std::bit_width(number | 1U)) + 6) / 7;
}

// Reads a varint from the front of `bytes`, which moves on. Throws Error(data).
inline std::uint64_t get_varint(std::span<const std::byte>& bytes, const char* what) {
  std::uint64_t number = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) break;
    const auto byte = std::to_integer<std::uint64_t>(bytes.front());
    bytes = bytes.subspan(1);
    const std::uint64_t part = byte & 0x7FU;
    if (part << shift >> shift != part) break;
    number |= part << shift;
    if (byte < 0x80U) return number;
  }
  fail(ErrorKind::data, "sparse message: its {} is cut off or too large", what);
}

class BitWriter {
 public:
  explicit BitWriter(std::vector<std::byte>& out) : out_(out) {}

  // The low `count` <= 64 bits of `bits`; the others are 0.
  void put(std::uint64_t bits, unsigned count) {
    word_ |= bits << used_;
    if (used_ + count < 64) {
      used_ += count;
      return;
    }
    append(sizeof word_);
    word_ = used_ == 0 ? 0 : bits >> (64 - used_);
    used_ = used_ + count - 64;
  }

  void put_rice(std::uint64_t u, unsigned parameter) {
    const std::uint64_t quotient = u >> parameter;
    if (quotient >= rice_escape) {
      put(0, rice_escape);
      put(u, 64);
      return;
    }
    put(std::uint64_t{1} << quotient, static_cast<unsigned>(quotient) + 1);
    put(u & ((std::uint64_t{1} << parameter) - 1), parameter);
  }

  void finish() {
    append((used_ + 7) / 8);
    word_ = 0;
    used_ = 0;
  }

 private:
  // The first bytes of word_.
  void append(std::size_t bytes) {
    const auto parts = std::bit_cast<std::array<std::byte, sizeof word_>>(word_);
    out_.insert(out_.end(), parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(bytes));
  }

  std::vector<std::byte>& out_;
  std::uint64_t word_ = 0;
  unsigned used_ = 0;  // bits of word_, fewer than 64 between calls
};

// Throws Error(data) at the end of the bytes.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes), bits_(bytes.size() * 8) {}

  std::uint64_t left() const { return bits_ - at_; }

  // `count` <= 64 bits.
  std::uint64_t get(unsigned count) {
    if (count > left()) fail(ErrorKind::data, "sparse message: it ends in the middle of its {} bytes of codes", bytes_.size());
    if (count > 32) {
      const std::uint64_t low = get(32);
      return low | get(count - 32) << 32U;
    }
    const std::uint64_t bits = peek() & ((std::uint64_t{1} << count) - 1);
    at_ += count;
    return bits;
  }

  std::uint64_t get_rice(unsigned parameter) {
    const std::uint64_t ahead = peek();
    const auto zeros = static_cast<unsigned>(std::countr_zero(ahead | std::uint64_t{1} << rice_escape));
    if (zeros == rice_escape) {
      get(rice_escape);
      return get(64);
    }
    if (parameter > 0 && std::uint64_t{zeros} >> (64 - parameter) != 0) {
      fail(ErrorKind::data, "sparse message: a Rice code of {} zeros and {} bits does not fit 64 bits", zeros, parameter);
    }
    get(zeros + 1);
    return std::uint64_t{zeros} << parameter | get(parameter);
  }

 private:
  // At least 56 bits from here on, zeros beyond the end.
  std::uint64_t peek() const {
    std::uint64_t word = 0;
    const std::size_t first = at_ / 8;
    if (first < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + first, bytes_.size() - first < sizeof word ? bytes_.size() - first : sizeof word);
    }
    return word >> (at_ % 8);
  }

  std::span<const std::byte> bytes_;
  std::uint64_t bits_;
  std::uint64_t at_ = 0;
};

}  // namespace bitloom::mpi
