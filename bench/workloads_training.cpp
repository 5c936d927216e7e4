// The smaller kernels of a training step.
#include <algorithm>
#include <bit>

#include "bench/workloads.h"
#include "layerwise/gradient.h"

namespace bitloom::bench {
namespace {

std::vector<float> normal_numbers(std::size_t n, std::uint64_t use) {
  Random random = random_for(use);
  std::vector<float> numbers(n);
  for (float& v : numbers) v = static_cast<float>(random.normal());
  return numbers;
}

class BackwardWorkload : public TypedWorkload<float> {
 public:
  explicit BackwardWorkload(std::size_t threads) : layer_(make_layer({channels, channels, size})), scratch_(threads) {
    constexpr std::size_t pixels = size * size;
    Random random = random_for(6);
    window_.assign(pixels * channels / word_bits, 0);
    codes_.assign(pixels * channels, layerwise::no_code);
    for (std::size_t k = 0; k < codes_.size(); ++k) {
      if (random.uniform() >= active_share) continue;
      set_bit(window_.data(), k, true);
      // Powers of two as gradients of mean magnitude 2 have them: half of the sizes 0 or 1, each further one half as often.
      const auto level = static_cast<std::uint8_t>(std::min(std::countr_zero(random.next()), 8));
      if (level > 0) codes_[k] = static_cast<std::uint8_t>((level - 1) | (random.next() & 8U));
      entries_ += level > 0 ? 1 : 0;
    }
    const layerwise::MapShape& map = layer_.geometry().input;
    outputs_ = per_thread<float>(threads, map.height * map.width * map.words() * word_bits);
    name = "backward convolution, 3x3 256->256, 32x32, 7% of the pixels in the window";
    items = 1;
    unit = "bit-add/s";
    operations = static_cast<double>(entries_ * layer_.patch_bits());
    of_peak = true;
    second_unit = "images/s";
    second = 1;
  }
  void run(const simd::Kernels& kernels, std::size_t, std::size_t thread) override {
    layerwise::input_gradient(kernels, layer_, window_.data(), codes_.data(), 0.5F, scratch_[thread], outputs_[thread].data());
  }

 private:
  static constexpr std::size_t channels = 256, size = 32;
  static constexpr double active_share = 0.07;
  layerwise::BinaryLayer layer_;
  std::vector<std::uint64_t> window_;
  std::vector<std::uint8_t> codes_;
  std::size_t entries_ = 0;
  std::vector<layerwise::BackwardScratch> scratch_;
};

class RoundingWorkload : public TypedWorkload<std::uint32_t> {
 public:
  explicit RoundingWorkload(std::size_t threads) : gradient_(normal_numbers(n, 7)), slope_(channels, 0.25F) {
    outputs_ = per_thread<std::uint32_t>(threads, n);
    name = "rounding prepared, 16 cells x 256 channels";
    items = 1;
    unit = "gradients/s";
    operations = static_cast<double>(n);
  }
  void run(const simd::Kernels& kernels, std::size_t, std::size_t thread) override {
    kernels.prepare_rounding(gradient_.data(), slope_.data(), n, channels, 8.0F, outputs_[thread].data());
  }

 private:
  static constexpr std::size_t channels = 256, n = 16 * channels;
  std::vector<float> gradient_, slope_;
};

class CentringWorkload : public TypedWorkload<float> {
 public:
  explicit CentringWorkload(std::size_t threads) : sums_(n), density_(n) {
    Random random = random_for(8);
    for (std::int32_t& v : sums_) v = static_cast<std::int32_t>(random.below(4001)) - 2000;
    for (float& v : density_) v = static_cast<float>(random.uniform());
    outputs_ = per_thread<float>(threads, n);
    name = "weight gradient centred, a row of 2,304";
    items = 1;
    unit = "weights/s";
    operations = static_cast<double>(n);
  }
  void run(const simd::Kernels& kernels, std::size_t, std::size_t thread) override {
    kernels.centre_gradient(sums_.data(), density_.data(), n, 1234.0F, outputs_[thread].data());
  }

 private:
  static constexpr std::size_t n = 2304;
  std::vector<std::int32_t> sums_;
  std::vector<float> density_;
};

class DescentWorkload : public TypedWorkload<std::int16_t> {
 public:
  explicit DescentWorkload(std::size_t threads) : gradient_(normal_numbers(n, 9)) {
    outputs_ = per_thread<std::int16_t>(threads, n);
    name = "accumulators moved, a row of 2,304";
    items = 1;
    unit = "weights/s";
    operations = static_cast<double>(n);
  }
  void run(const simd::Kernels& kernels, std::size_t, std::size_t thread) override {
    kernels.descend(outputs_[thread].data(), gradient_.data(), n, 327.67F, 32767.0F);
  }

 private:
  static constexpr std::size_t n = 2304;
  std::vector<float> gradient_;
};

class AdamWorkload : public TypedWorkload<float> {
 public:
  explicit AdamWorkload(std::size_t threads) : sums_(n) {
    Random random = random_for(10);
    for (std::int64_t& v : sums_) v = static_cast<std::int64_t>(random.below(200001)) - 100000;
    outputs_ = per_thread<float>(threads, 3 * n);  // values and both moments
    name = "Adam, 4,096 parameters";
    items = 1;
    unit = "parameters/s";
    operations = static_cast<double>(n);
  }
  void run(const simd::Kernels& kernels, std::size_t, std::size_t thread) override {
    float* const value = outputs_[thread].data();
    kernels.adam(sums_.data(), n, 1e-6F, 0.002F, 1.0F, 0.9999F, value, value + n, value + 2 * n);
  }

 private:
  static constexpr std::size_t n = 4096;
  std::vector<std::int64_t> sums_;
};

}  // namespace

std::unique_ptr<Workload> make_backward(std::size_t threads) { return std::make_unique<BackwardWorkload>(threads); }
std::unique_ptr<Workload> make_rounding(std::size_t threads) { return std::make_unique<RoundingWorkload>(threads); }
std::unique_ptr<Workload> make_centring(std::size_t threads) { return std::make_unique<CentringWorkload>(threads); }
std::unique_ptr<Workload> make_descent(std::size_t threads) { return std::make_unique<DescentWorkload>(threads); }
std::unique_ptr<Workload> make_adam(std::size_t threads) { return std::make_unique<AdamWorkload>(threads); }

}  // namespace bitloom::bench
