// The smaller kernels of a training step.
#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

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
  explicit BackwardWorkload(std::size_t threads)
      : layer_(make_layer({channels, channels, size})), weights_(layer_), scratch_(threads) {
    constexpr std::size_t pixels = size * size;
    Random random = random_for(6);
    window_.assign(pixels * channels / word_bits, 0);
    codes_.assign(pixels * channels, layerwise::quantised_zero);
    for (std::size_t k = 0; k < codes_.size(); ++k) {
      if (random.uniform() >= active_share) continue;
      set_bit(window_.data(), k, true);
      // Powers of two as gradients of mean magnitude 2 have them: half of the sizes 0 or 1, each further one half as often.
      const auto level = static_cast<std::uint8_t>(std::min(std::countr_zero(random.next()), 8));
      if (level > 0) codes_[k] = static_cast<std::uint8_t>((level - 1) | (random.next() & 8U));
      components_ += level > 0 ? 1 : 0;
    }
    const layerwise::MapShape& map = layer_.geometry().input;
    outputs_ = per_thread<float>(threads, map.height * map.width * map.words() * word_bits);
    name = "backward convolution, 3x3 256->256, 32x32, 7% of the pixels in the window";
    items = 1;
    unit = "bit-add/s";
    operations = static_cast<double>(components_ * layer_.patch_bits());
    of_peak = true;
    second_unit = "images/s";
    second = 1;
  }
  void run(const simd::Kernels& kernels, std::size_t, std::size_t thread) override {
    layerwise::input_gradient(kernels, weights_, window_.data(), codes_.data(), 0.5F, scratch_[thread],
                              outputs_[thread].data());
  }

 private:
  static constexpr std::size_t channels = 256, size = 32;
  static constexpr double active_share = 0.07;
  layerwise::BinaryLayer layer_;
  layerwise::BackwardWeights weights_;
  std::vector<std::uint64_t> window_;
  std::vector<std::uint8_t> codes_;
  std::size_t components_ = 0;
  std::vector<layerwise::BackwardScratch> scratch_;
};

// A kernel that is one call on the thread's output.
template <typename T>
class CallWorkload : public TypedWorkload<T> {
 public:
  using Call = std::function<void(const simd::Kernels& kernels, T* output)>;
  // `per_call` operations, counted in `counted`, fill `size` outputs.
  CallWorkload(const char* title, const char* counted, std::size_t per_call, std::size_t size, std::size_t threads, Call call)
      : call_(std::move(call)) {
    this->name = title;
    this->items = 1;
    this->unit = counted;
    this->operations = static_cast<double>(per_call);
    this->outputs_ = per_thread<T>(threads, size);
  }
  void run(const simd::Kernels& kernels, std::size_t, std::size_t thread) override {
    call_(kernels, this->outputs_[thread].data());
  }

 private:
  Call call_;
};

constexpr std::size_t row = 2304;  // weights

}  // namespace

std::unique_ptr<Workload> make_backward(std::size_t threads) { return std::make_unique<BackwardWorkload>(threads); }

std::unique_ptr<Workload> make_rounding(std::size_t threads) {
  constexpr std::size_t channels = 256;
  constexpr std::size_t n = 16 * channels;
  return std::make_unique<CallWorkload<std::uint32_t>>(
      "rounding prepared, 16 cells x 256 channels", "gradients/s", n, n, threads,
      [gradient = normal_numbers(n, 7), slope = std::vector<float>(channels, 0.25F)](const simd::Kernels& kernels,
                                                                                     std::uint32_t* output) {
        kernels.prepare_rounding(gradient.data(), slope.data(), n, channels, 8.0F, output);
      });
}

std::unique_ptr<Workload> make_centring(std::size_t threads) {
  Random random = random_for(8);
  std::vector<std::int32_t> sums(row);
  std::vector<float> density(row);
  for (std::int32_t& v : sums) v = static_cast<std::int32_t>(random.below(4001)) - 2000;
  for (float& v : density) v = static_cast<float>(random.uniform());
  return std::make_unique<CallWorkload<float>>("weight gradient centred, a row of 2,304", "weights/s", row, row, threads,
                                               [sums, density](const simd::Kernels& kernels, float* output) {
                                                 kernels.centre_gradient(sums.data(), density.data(), row, 1234.0F, output);
                                               });
}

std::unique_ptr<Workload> make_descent(std::size_t threads) {
  return std::make_unique<CallWorkload<std::int16_t>>(
      "accumulators moved, a row of 2,304", "weights/s", row, row, threads,
      [gradient = normal_numbers(row, 9)](const simd::Kernels& kernels, std::int16_t* state) {
        kernels.descend(state, gradient.data(), row, 327.67F, 32767.0F);
      });
}

std::unique_ptr<Workload> make_combination(std::size_t threads) {
  Random random = random_for(11);
  std::vector<std::int16_t> values(row);
  std::vector<std::int32_t> sums(row);
  for (std::int16_t& v : values) v = static_cast<std::int16_t>(static_cast<std::int32_t>(random.below(65536)) - 32768);
  for (std::int32_t& v : sums) v = static_cast<std::int32_t>(random.next());
  return std::make_unique<CallWorkload<std::int16_t>>("multiples added for Muon, a row of 2,304", "weights/s", row, row,
                                                      threads, [values, sums](const simd::Kernels& kernels, std::int16_t* out) {
                                                        kernels.combine_s16(values.data(), sums.data(), row, 3.4445F, 0x1p-13F,
                                                                            out);
                                                      });
}

std::unique_ptr<Workload> make_adam(std::size_t threads) {
  constexpr std::size_t n = 4096;
  Random random = random_for(10);
  std::vector<std::int64_t> sums(n);
  for (std::int64_t& v : sums) v = static_cast<std::int64_t>(random.below(200001)) - 100000;
  return std::make_unique<CallWorkload<float>>(
      "Adam, 4,096 parameters", "parameters/s", n, 3 * n, threads, [sums](const simd::Kernels& kernels, float* value) {
        kernels.adam(sums.data(), n, 1e-6F, 0.002F, 1.0F, 0.9999F, value, value + n, value + 2 * n);  // and both moments
      });
}

}  // namespace bitloom::bench
