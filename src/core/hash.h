// XXH3, 128 bits (xxHash, Yann Collet): checksums of files and names of cache entries. Not for security.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;  // from xxhash.h, which only hash.cpp includes

namespace bitloom {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  // 32 lower-case hexadecimal digits, high half first, as `xxhsum -H2` prints them.
  std::string hex() const;

  friend bool operator==(const Hash128&, const Hash128&) = default;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
};

Hash128 hash_bytes(std::span<const std::byte> bytes);

// Hashes a sequence of fields. Strings carry their length and numbers are widened to 64 bits, so that two different
// sequences of them never feed the same bytes; raw bytes carry nothing (one update of n bytes then equals hash_bytes):
// precede them by their size where that can vary.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();

  Hasher& update(std::span<const std::byte> bytes);
  Hasher& update(std::string_view text);
  Hasher& update(double value);  // by its bits: 0.0 and -0.0 differ
  template <std::integral Integer>
  Hasher& update(Integer value) {
    // Sign-extended, so that an int and a std::int64_t of the same value hash alike.
    return update_word(static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
  }
  // The hash of everything so far; may be called again after more updates.
  Hash128 finish() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  Hasher& update_word(std::uint64_t word);

  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

}  // namespace bitloom
