#include "nn/layers/images.h"

#include <cmath>

#include "core/error.h"
#include "nn/layers/parts.h"

namespace bitloom::nn {
namespace {

void require_map(const std::string& name, const Shape& x, std::size_t channels) {
  if (x.axes() != 4 || x[3] != channels) {
    fail(ErrorKind::usage, "{}: x {}; expected maps of {} channels", name, to_text(x), channels);
  }
}

// Y and X divided by k, rounded down.
Shape divided(const char* name, const Shape& x, std::size_t k) {
  if (x.axes() != 4 || k == 0 || x[1] < k || x[2] < k) {
    fail(ErrorKind::usage, "{}: x {}; expected maps whose sides are at least {}", name, to_text(x), k);
  }
  return x.with(1, x[1] / k).with(2, x[2] / k);
}

// The square of each number of a vector: it is what batch norm gives with the vector as its gain, mean 0 and deviation 1.
Tensor squares(Engine& engine, const Tensor& x) {
  const Tensor zeros = engine.zeros(x.shape(), x.dtype(), Use::workspace);
  Tensor y = engine.empty(x.shape(), x.dtype(), Use::workspace);
  batch_norm_inference(engine, x, x, zeros, zeros, zeros, 1, y);
  return y;
}

}  // namespace

// --- Convolution ---

Convolution::Convolution(const std::string& name, std::size_t inputs, std::size_t outputs, std::size_t kernel,
                         const Options& options)
    : name_(name),
      inputs_(inputs),
      outputs_(outputs),
      kernel_(kernel),
      conv_(options.conv),
      reads_images_(options.reads_images) {
  weight_.name = name + ".weight";
  weight_.shape = {outputs, inputs, kernel, kernel};
  weight_.transposed = true;
  weight_.deviation = options.deviation > 0 ? options.deviation : 1 / std::sqrt(static_cast<double>(inputs * kernel * kernel));
  weight_.is_frozen = options.is_frozen;
  if (options.bias) bias_ = vector_parameter(name + ".bias", outputs, 0);
}

Shape Convolution::output(const Shape& x) const {
  require_map(name_, x, inputs_);
  const auto length = [&](std::size_t axis) {
    const std::size_t padded = x[axis] + 2 * conv_.padding;
    if (padded < kernel_ || conv_.stride == 0) {
      fail(ErrorKind::usage, "{}: x {}; a kernel of {} with padding {} and stride {} does not fit", name_, to_text(x), kernel_,
           conv_.padding, conv_.stride);
    }
    return (padded - kernel_) / conv_.stride + 1;
  };
  return {x[0], length(1), length(2), outputs_};
}

Tensor Convolution::forward(Pass& pass, const Tensor& x) {
  Tensor y = pass.engine.empty(output(x.shape()), x.dtype(), Use::activations);
  conv2d(pass.engine, conv_, x, weight_.read(), bias_ ? bias_->read() : Tensor(), y);
  pass.keep(x);
  return y;
}

Tensor Convolution::backward(Pass& pass, const Tensor& dy) {
  const Tensor x = pass.stash->take();
  if (!weight_.is_frozen) conv2d_backward_weights(pass.engine, conv_, x, dy, weight_.gradient);
  pass.announce(weight_);
  if (bias_) {
    add_row_sums(pass.engine, dy, bias_->gradient);
    pass.announce(*bias_);
  }
  if (reads_images_) return {};
  Tensor dx = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  conv2d_backward_data(pass.engine, conv_, dy, weight_.read(), dx);
  return dx;
}

void Convolution::add_parameters(std::vector<Parameter*>& all) {
  all.push_back(&weight_);
  if (bias_) all.push_back(&*bias_);
}

double Convolution::cost(const Shape& x) const {
  return 2 * static_cast<double>(output(x).size()) * static_cast<double>(inputs_ * kernel_ * kernel_);
}

// --- BatchNorm ---

BatchNorm::BatchNorm(const std::string& name, std::size_t channels, const Options& options)
    : name_(name),
      channels_(channels),
      momentum_(options.momentum),
      epsilon_(options.epsilon),
      gain_(vector_parameter(name + ".gain", channels, 1)),
      bias_(vector_parameter(name + ".bias", channels, 0)) {
  gain_.is_frozen = !options.has_gain;
  bias_.rate = options.bias_rate;
}

Shape BatchNorm::output(const Shape& x) const {
  require_columns(name_, x, channels_);
  return x;
}

void BatchNorm::make_averages(Engine& engine, DType parameters) {
  if (moving_mean_) return;
  for (Tensor* tensor : {&moving_mean_, &moving_variance_, &step_mean_, &step_square_, &step_variance_}) {
    *tensor = engine.zeros({channels_}, parameters, Use::parameters);
  }
  fill(engine, moving_variance_, 1);
}

Tensor BatchNorm::forward(Pass& pass, const Tensor& x) {
  output(x.shape());
  const DType type = parameter_type(x.dtype());
  make_averages(pass.engine, type);
  Tensor y = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  if (!pass.training) {
    batch_norm_inference(pass.engine, x, gain_.read(), bias_.read(), moving_mean_, moving_variance_, epsilon_, y);
    return y;
  }
  if (x.shape().rows() < 2) {
    fail(ErrorKind::usage, "{}: x {}, one value per channel, has no variance; expected larger maps or a larger micro-batch",
         name_, to_text(x.shape()));
  }
  Tensor mean = pass.engine.empty({channels_}, type, Use::activations);
  Tensor variance = pass.engine.empty({channels_}, type, Use::activations);
  batch_norm(pass.engine, x, gain_.read(), bias_.read(), epsilon_, y, mean, variance);
  if (!pass.again) {
    Tensor difference = pass.engine.empty({channels_}, type, Use::workspace);
    scale_add(pass.engine, 1, mean, 0, difference);
    scale_add(pass.engine, -1, moving_mean_, 1, difference);
    scale_add(pass.engine, 1, difference, 1, step_mean_);
    scale_add(pass.engine, 1, squares(pass.engine, difference), 1, step_square_);
    scale_add(pass.engine, 1, variance, 1, step_variance_);
    ++micro_batches_;
    rows_ += x.shape().rows();
  }
  for (const Tensor& kept : {x, mean, variance}) pass.keep(kept);
  return y;
}

Tensor BatchNorm::backward(Pass& pass, const Tensor& dy) {
  const Tensor variance = pass.stash->take();
  const Tensor mean = pass.stash->take();
  const Tensor x = pass.stash->take();
  Tensor dx = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  batch_norm_backward(pass.engine, dy, x, gain_.read(), mean, variance, epsilon_, dx, gain_.gradient, bias_.gradient);
  pass.announce(gain_);
  pass.announce(bias_);
  return dx;
}

void BatchNorm::end_step(Pass& pass, bool counts, std::size_t replicas) {
  if (micro_batches_ == 0) return;
  if (counts) {
    const double share = 1.0 / static_cast<double>(micro_batches_ * replicas);
    Tensor mean = pass.engine.empty({channels_}, step_mean_.dtype(), Use::workspace);
    scale_add(pass.engine, share, step_mean_, 0, mean);
    // The mini-batch's variance: the mean of those of its micro-batches and the variance of their means, which rounding may
    // leave below 0.
    Tensor between = squares(pass.engine, mean);
    scale_add(pass.engine, share, step_square_, -1, between);
    activate(pass.engine, find_activation("relu"), between, between);
    scale_add(pass.engine, share, step_variance_, 1, between);
    // The average estimates the variance of all data, which is above that of a sample.
    const auto rows = static_cast<double>(rows_ * replicas);
    const double momentum = pass.statistics_momentum.value_or(momentum_);
    scale_add(pass.engine, momentum, mean, 1, moving_mean_);
    scale_add(pass.engine, momentum * rows / (rows - 1), between, 1 - momentum, moving_variance_);
  }
  for (Tensor* sum : {&step_mean_, &step_square_, &step_variance_}) fill(pass.engine, *sum, 0);
  micro_batches_ = rows_ = 0;
}

void BatchNorm::add_parameters(std::vector<Parameter*>& all) { all.insert(all.end(), {&gain_, &bias_}); }

void BatchNorm::add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) {
  make_averages(engine, parameter_type(values));
  all.emplace_back(name_ + ".moving_mean", &moving_mean_);
  all.emplace_back(name_ + ".moving_variance", &moving_variance_);
}

