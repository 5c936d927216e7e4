// A binary (or ternary) layer as the finished net uses it: packed weights and one integer threshold per channel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/safetensors.h"
#include "layerwise/net.h"
#include "layerwise/ties.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// Letters: O output channels, P words of a patch (kernel rows x kernel columns x words per input pixel).
class BinaryLayer {
 public:
  BinaryLayer() = default;
  // All weights +1, all thresholds -1 (no output bit is set).
  BinaryLayer(const LayerSpec& spec, const LayerGeometry& geometry);

  const LayerSpec& spec() const { return spec_; }
  const LayerGeometry& geometry() const { return geometry_; }
  std::size_t channels() const { return spec_.channels(); }
  std::size_t padded_channels() const { return threshold_.size(); }  // to a multiple of 64
  std::size_t patch_words() const { return geometry_.patch_words; }
  std::size_t patch_bits() const { return geometry_.patch_words * word_bits; }
  simd::ConvShape conv_shape() const;  // as long as the layer lives
  simd::ConvWeights conv_weights() const { return {packed_.data(), spec_.ternary ? packed_nonzero_.data() : nullptr}; }

  // (O, P) words: bit k set means weight -1; `nonzero` (ternary only) bit k set means not 0.
  const Buffer<std::uint64_t>& rows() const { return rows_; }
  const Buffer<std::uint64_t>& nonzero_rows() const { return nonzero_; }
  // Replaces row o; nonzero is null for binary layers. Bits that no input can reach must be 0, and tied weights (ties.h) the
  // same.
  void set_row(std::size_t o, const std::uint64_t* sign, const std::uint64_t* nonzero);
  // (padded O); entries at and beyond O stay -1.
  Buffer<std::int32_t>& thresholds() { return threshold_; }
  const Buffer<std::int32_t>& thresholds() const { return threshold_; }
  // (P) words: the bits of a patch that some input channel can set; the others are tails of words.
  const std::vector<std::uint64_t>& valid_bits() const { return ties_.valid(); }

  // One image: input with border (geometry().input) to output without (geometry().output).
  void forward(const simd::Kernels& kernels, const std::uint64_t* input, std::uint64_t* output) const;

  std::size_t bit_macs() const;  // per image; of rows that serve several thresholds once where the kernels do so
  const Ties& ties() const { return ties_; }
  std::size_t weights() const { return ties_.rows() * ties_.weights_per_row(); }  // tied ones count once
  std::size_t weight_bits() const { return weights() * (spec_.ternary ? 2 : 1); }

  // Under "<name>.sign", ".nonzero", ".threshold"; tied weights stand once. Load throws data errors.
  void save(TensorFile& file) const;
  void load(const TensorFile& file);
  // The layer in a file, which is compared with what the layer should be before there is room for it.
  static BinaryLayer read(const LayerSpec& spec, const LayerGeometry& geometry, const TensorFile& file);

 private:
  LayerSpec spec_;
  LayerGeometry geometry_;
  Ties ties_;
  Buffer<std::uint64_t> rows_, nonzero_;
  Buffer<std::uint32_t> packed_, packed_nonzero_;
  Buffer<std::int32_t> threshold_;
  std::vector<std::uint16_t> twin_;  // simd::ConvShape::twin, empty without pairs
};

}  // namespace bitloom::layerwise
