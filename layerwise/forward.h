// Runs images through the encoder and the layers of a net, one image per thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "layerwise/encoder.h"
#include "layerwise/layer.h"

namespace bitloom::layerwise {

// Where one thread keeps the maps of the image it works on. `maps[0]` is the encoder's output, `maps[i + 1]` that of layer i;
// they point into the owned buffers or wherever the caller placed a map.
struct ForwardWorkspace {
  std::vector<Buffer<std::uint64_t>> owned;
  std::vector<Buffer<std::uint64_t>> inputs;  // padded input of each layer; their borders stay 0
  std::vector<const std::uint64_t*> maps;
  EncodeScratch scratch;
};

class NetForward {
 public:
  NetForward(const simd::Kernels& kernels, const Encoder& encoder, const std::vector<BinaryLayer>& layers)
      : kernels_(kernels), encoder_(encoder), layers_(layers) {}

  // Buffers for the encoder and for the layers marked in `needed` (all if it is empty).
  ForwardWorkspace make_workspace(const std::vector<bool>& needed = {}) const;

  // image: channels x height x width bytes.
  void encode(const std::uint8_t* image, ForwardWorkspace& work) const;
  // The same for an image moved from one whose bits are `unmoved` (Encoder::encode_moved).
  void encode_moved(const std::uint8_t* image, const std::uint64_t* unmoved, int down, int across,
                    ForwardWorkspace& work) const;
  // Layer i from the maps of its inputs.
  void run_layer(std::size_t i, ForwardWorkspace& work) const;
  // Down-samples and concatenates the inputs of layer i into the interior of `target` (geometry().input).
  void gather_input(std::size_t i, const ForwardWorkspace& work, std::uint64_t* target) const;

 private:
  const simd::Kernels& kernels_;
  const Encoder& encoder_;
  const std::vector<BinaryLayer>& layers_;
};

// For each layer of the net: is it needed to compute the layers named in `wanted` (indices)?
std::vector<bool> needed_layers(const std::vector<BinaryLayer>& layers, const std::vector<std::size_t>& wanted);

}  // namespace bitloom::layerwise
