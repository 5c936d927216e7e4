// Layers of convolutional nets, on maps (N,Y,X,C).
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "nn/layer.h"

namespace bitloom::nn {

class Convolution final : public Layer {
 public:
  struct Options {
    Conv2d conv;
    bool bias = true;
    double deviation = 0;       // standard deviation of the initial weights; 0: 1 / sqrt(inputs kernel^2)
    bool is_frozen = false;     // the weights are not trained
    bool reads_images = false;  // x is data, whose gradient nobody wants
  };
  Convolution(const std::string& name, std::size_t inputs, std::size_t outputs, std::size_t kernel, const Options& options);
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void add_parameters(std::vector<Parameter*>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override;
  std::uint64_t stash_bytes(const Shape& x, DType values) const override { return x.size() * dtype_size(values); }
  bool keeps_input() const override { return true; }

  Parameter& weight() { return weight_; }

 private:
  std::string name_;
  std::size_t inputs_, outputs_, kernel_;
  Conv2d conv_;
  bool reads_images_;
  Parameter weight_;
  std::optional<Parameter> bias_;
};

// Statistics of each micro-batch normalise it; the moving averages, which evaluation uses, follow those of the whole mini-batch
// once per step (Huang et al. 2019, section 2.2): its mean, and its variance about it, whatever the number of micro-batches and
// of processes that share them.
class BatchNorm final : public Layer {
 public:
  struct Options {
    double momentum = 0.1, epsilon = 1e-5;
    bool has_gain = true;  // false: the gain stays 1
    double bias_rate = 1;  // factor on the bias's learning rate
  };
  BatchNorm(const std::string& name, std::size_t channels, const Options& options);
  BatchNorm(const std::string& name, std::size_t channels) : BatchNorm(name, channels, Options{}) {}
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void add_parameters(std::vector<Parameter*>& all) override;
  void end_step(Pass& pass, bool counts, std::size_t replicas) override;
  void add_step_sums(std::vector<Tensor*>& all) override;
  void add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override { return 8 * static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
  bool keeps_input() const override { return true; }

 private:
  void make_averages(Engine& engine, DType parameters);

  std::string name_;
  std::size_t channels_;
  double momentum_, epsilon_;
  Parameter gain_, bias_;
  Tensor moving_mean_, moving_variance_;
  // Sums over the step's micro-batches: of their means less the moving mean, of the squares of that, of their variances.
  // Differences, since squares of means far from 0 would leave nothing of a small variance.
  Tensor step_mean_, step_square_, step_variance_;
  std::size_t micro_batches_ = 0;
  std::size_t rows_ = 0;  // those of all micro-batches together
};

class MaxPool final : public Layer {
 public:
  explicit MaxPool(std::size_t k) : k_(k) {}
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override { return static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;

 private:
  std::size_t k_;
};

// y (N,C) = the mean over all pixels.
class MeanPool final : public Layer {
 public:
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override { return static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
};

// Nearest neighbours.
class Upsample final : public Layer {
 public:
  explicit Upsample(std::size_t k) : k_(k) {}
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override { return static_cast<double>(x.size() * k_ * k_); }
  std::uint64_t stash_bytes(const Shape& /*x*/, DType /*values*/) const override { return 0; }

 private:
  std::size_t k_;
};

}  // namespace bitloom::nn
