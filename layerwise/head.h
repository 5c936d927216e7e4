// The auxiliary classifier on top of a layer's bits: it gives the layer its learning signal, and votes in the final net.
// All of its products are exact integer sums (int16 x int16 into int32, then int64 across examples), so loss gradients are the
// same bits for any number of ranks and threads and for any instruction set; floats appear only per example (softmax) and
// per parameter (Adam), in a fixed order.
//
// Letters: N images, G x G cells, C channels (padded to 64), F = features per image, L classes, J hidden units per cell.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/safetensors.h"
#include "layerwise/bit_map.h"
#include "layerwise/net.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// A float parameter with its Adam moments (Kingma, Ba 2015: beta 0.9 and 0.999, epsilon 1e-8).
struct AdamParameter {
  std::vector<float> value, mean, variance;

  void resize(std::size_t size);
  // gradient(i) = sums[i] * scale; `step` counts from 1.
  void update(std::span<const std::int64_t> sums, double scale, double learning_rate, double weight_decay, std::size_t step);
};

// Throws a usage error if a head does not fit a map: a grid larger than it, hidden units that are no multiple of 16.
void check_head(const HeadSpec& spec, const MapShape& map);

class Head {
 public:
  // Fixed-point steps per 1.0 of
  static constexpr float weight_steps = 4096;                                    // a weight: |weight| < 8
  static constexpr float error_steps = 4096;                                     // p - y
  static constexpr float hidden_steps = 64;                                      // a hidden activation
  static constexpr float hidden_error_steps = error_steps * weight_steps / 256;  // a hidden unit's gradient

  // Throws what check_head() does.
  Head(const HeadSpec& spec, const MapShape& map, std::size_t classes, std::uint64_t seed, std::uint64_t stream);

  const HeadSpec& spec() const { return spec_; }
  std::size_t features() const { return regions_ * channels_; }
  std::size_t regions() const { return regions_; }  // cells (linear, hidden) or taps (class_conv)
  std::size_t channels() const { return channels_; }
  std::size_t classes() const { return classes_; }
  std::size_t weight_bits() const { return weight_bits_; }  // bits of a weight: 16 unless round_weights() made them fewer
  std::size_t bytes() const;                                // bytes that the model file stores
  std::size_t macs() const;                                 // integer multiply-adds per image

  // Features of one image: counts (F) int16 of set bits per region and channel. bits: the layer's output without border.
  void count(const simd::Kernels& kernels, const std::uint64_t* bits, std::int16_t* counts) const;

  // logits (N, L) of counts (N, F).
  void predict(const simd::Kernels& kernels, const std::int16_t* counts, std::size_t n, float* logits) const;

  // The integers behind predict(), for callers that change a few counts of an image (exact_signal.h). Per image, with
  // e = counts - centre, all sums modulo 2^32:
  //   hidden[g,j] = round(clamp(64 max(0, float(sum_c e[g,c] input[j,c]) input_step + input_bias[j]), 2047))
  //   logit[l] = float(sum_f e[f] linear[l,f]) linear_step + float(sum_gj hidden[g,j] output[l,g,j]) output_step + bias[l]
  struct Integers {
    std::span<const std::int16_t> linear, input, output;  // (L,F) (J,C) (L,G*G*J)
    std::span<const std::int16_t> centre;                 // (F)
    std::span<const float> bias, input_bias;              // (L) (J)
    float linear_step, input_step, output_step;
  };
  Integers integers() const;

  // The region of an output pixel whose gradient belongs to it, or the number of regions if there are several (class_conv).
  std::size_t region_of(std::size_t y, std::size_t x) const;
  // Spreads gradients per region and channel to the pixel (y, x): adds to gradient (C).
  void add_pixel_gradient(const float* region_gradient, std::size_t y, std::size_t x, float* gradient) const;

  // Sums over examples that training needs: sized by `make_sums`, reduced over ranks by the caller.
  struct Sums {
    std::vector<std::int64_t> linear, linear_bias, hidden, hidden_bias, output, count, count_squared;
    std::array<std::span<std::int64_t>, 7> all();
    void clear();
  };
  Sums make_sums() const;

