#include "core/bits.h"
#include "simd/kernels.h"

namespace bitloom::simd {

void pack_conv_weight_row(const std::uint64_t* row, std::size_t o, std::size_t patch_words, std::uint32_t* packed) {
  const std::size_t halves = 2 * patch_words;
  std::uint32_t* lane = packed + o / weight_lanes * halves * weight_lanes + o % weight_lanes;
  for (std::size_t half = 0; half < halves; ++half) lane[half * weight_lanes] = load_half(row, half);
}

void pack_conv_weights(const std::uint64_t* rows, std::size_t out_channels, std::size_t patch_words, std::uint32_t* packed) {
  std::memset(packed, 0, packed_conv_weights_size(out_channels, patch_words) * sizeof *packed);
  for (std::size_t o = 0; o < out_channels; ++o) pack_conv_weight_row(rows + o * patch_words, o, patch_words, packed);
}

}  // namespace bitloom::simd
