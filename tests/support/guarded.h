// An output array for kernel tests: poisoned before the call, with guard bytes around it that are checked after the call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "core/buffer.h"

namespace bitloom::test {

template <typename T>
class Guarded {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // `size` elements, the first one 64-byte aligned. Every byte of them is `poison`.
  explicit Guarded(std::size_t size) : size_(size), bytes_(2 * guard_bytes + size * sizeof(T)) {
    std::fill(bytes_.begin(), bytes_.end(), guard);
    refill();
  }

  T* data() { return reinterpret_cast<T*>(bytes_.data() + guard_bytes); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + guard_bytes); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), size_}; }
  std::span<const T> span() const { return {data(), size_}; }

  // Poisons the elements again, for the next call.
  void refill() { std::fill_n(bytes_.data() + guard_bytes, size_ * sizeof(T), poison); }

  // Whether nothing wrote before the first or after the last element.
  bool guards_intact() const {
    const auto is_guard = [](unsigned char byte) { return byte == guard; };
    return std::all_of(bytes_.begin(), bytes_.begin() + guard_bytes, is_guard) &&
           std::all_of(bytes_.end() - guard_bytes, bytes_.end(), is_guard);
  }

  // Whether element i still holds the poison in all its bytes: nothing wrote it.
  bool untouched(std::size_t i) const {
    const unsigned char* begin = bytes_.data() + guard_bytes + i * sizeof(T);
    return std::all_of(begin, begin + sizeof(T), [](unsigned char byte) { return byte == poison; });
  }

 private:
  static constexpr std::size_t guard_bytes = 128;  // two vectors of 64 bytes
  static constexpr unsigned char guard = 0xa7;
  static constexpr unsigned char poison = 0xcd;

  std::size_t size_;
  Buffer<unsigned char> bytes_;
};

}  // namespace bitloom::test
