// Workloads of bitloom_bench_kernels: one class per kernel, with data as a training run has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/random.h"
#include "layerwise/encoder.h"
#include "layerwise/layer.h"
#include "simd/kernels.h"

namespace bitloom::bench {

// A kernel with its data: `items` independent calls, one output per thread.
class Workload {
 public:
  virtual ~Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  virtual void run(const simd::Kernels& kernels, std::size_t item, std::size_t thread) = 0;
  // Output of run(), and its reset to zero: kernels that add start from there.
  virtual std::span<const std::byte> output(std::size_t thread) const = 0;
  virtual void clear(std::size_t thread) = 0;

  std::string name;
  std::size_t items = 0;
  std::string unit;         // unit of `operations`
  double operations = 0;    // per item
  bool of_peak = false;     // operations compare with the peak of bit-MACs
  std::string second_unit;  // another way to count, "" for none
  double second = 0;        // per item

 protected:
  Workload() = default;
};

template <typename T>
class TypedWorkload : public Workload {
 public:
  std::span<const std::byte> output(std::size_t thread) const override { return std::as_bytes(outputs_[thread].span()); }
  void clear(std::size_t thread) override { outputs_[thread].fill_zero(); }

 protected:
  std::vector<Buffer<T>> outputs_;
};

// Images of random bits, border 0, through a 3x3 layer with random weights. An item is an image.
struct ConvOptions {
  std::size_t in_channels, out_channels, size;  // stride 1, padding 1, size x size pixels
  bool ternary = false;
  bool training = false;       // also window mask and statistics
  std::size_t thresholds = 1;  // of every channel and of those of the layer below, each a multiple of 64
};

class ConvWorkload : public TypedWorkload<std::uint64_t> {
 public:
  ConvWorkload(const ConvOptions& options, std::size_t images, std::size_t threads);
  void run(const simd::Kernels& kernels, std::size_t item, std::size_t thread) override;

  // The same convolution for other software: source (images, C, size, size) and weights (O, C, 3, 3) of +1 and -1.
  std::vector<float> source() const;
  std::vector<float> weights() const;
  // Expected output for image 0, (O, size, size). The outermost pixels are left 0: there a border of zero bits counts as +1.
  std::vector<float> expected() const;

 private:
  const std::uint64_t* image(std::size_t i) const { return inputs_.data() + i * layer_.geometry().input.size(); }

  ConvOptions options_;
  layerwise::BinaryLayer layer_;
  Buffer<std::uint64_t> inputs_;
  Buffer<std::int32_t> low_, high_;
};

// The weight gradient of a 3x3 layer 256 -> 256 at 32x32 from a batch of 128 images: 7% of the pixels are in the window, their
// gradients are rounded to codes of mean magnitude 2 (code_target in layerwise/layer_trainer.h); those that are 0 leave no
// component. An item is four output channels, as in training.
std::unique_ptr<Workload> make_gradient(std::size_t threads);
// The hidden layer of a head: (16 images x 16 cells, 256 channels) times (256, 64). An item is one product.
std::unique_ptr<Workload> make_gemm(std::size_t threads);
// Set bits of a 32x32x256 map counted over 4 x 4 cells. An item is an image.
std::unique_ptr<Workload> make_pool(std::size_t threads);
// 64 filters of 5x5x3 taps over a 32x32 image, divided by contrast, two thresholds each. An item is an image.
std::unique_ptr<Workload> make_encoding(std::size_t threads);
// In workloads_training.cpp: the gradient of the input bits of that 3x3 layer, for one image; what gradients of 16 cells of 256
// channels are rounded to; one row of weights, 2,304 of them: gradient centred, accumulators moved; Adam on 4,096 parameters.
std::unique_ptr<Workload> make_backward(std::size_t threads);
std::unique_ptr<Workload> make_rounding(std::size_t threads);
std::unique_ptr<Workload> make_centring(std::size_t threads);
std::unique_ptr<Workload> make_descent(std::size_t threads);
std::unique_ptr<Workload> make_combination(std::size_t threads);
std::unique_ptr<Workload> make_adam(std::size_t threads);

// Building blocks of workloads. `use` and `part` separate streams of random numbers.
Random random_for(std::uint64_t use, std::uint64_t part = 0);
layerwise::BinaryLayer make_layer(const ConvOptions& options);
Buffer<std::uint64_t> random_maps(const layerwise::MapShape& shape, std::size_t images);
template <typename T>
std::vector<Buffer<T>> per_thread(std::size_t threads, std::size_t size) {
  return std::vector<Buffer<T>>(threads, Buffer<T>(size));
}

}  // namespace bitloom::bench
