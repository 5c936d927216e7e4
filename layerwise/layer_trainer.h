// The training state of one layer: an integer of at most 16 bits per weight, and per channel the statistics that place its
// threshold. It turns summed gradients into weight flips and thresholds; it knows nothing of examples.
//
// Letters: O channels, B patch bits, C input channels (padded to words).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "layerwise/layer.h"
#include "layerwise/muon.h"
#include "layerwise/rules.h"
#include "mpi/sparse.h"

namespace bitloom::layerwise {

// Mean magnitude of the gradient codes in the window, to which gradients are rounded. Means of 1 to 16 are ties
// (EXPERIMENTS.md).
constexpr double code_target = 2;

struct LayerOptions {
  RuleOptions rule;
  double threshold_learning_rate = 0.1;  // Adam's learning rate for the threshold offset b
  double initial_offset = -1.0;          // b at the start: how many standard deviations below the mean the threshold lies
  // Bounds of b. Without them noise drives channels to be always on, or on in a thousandth of the pixels, where no gradient
  // leads back: after ten epochs 29% of 1,024 channels had more than nine bits in ten set, and the next layer diverged.
  double smallest_offset = -2.0;
  double largest_offset = 0.0;
  double active_share = 0.07;  // the share of pixels that the window is steered to hold at the start of a stage
  // The same at its end, to which it goes as the learning rates fall; 0: active_share. Few pixels near the threshold tell best
  // what a flip does, and take less time, but wide windows bring a signal to all layers at first.
  double final_active_share = 0;
  double initial_window = 0.25;  // half width of the surrogate-gradient window at the start, in standard deviations
  double largest_window = 2.0;   // and at most, however few pixels are active
  // Decay of the mean squares of gradients by row and by column, whose roots divide the gradients (factored second moments, the
  // Adafactor of Shazeer and Stern 2018); 0: one root mean square, of the whole layer and of this step alone.
  double second_moment_decay = 0;
  // Decay of the momentum that is made orthogonal before it moves accumulators (muon.h), instead of second moments; 0:
  // gradients move them.
  double muon_momentum = 0;
  bool exact = false;          // the exact loss change of every flip instead of the windowed first-order signal
  bool learn_weights = true;   // false: weights stay as drawn; thresholds and heads learn (the control)
  std::size_t flip_limit = 0;  // most flips in an update, the surest of those that a rule wants, the others later; 0: all
};

// Integer sums over examples that one step needs, reduced over ranks by the caller.
struct LayerSums {
  std::vector<std::int64_t> exact;       // (O, moves, B): exact loss changes (exact_signal.h); empty for the windowed signal
  std::vector<std::int32_t> weight;      // (O, B): value x input bit; written as a whole, by accumulate_weight_gradient()
  std::vector<std::int64_t> statistics;  // see the accessors
  std::size_t channels = 0, in_channels = 0;

  std::span<std::int64_t> part(std::size_t begin, std::size_t size) { return {statistics.data() + begin, size}; }
  std::span<const std::int64_t> part(std::size_t begin, std::size_t size) const { return {statistics.data() + begin, size}; }
  // channels is padded to 64 here
  auto count() { return part(0, channels); }                        // sum of e = d - 32 P
  auto count_squared() { return part(channels, channels); }         // sum of e * e
  auto value() { return part(2 * channels, channels); }             // sum of codes' values
  auto active() { return part(3 * channels, channels); }            // pixels in the window
  auto input() { return part(4 * channels, in_channels); }          // set input bits
  auto magnitude() { return part(4 * channels + in_channels, 1); }  // sum of codes' magnitudes
  auto count() const { return part(0, channels); }
  auto count_squared() const { return part(channels, channels); }
  auto value() const { return part(2 * channels, channels); }
  auto active() const { return part(3 * channels, channels); }
  auto input() const { return part(4 * channels, in_channels); }
  auto magnitude() const { return part(4 * channels + in_channels, 1); }
  // All that is added to: not `weight`, whose zeros would be megabytes written for nothing.
  void clear();
};

// Throws a usage error if the rule does not exist or cannot train the layer's weights: ternary or tied ones.
void check_rule(const RuleOptions& options, const BinaryLayer& layer);

class LayerTrainer {
 public:
  // Draws the weights' states (seed, stream) and sets the signs of `layer`, which must outlive the trainer. `again`: the layer
  // was trained before and keeps its weights and thresholds; their states are `before` (O, B) or, where that is empty, drawn to
  // go with them.
  LayerTrainer(BinaryLayer& layer, const LayerOptions& options, std::uint64_t seed, std::uint64_t stream, bool again = false,
               std::span<const std::int16_t> before = {});

  BinaryLayer& layer() { return layer_; }
  const BinaryLayer& layer() const { return layer_; }
  LayerSums make_sums() const;

  // Thresholds and window for the convolution (padded O), and the slope (padded O, 0 beyond O) of q = dL/dy * slope.
  simd::ConvThresholds thresholds() const { return {layer_.thresholds().data(), low_.data(), high_.data()}; }
  const std::vector<float>& slope() const { return slope_; }
  float unit() const { return unit_; }

