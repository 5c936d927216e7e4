// The exact learning signal of the essay "Distributed training" ("Implementation"): what every single-weight flip of a layer
// would do to the loss of the head on top of it. No derivative and no smoothing: the result equals flipping the weight, running
// the layer and the head again, and subtracting the losses, for every weight, to the last bit. Thresholds stay as they are.
//
// Flipping weight k of channel o moves d = popcount(x xor w) of every pixel by one: up where x_k == w_k, down elsewhere. The
// output bit y = [d <= T] turns off where d == T goes up, and on where d == T + 1 goes down. So only the edge pixels,
// d in {T, T + 1}, matter: few per image and channel. They fall into zones: pixels whose bits the head counts into the same
// regions. The loss depends on how many bits turn on and off per zone alone; with X_z(k) the number of edge pixels of zone z
// whose patch has bit k set, n_z edge pixels, n_z^off of them at T and n_z^on at T + 1, and v_z the number of set bits among
// them after the flip,
//   w_k = +1 (sign bit 0): set stay those at T that have x_k = 1, set become those at T + 1 that have it: v_z = X_z(k)
//   w_k = -1 (sign bit 1): the same with x_k = 0: v_z = n_z - X_z(k).
// For ternary weights d = popcount((x xor sign) & nonzero): a trit's move to or from 0 changes d only at half of the inputs,
// and only one way, so one kind of edge pixel keeps its bits:
//   +1 -> -1  X_off + X_on           -1 -> +1  n_off - X_off + n_on - X_on
//   +1 -> 0   n_off + X_on           -1 -> 0   n_off + n_on - X_on
//   0 -> +1   n_off - X_off          0 -> -1   X_off
// All v_z of a weight are digits of one integer (mixed radix), which Kernels::accumulate_rows sums up directly; weights with
// the same integer make the same change of the counts and share one evaluation of the softmax.
//
// Letters: N images, H x W output pixels, O channels, B patch bits, M moves per weight (1 binary, 2 ternary), F features of
// the head.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "layerwise/exact_head.h"
#include "layerwise/layer.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// Loss deltas are whole numbers of 2^-20 nats, each image's rounded to nearest (ties to even): their sums over images do not
// depend on an order.
inline constexpr double exact_steps = 0x1p20;

// The values that a trit of `value` -1, 0 or +1 can move to: the larger one first.
constexpr std::array<int, 2> trit_moves(int value) { return {value == 1 ? 0 : 1, value == -1 ? 0 : -1}; }

// Moves of a weight: 1 of a binary one, 2 of a trit.
inline std::size_t moves_per_weight(const BinaryLayer& layer) { return layer.spec().ternary ? 2 : 1; }

// Results of one forward pass.
struct ExactBatch {
  const std::uint64_t* inputs = nullptr;   // (N) maps of geometry().input, with border
  const std::uint64_t* outputs = nullptr;  // (N) maps of geometry().output
  const std::uint64_t* edges = nullptr;    // (N, H*W, words): the window of Kernels::conv with low = T, high = T + 1
  const std::int16_t* counts = nullptr;    // (N, F): Head::count of the outputs
  const std::uint16_t* labels = nullptr;   // (N)
  std::size_t images = 0;
};

// Sums over (image, channel) pairs.
struct ExactStatistics {
  std::int64_t edge_pixels = 0;
  std::int64_t moves = 0;     // weights x M
  std::int64_t distinct = 0;  // different changes of the counts, which is how often the softmax was computed
};

class ExactSignal {
 public:
  // `layer` must outlive it.
  explicit ExactSignal(const BinaryLayer& layer);
  ~ExactSignal();

  std::size_t moves() const { return moves_per_weight(layer_); }
  std::size_t size() const { return layer_.channels() * moves() * layer_.patch_bits(); }

  // deltas (O, M, B) += loss change of each move in steps of 2^-20 nats, summed over the images; 0 for bits that are no
  // weights. Move m of a trit leads to trit_moves(value)[m]. Parallel; the result is the same for any number of threads.
  ExactStatistics add(const simd::Kernels& kernels, const ExactHead& head, const ExactBatch& batch,
                      std::span<std::int64_t> deltas);

 private:
  struct Edges;
  class Channel;
  void find_edges(const ExactBatch& batch, std::size_t image, Edges& edges) const;

  const BinaryLayer& layer_;
  std::vector<std::uint32_t> weights_;  // positions in a patch that are weights
  std::vector<Edges> edges_;            // edges of a chunk of images
  std::vector<ExactHead::Image> images_;
  std::vector<Channel> workers_;  // one per thread
};

}  // namespace bitloom::layerwise
