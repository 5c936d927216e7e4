// Layers of one op.
#pragma once

#include <optional>
#include <string>

#include "nn/few_bit.h"
#include "nn/layer.h"

namespace bitloom::nn {

struct LinearOptions {
  bool bias = true;
  bool transposed = false;  // the weight is (outputs, inputs), as in PyTorch's Linear; otherwise (inputs, outputs), as in GPT-2
  double deviation = 0.02;
  // Where several processes divide the weight: this one has elements begin .. end - 1 of each of `blocks` equal blocks of the
  // outputs, and y has these alone (Shoeybi et al. 2019, section 3, column parallel); or of the inputs, all of x, and y is one
  // of the terms of a sum (row parallel), which gets its bias elsewhere.
  enum class Division { none, outputs, inputs };
  Division division = Division::none;
  std::size_t blocks = 1, begin = 0, end = 0;
};

// y (..., O) = x (..., I) w + b. O and I are of what this process has.
class Linear final : public Layer {
 public:
  // inputs, outputs: of the whole.
  Linear(const std::string& name, std::size_t inputs, std::size_t outputs, const LinearOptions& options = {});
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void add_parameters(std::vector<Parameter*>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override;
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
  bool keeps_input() const override { return true; }

  // Forward and backward for layers that keep x themselves.
  Tensor apply(Pass& pass, const Tensor& x) const;
  Tensor apply_backward(Pass& pass, const Tensor& x, const Tensor& dy);

 private:
  std::string name_;
  std::size_t inputs_, outputs_;
  Parameter weight_;
  std::optional<Parameter> bias_;
};

// Over the last axis (ops.h).
class LayerNorm final : public Layer {
 public:
  // branch_values: V of y and its gradient where x and its own have P, as on an identity path in 32 bits; none: x's.
  LayerNorm(const std::string& name, std::size_t columns, std::optional<DType> branch_values = {}, double epsilon = 1e-5);
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void add_parameters(std::vector<Parameter*>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override { return 8 * static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
  bool keeps_input() const override { return true; }

 private:
  std::string name_;
  std::size_t columns_;
  double epsilon_;
  std::optional<DType> branch_values_;
  Parameter gain_, bias_;
};

// f(x) of every element; keeps x, or few bits of it (Novikov et al. 2022).
class Activate final : public Layer {
 public:
  // bits 0: the whole of x. number: distinct for every layer of a net that rounds at random.
  explicit Activate(const Activation& activation, unsigned bits = 0, Quantiser quantiser = Quantiser::few_bit,
                    std::uint64_t number = 0);
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Shape output(const Shape& x) const override { return x; }
  double cost(const Shape& x) const override { return 10 * static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
  bool keeps_input() const override { return bits_ == 0; }

 private:
  const Activation& activation_;
  std::optional<FewBitTable> table_;
  unsigned bits_;
  Quantiser quantiser_;
  std::uint64_t number_;
};

class DropoutLayer final : public Layer {
 public:
  // number: distinct for every dropout of the net.
  DropoutLayer(double rate, std::uint64_t number) : rate_(rate), number_(number) {}
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  bool takes_wide_gradients() const override { return true; }
  Shape output(const Shape& x) const override { return x; }
  double cost(const Shape& x) const override { return 2 * static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const Shape& /*x*/, DType /*values*/) const override { return 0; }

 private:
  double rate_;
  std::uint64_t number_;
};

// y = factor x.
class Scale final : public Layer {
 public:
  explicit Scale(double factor) : factor_(factor) {}
  Tensor forward(Pass& pass, const Tensor& x) override { return scaled(pass, x); }
  Tensor backward(Pass& pass, const Tensor& dy) override { return scaled(pass, dy); }
  Shape output(const Shape& x) const override { return x; }
  double cost(const Shape& x) const override { return static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const Shape& /*x*/, DType /*values*/) const override { return 0; }

 private:
  Tensor scaled(Pass& pass, const Tensor& x) const;

  double factor_;
};

// (N, example...) -> (N, C), the size of an example.
class Flatten final : public Layer {
 public:
  explicit Flatten(const Shape& example) : example_(example) {}
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& /*x*/) const override { return 0; }
  std::uint64_t stash_bytes(const Shape& /*x*/, DType /*values*/) const override { return 0; }

 private:
  Shape example_;
};

}  // namespace bitloom::nn
