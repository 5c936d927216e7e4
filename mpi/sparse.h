// Sparse integer vectors and the messages that carry them: what a worker sends of its gradients, and what merging ranks make of
// several such messages. Integers, so that a sum over workers depends neither on the order nor on the tree in which it is
// formed.
//
// A message is self-describing, and lossless; what to leave out and how finely to round is decided before (sparse_filter.h).
//   byte 0      0xB5
//   byte 1      version, 1
//   byte 2      bit 0: dense, every element is there; bit 1: values are Rice codes of parameter p, otherwise p bits each
//   byte 3      p, 0 to 63
//   byte 4      sparse only: the Rice parameter of gaps, 0 to 31
//   varints     size; sparse only: the number of entries; step, the common divisor of the values
//   bits        least significant first, zeros up to a full byte: sparse: the gaps between indices, then per entry its sign and
//               |value| / step - 1; dense: value / step of every element, mapped 0, -1, 1, -2, ... -> 0, 1, 2, 3, ...
// A varint holds 7 bits a byte, the lowest first, bit 7 set in all but the last. A Rice code of u with parameter p is u >> p
// zeros, a one, and the low p bits of u; where there would be 24 zeros or more, it is 24 zeros and the 64 bits of u (Rice,
// Plaunt 1971).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bitloom::mpi {

// The elements of an integer vector that are not 0.
struct SparseVector {
  static constexpr std::uint64_t largest_size = std::uint64_t{1} << 32U;

  std::uint64_t size = 0;            // size of the whole vector, at most largest_size
  std::vector<std::uint32_t> index;  // ascending, below size
  std::vector<std::int64_t> value;   // by entry; not 0

  bool operator==(const SparseVector&) const = default;
};

// |value|, that of -2^63 included.
inline std::uint64_t magnitude(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  return value < 0 ? ~bits + 1 : bits;
}

// The elements of `dense` that are not 0.
SparseVector to_sparse(std::span<const std::int64_t> dense);

// Appends the message of a vector to `out`, in the form that is shortest; returns its bytes.
std::size_t encode(const SparseVector& vector, std::vector<std::byte>& out);

// Bytes of that message, which is not written.
std::size_t encoded_size(const SparseVector& vector);

// Throws Error(data) for anything that is not a message, in whatever form encode() might have chosen; allocates in proportion
// to the message, whatever it claims.
SparseVector decode(std::span<const std::byte> message);

// The sum of vectors of one size, modulo 2^64; elements that cancel are left out. Throws Error(usage) if sizes differ.
SparseVector merge(std::vector<SparseVector> parts);

// sums[i] += vector[i], modulo 2^64. Throws Error(usage) if sizes differ.
void add_to(std::span<std::int64_t> sums, const SparseVector& vector);

}  // namespace bitloom::mpi
