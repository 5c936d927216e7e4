// Pieces of full tensors and texts on their way between processes. Private to state_exchange.cpp and state_gather.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/parallel/state_exchange.h"

namespace bitloom::train {

// Number of elements of a full tensor in a piece.
inline std::uint64_t piece_elements(DType dtype) { return state_piece_bytes / dtype_size(dtype); }

inline std::uint64_t elements_of(const std::vector<std::size_t>& shape) {
  std::uint64_t elements = 1;
  for (const std::size_t length : shape) elements *= length;
  return elements;
}

inline std::vector<std::byte> bytes_of_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Copies between the own bytes of elements from .. of the full tensor and a piece that begins at `from`.
template <typename Own, typename Piece, typename Copy>
void exchange(const Holding& holding, std::size_t element_size, std::uint64_t from, std::uint64_t to, Own own, Piece piece,
              Copy copy) {
  const std::uint64_t first = holding.below(from);
  holding.numbers.for_runs(first, holding.below(to), [&](std::size_t at, std::size_t full, std::size_t length) {
    copy(own.subspan((at - first) * element_size, length * element_size),
         piece.subspan((full - from) * element_size, length * element_size));
  });
}

}  // namespace bitloom::train
