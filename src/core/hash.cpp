#include "core/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <new>

namespace bitloom {
namespace {

Hash128 from_xxh(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

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
