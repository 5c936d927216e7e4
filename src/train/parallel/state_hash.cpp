#include "train/parallel/state_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/hash.h"
#include "core/random.h"

namespace bitloom::train {

std::uint64_t hash_elements(nn::Engine& engine, const HeldTensor& held) {
  const std::uint64_t name = Hasher().update(std::string_view(held.name)).finish().low;
  const nn::Tensor flat = held.tensor->reshaped({held.tensor->size()});
  const std::size_t size = dtype_size(flat.dtype());
  const std::size_t piece = state_piece_bytes / size;
  std::vector<std::byte> bytes(std::min(piece, flat.size()) * size);
  std::uint64_t sum = 0;
  for (std::size_t begin = 0; begin < flat.size(); begin += piece) {
    const std::size_t count = std::min(piece, flat.size() - begin);
    engine.read(flat.slice(begin, begin + count), flat.dtype(), std::span(bytes).first(count * size));
    std::uint64_t part = 0;
#pragma omp parallel for schedule(static) reduction(+ : part)
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(count); ++i) {
      const auto k = static_cast<std::size_t>(i);
      std::uint64_t bits = 0;
      std::memcpy(&bits, bytes.data() + k * size, size);
      part += mix64(mix64(name + held.holding.numbers(begin + k)) ^ bits);
    }
    sum += part;
  }
  return sum;
}

}  // namespace bitloom::train
