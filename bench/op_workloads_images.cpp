// A layer of a small convnet: maps of 32 x 32 pixels and 64 channels.
#include "bench/op_workloads.h"

namespace bitloom::bench {
namespace {

using nn::Shape;
using nn::Tensor;

constexpr std::size_t side = 32, channels = 64;
constexpr double kernel_deviation = 1.0 / 24;  // 9 x 64 inputs of each output
Shape map_shape() { return {images, side, side, channels}; }
Shape half_shape() { return {images, side / 2, side / 2, channels}; }
const Shape kernel_shape = {channels, channels, 3, 3};
constexpr nn::Conv2d same_size = {1, 1};

// The first images.
Shape part_of(Extent extent) { return map_shape().with(0, extent == Extent::slice ? 1 : images); }

OpRun conv_forward(nn::Engine& engine, DType dtype, Extent extent) {
  const Tensor x = numbers(engine, dtype, part_of(extent), 1);
  const Tensor w = numbers(engine, dtype, kernel_shape, 2, kernel_deviation);
  const Tensor bias = numbers(engine, DType::f32, {channels}, 3);
  Tensor y = blank(engine, dtype, x.shape());
  return {[=, &engine]() mutable { conv2d(engine, same_size, x, w, bias, y); }, {y}};
}

OpRun conv_data(nn::Engine& engine, DType dtype, Extent extent) {
  const Tensor dy = numbers(engine, dtype, part_of(extent), 1);
  const Tensor w = numbers(engine, dtype, kernel_shape, 2, kernel_deviation);
  Tensor dx = blank(engine, dtype, dy.shape());
  return {[=, &engine]() mutable { conv2d_backward_data(engine, same_size, dy, w, dx); }, {dx}};
}

OpRun conv_weights(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, map_shape(), 1), dy = numbers(engine, dtype, map_shape(), 2);
  Tensor dw = constant(engine, DType::f32, kernel_shape, 0);
  return {[=, &engine]() mutable { conv2d_backward_weights(engine, same_size, x, dy, dw); }, {dw}};
}

OpRun norm_forward(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, map_shape(), 1);
  const Tensor gain = numbers(engine, DType::f32, {channels}, 3), bias = numbers(engine, DType::f32, {channels}, 4);
  Tensor y = blank(engine, dtype, map_shape()), mean = blank(engine, DType::f32, {channels});
  Tensor variance = blank(engine, DType::f32, {channels});
  return {[=, &engine]() mutable { batch_norm(engine, x, gain, bias, 1e-5, y, mean, variance); }, {y, mean, variance}};
}

OpRun norm_backward(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, map_shape(), 1), dy = numbers(engine, dtype, map_shape(), 2);
  const Tensor gain = numbers(engine, DType::f32, {channels}, 3), bias = constant(engine, DType::f32, {channels}, 0);
  Tensor dx = blank(engine, dtype, map_shape()), mean = blank(engine, DType::f32, {channels});
  Tensor variance = blank(engine, DType::f32, {channels});
  batch_norm(engine, x, gain, bias, 1e-5, dx, mean, variance);
  Tensor dgain = constant(engine, DType::f32, {channels}, 0), dbias = constant(engine, DType::f32, {channels}, 0);
  return {[=, &engine]() mutable { batch_norm_backward(engine, dy, x, gain, mean, variance, 1e-5, dx, dgain, dbias); },
          {dx, dgain, dbias}};
}

OpRun pool_forward(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, map_shape(), 1);
  Tensor y = blank(engine, dtype, half_shape()), which = blank(engine, DType::u8, half_shape());
  return {[=, &engine]() mutable { max_pool(engine, 2, x, y, which); }, {y, which}};
}

OpRun pool_backward(nn::Engine& engine, DType dtype, Extent) {
  const OpRun forward = pool_forward(engine, dtype, Extent::whole);
  forward.pass();
  const Tensor which = forward.results[1], dy = numbers(engine, dtype, half_shape(), 2);
  Tensor dx = blank(engine, dtype, map_shape());
  return {[=, &engine]() mutable { max_pool_backward(engine, 2, dy, which, dx); }, {dx}};
}

OpRun upsample_forward(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, half_shape(), 1);
  Tensor y = blank(engine, dtype, map_shape());
  return {[=, &engine]() mutable { upsample(engine, 2, x, y); }, {y}};
}

OpRun upsample_down(nn::Engine& engine, DType dtype, Extent) {
  const Tensor dy = numbers(engine, dtype, map_shape(), 1);
  Tensor dx = blank(engine, dtype, half_shape());
  return {[=, &engine]() mutable { upsample_backward(engine, 2, dy, dx); }, {dx}};
}

}  // namespace

std::vector<OpWorkload> image_workloads() {
  const auto maps = static_cast<double>(map_shape().size());
  const double conv_flops = 2.0 * 9 * channels * maps;
  return {{"convolution forward", conv_flops, 0, 0, conv_forward},
          {"convolution data", conv_flops, 0, 0, conv_data},
          {"convolution weights", conv_flops, 0, 0, conv_weights},
          {"batch norm, forward", 0, 3 * maps, 0, norm_forward},    // the statistics are a reading of their own
          {"batch norm, backward", 0, 5 * maps, 0, norm_backward},  // as here
          {"max pooling, forward", 0, 1.25 * maps, 0.25 * maps, pool_forward},
          {"max pooling, backward", 0, 1.25 * maps, 0.25 * maps, pool_backward},
          {"upsampling, forward", 0, 1.25 * maps, 0, upsample_forward},
          {"upsampling, backward", 0, 1.25 * maps, 0, upsample_down}};
}

}  // namespace bitloom::bench
