#include "core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <charconv>
#include <new>

namespace bitloom {
namespace {

Hash128 from_xxh(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

std::optional<Hash128> Hash128::parse(std::string_view text) {
  constexpr std::size_t digits = 16;  // per half
  if (text.size() != 2 * digits) return std::nullopt;
  Hash128 hash;
  const char* begin = text.data();
  const auto high = std::from_chars(begin, begin + digits, hash.high, 16);
  const auto low = std::from_chars(begin + digits, begin + 2 * digits, hash.low, 16);
  if (high.ec != std::errc() || high.ptr != begin + digits) return std::nullopt;
  if (low.ec != std::errc() || low.ptr != begin + 2 * digits) return std::nullopt;
  return hash;
}

Hash128 hash_bytes(std::span<const std::byte> bytes) { return from_xxh(XXH3_128bits(bytes.data(), bytes.size())); }

Hasher::Hasher() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::FreeState::operator()(XXH3_state_s* state) const noexcept { XXH3_freeState(state); }

Hasher& Hasher::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  return *this;
}

Hasher& Hasher::update(std::string_view text) {
  update_word(text.size());
  return update(std::as_bytes(std::span(text.data(), text.size())));
}

Hasher& Hasher::update(double value) { return update_word(std::bit_cast<std::uint64_t>(value)); }

Hasher& Hasher::update_word(std::uint64_t word) { return update(std::as_bytes(std::span(&word, 1))); }

Hash128 Hasher::finish() const { return from_xxh(XXH3_128bits_digest(state_.get())); }

}  // namespace bitloom