  // First look at a batch of `images`: sets mean, variance and thresholds from sums.count() and sums.count_squared().
  void set_statistics(const LayerSums& sums, std::size_t images);
  // After every step: moves statistics, window and unit; with `learn`, also the weights and the offsets. `rate` is the
  // share of the learning rates (schedule). Returns the number of weights flipped.
  std::size_t update(const LayerSums& sums, std::size_t images, double rate, bool learn, std::uint64_t step);

  // The parts of update(), in their order, for those who exchange less than all sums in every step. Whoever holds the
  // accumulators chooses; all apply.
  // Moves statistics and windows by what `steps` steps with such sums would. rate: as for update().
  void observe(const LayerSums& sums, std::size_t images, std::size_t steps, double rate);
  // Moves the accumulators and notes the weights' new values; sums.weight or sums.exact hold the gradient, of which one root
  // mean square (with second moments: of its row and column) counts 1. centred_rms: sums.weight is what centre() makes, and
  // this is that root mean square: where gradients wait until they are large, that of what arrives tells little.
  void choose(const LayerSums& sums, double rate, std::uint64_t step, std::optional<double> centred_rms = std::nullopt);
  // The changes that choose() noted: (O, B), the new minus the old value of the weights that change.
  mpi::SparseVector changes() const;
  // Notes changes that others chose. Throws Error(data) if they do not fit the weights.
  void take_changes(const mpi::SparseVector& changes);
  // Makes the noted values those of the layer. Returns the number of weights that changed. unseen: steps whose statistics will
  // be part of the next sums that observe() gets, but were taken before these changes. Tied weights count once.
  std::size_t apply(std::size_t unseen = 0);
  // Moves the offsets; value: sums over examples of codes' values, per channel.
  void adapt(std::span<const std::int64_t> value, double rate);
  // Fits the unit to the magnitudes of the gradient, which were measured in unit `used`.
  void fit_unit(const LayerSums& sums, float used);
  void place_thresholds();

  // Sent by a logical worker for a channel instead of its counts (B) in sums.weight, `shift` bits finer: the gradient for a
  // centred input, without its factor of -2 (see choose()). total: the channel's sum of values.
  void centre(const std::int32_t* counts, std::int64_t total, unsigned shift, std::int32_t* centred) const;

  // The same of exact loss changes (O, M, B): minus the slopes (O, B), for trits twice them, which unlike changes do not depend
  // on what a weight is. In steps of 2^-20 nats; what exceeds 29 bits is cut off.
  void exact_slopes(std::span<const std::int64_t> changes, std::span<std::int32_t> slopes) const;

  double mean_offset() const;
  double mean_window() const;
  std::size_t state_bits_per_weight() const;
  // The states of the weights (O, B), such as accumulators.
  std::span<const std::int16_t> states() const { return state_; }

  // All state for a bit-exact resume, under "<layer>.train.".
  void save(TensorFile& file) const;
  void load(const TensorFile& file);

 private:
  struct Offset {  // b with Adam's moments
    double value = 0, mean = 0, variance = 0;
  };
  void spread_density();
  double gather_squares(const LayerSums& sums, bool centred);
  void move_second_moments(double inverse);
  double gradient_of(const LayerSums& sums, std::size_t row, bool centred, float* gradient) const;
  double own_gradient(const LayerSums& sums, std::size_t o, bool centred, float* gradient) const;
  void flip_highest_scores(std::size_t most);
  void limit_flips();
  bool are_tied(const mpi::SparseVector& changes, std::span<const std::uint64_t> weights) const;
  void exact_gradient(const LayerSums& sums, std::size_t o, float* gradient) const;
  double expected_count(bool sign, bool nonzero, float density) const;

  BinaryLayer& layer_;
  LayerOptions options_;
  const UpdateRule& rule_;
  bool again_;
  std::uint64_t flip_key_;           // key of the random draws of rules
  std::vector<std::int16_t> state_;  // (O, B)
  std::vector<double> mean_, variance_, window_;
  std::vector<double> unseen_;  // moves of the means by changes, times the steps that did not see them
  std::vector<Offset> offset_;
  std::vector<double> density_;  // (C): share of set input bits
  std::vector<float> inside_;    // (taps): share of output pixels whose patch has this tap inside the map
  Buffer<std::int32_t> low_, high_;
  std::vector<float> slope_;
  float unit_ = 1e-3F;
  std::uint64_t offset_step_ = 0;
  // With options_.second_moment_decay: mean squares of the gradients of a row (of weights) and a column (B), in units of the
  // layer's mean square, at which they begin.
  std::vector<double> row_moment_, column_moment_;
  std::optional<Muon> muon_;  // with options_.muon_momentum

  std::vector<float> density_of_bit_;  // (B): share of set bits of an output pixel's patch, from density_ and inside_

  // Scratch of choose() and apply().
  std::vector<double> row_squares_, column_squares_;
  std::vector<float> row_scale_, column_scale_;
  std::vector<std::uint64_t> new_sign_, new_nonzero_;
  std::vector<std::size_t> histogram_;
};

}  // namespace bitloom::layerwise