  struct Loss {
    std::int64_t micro_nats = 0;  // summed over the examples, each rounded: the sum does not depend on its order
    std::size_t correct = 0;
  };
  struct Objective {
    double smoothing = 0;                       // label smoothing: probability spread over all classes
    double dropout = 0;                         // probability that a feature is left out of an image (Srivastava et al. 2014)
    const std::uint64_t* keys = nullptr;        // (N), with dropout: what an image's choice is drawn from
    double teacher_share = 0;                   // share of the target that is the teacher's; of the rest, see smoothing
    const std::uint8_t* soft_labels = nullptr;  // (N, L), with a share: data/soft_labels.h
  };
  // Forward and backward over counts (N, F) with labels (N): adds to `sums`, writes the loss gradient of every count to
  // `gradient` (N, F), also of features that were left out. Any N; call it per thread with its own `sums`.
  Loss backward(const simd::Kernels& kernels, const std::int16_t* counts, const std::uint16_t* labels, std::size_t n,
                const Objective& objective, Sums& sums, float* gradient) const;

  // One Adam step with sums over `examples` images; the first `unsettled_observations` only set centre and scale of features.
  // Hidden units take half the rate. Features are correlated, so a step moves the logits by the rate times the number of
  // weights that feed them: the linear weights of more than 2,048 features take the rate by 2048 / features.
  void update(const Sums& sums, std::size_t examples, double learning_rate, double weight_decay);

  // The two halves of update(), for those who sum statistics less often than gradients.
  // Moves centre and scale of the features by what `steps` steps with such counts would.
  void observe(const Sums& sums, std::size_t examples, std::size_t steps);
  // Calls so far: gradients mean something from the third on.
  std::size_t observations() const { return observations_; }
  static constexpr std::size_t unsettled_observations = 2;
  // `scale`: that of the features when the gradients were taken.
  void learn(const Sums& sums, std::size_t examples, double learning_rate, double weight_decay, float scale);
  float feature_scale() const { return scale_; }

  // For a head that has learned: rounds its int16 weights to multiples q * step of a step for each row of a matrix, |q| below
  // 2^(bits - 1), so that the row's squared error is least among the steps that are tried. Files then store q in `bits` bits,
  // 2 to 15 of them; 16 leaves everything as it is. Until the next learn().
  void round_weights(std::size_t bits);

  // Takes what inference uses of another head of the same description: the start of its further training.
  void start_from(const Head& trained);

  // Saves all that inference needs, under "<prefix>."; with `training`, also masters and moments (bit-exact resume).
  void save(TensorFile& file, const std::string& prefix, bool training) const;
  void load(const TensorFile& file, const std::string& prefix, bool training);

 private:
  struct Workspace;
  void quantise();
  void centre(const std::int16_t* counts, std::size_t n, Workspace& work) const;
  void forward(const simd::Kernels& kernels, std::size_t n, float gain, Workspace& work, float* logits) const;

  HeadSpec spec_;
  MapShape map_;
  std::size_t classes_ = 0, padded_classes_ = 0;
  std::size_t channels_ = 0;
  std::size_t images_at_once_ = 0;
  std::size_t regions_ = 0, hidden_ = 0;
  bool has_hidden_ = false, binary_ = false;

  // Features are centred by whole numbers and scaled by one factor.
  std::vector<double> mean_;
  double mean_square_ = 0;
  std::vector<std::int16_t> centre_;
  float scale_ = 0;

  AdamParameter linear_, linear_bias_, input_, input_bias_, output_;  // (L,F) (L) (J,C) (J) (L,G*G*J)
  AdamParameter gain_;                                                // (1): the size of class_conv's weights
  std::size_t observations_ = 0, steps_ = 0;
  std::size_t weight_bits_ = 16;

  // int16 copies, as gemm_s16 reads them.
  std::vector<std::int16_t> linear_q_, input_q_, output_q_;
  Buffer<std::int16_t> linear_forward_, linear_backward_, input_forward_, input_backward_, output_forward_, output_backward_;
};

}  // namespace bitloom::layerwise