void BatchNorm::add_step_sums(std::vector<Tensor*>& all) {
  if (moving_mean_) all.insert(all.end(), {&step_mean_, &step_square_, &step_variance_});
}

std::uint64_t BatchNorm::stash_bytes(const Shape& x, DType values) const {
  return x.size() * dtype_size(values) + 2 * channels_ * dtype_size(parameter_type(values));
}

// --- MaxPool ---

Shape MaxPool::output(const Shape& x) const { return divided("max_pool", x, k_); }

Tensor MaxPool::forward(Pass& pass, const Tensor& x) {
  const Shape small = output(x.shape());
  Tensor y = pass.engine.empty(small, x.dtype(), Use::activations);
  Tensor which = pass.engine.empty(small, DType::u8, Use::activations);
  max_pool(pass.engine, k_, x, y, which);
  pass.keep(pass.engine.empty(x.shape().with(0, 0), DType::u8, Use::activations));
  pass.keep(which);
  return y;
}

Tensor MaxPool::backward(Pass& pass, const Tensor& dy) {
  const Tensor which = pass.stash->take();
  const Shape& small = dy.shape();
  // The sides of x, windows or not, are kept as the shape of an empty tensor: it has no images.
  const Shape sides = pass.stash->take().shape();
  Tensor dx = pass.engine.empty(sides.with(0, small[0]), dy.dtype(), Use::activations);
  max_pool_backward(pass.engine, k_, dy, which, dx);
  return dx;
}

std::uint64_t MaxPool::stash_bytes(const Shape& x, DType /*values*/) const { return output(x).size(); }

// --- MeanPool ---

Shape MeanPool::output(const Shape& x) const {
  if (x.axes() != 4 || x[1] == 0 || x[1] != x[2]) {
    fail(ErrorKind::usage, "mean_pool: x {}; expected square maps of 1 pixel a side or more", to_text(x));
  }
  return {x[0], x[3]};
}

Tensor MeanPool::forward(Pass& pass, const Tensor& x) {
  const Shape shape = output(x.shape());
  const std::size_t k = x.shape()[1];
  Tensor y = pass.engine.empty({shape[0], 1, 1, shape[1]}, x.dtype(), Use::activations);
  const double share = 1.0 / static_cast<double>(k * k);
  if (constexpr std::size_t most_summed = 15; k <= most_summed) {
    upsample_backward(pass.engine, k, x, y);
    scale_add(pass.engine, share, y, 0, y);
  } else {  // sums of larger maps are too large for f16
    Tensor scaled = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
    scale_add(pass.engine, share, x, 0, scaled);
    upsample_backward(pass.engine, k, scaled, y);
  }
  pass.keep(pass.engine.empty(x.shape().with(0, 0), DType::u8, Use::activations));
  return y.reshaped(shape);
}

Tensor MeanPool::backward(Pass& pass, const Tensor& dy) {
  const Shape large = pass.stash->take().shape().with(0, dy.shape()[0]);
  const std::size_t k = large[1];
  Tensor scaled = pass.engine.empty({large[0], 1, 1, large[3]}, dy.dtype(), Use::activations);
  scale_add(pass.engine, 1.0 / static_cast<double>(k * k), dy.reshaped(scaled.shape()), 0, scaled);
  Tensor dx = pass.engine.empty(large, dy.dtype(), Use::activations);
  upsample(pass.engine, k, scaled, dx);
  return dx;
}

std::uint64_t MeanPool::stash_bytes(const Shape& /*x*/, DType /*values*/) const { return 0; }

// --- Upsample ---

Shape Upsample::output(const Shape& x) const {
  if (x.axes() != 4) fail(ErrorKind::usage, "upsample: x {}; expected maps", to_text(x));
  return x.with(1, x[1] * k_).with(2, x[2] * k_);
}

Tensor Upsample::forward(Pass& pass, const Tensor& x) {
  Tensor y = pass.engine.empty(output(x.shape()), x.dtype(), Use::activations);
  upsample(pass.engine, k_, x, y);
  return y;
}

Tensor Upsample::backward(Pass& pass, const Tensor& dy) {
  Tensor dx = pass.engine.empty(divided("upsample", dy.shape(), k_), dy.dtype(), Use::activations);
  upsample_backward(pass.engine, k_, dy, dx);
  return dx;
}

}  // namespace bitloom::nn
