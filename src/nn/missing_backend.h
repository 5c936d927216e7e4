// For the time of construction only: a backend in which nothing is there yet. Delete this file when none derives from it.
#pragma once

#include "core/error.h"
#include "nn/backend.h"

namespace bitloom::nn {

class MissingBackend : public Backend {
 public:
  void matmul(const Tensor&, const Tensor&, Tensor&, const MatmulOptions&) override {
    fail(ErrorKind::internal, "matmul: not there yet");
  }
  void add_row_sums(const Tensor&, Tensor&) override { fail(ErrorKind::internal, "add_row_sums: not there yet"); }
  void convert(const Tensor&, Tensor&) override { fail(ErrorKind::internal, "convert: not there yet"); }
  void fill(Tensor&, double) override { fail(ErrorKind::internal, "fill: not there yet"); }
  void add(const Tensor&, const Tensor&, Tensor&) override { fail(ErrorKind::internal, "add: not there yet"); }
  void scale_add(double, const Tensor&, double, Tensor&) override { fail(ErrorKind::internal, "scale_add: not there yet"); }
  void activate(const Activation&, const Tensor&, Tensor&) override { fail(ErrorKind::internal, "activate: not there yet"); }
  void activate_backward(const Activation&, const Tensor&, const Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "activate_backward: not there yet");
  }
  void activate_few_bit(const Activation&, const FewBitTable&, const Tensor&, Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "activate_few_bit: not there yet");
  }
  void activate_few_bit_backward(const FewBitTable&, const Tensor&, const Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "activate_few_bit_backward: not there yet");
  }
  void dropout(const Dropout&, const Tensor&, Tensor&) override { fail(ErrorKind::internal, "dropout: not there yet"); }
  void gather(const Tensor&, const Tensor&, Tensor&, bool) override { fail(ErrorKind::internal, "gather: not there yet"); }
  void scatter_add(const Tensor&, const Tensor&, Tensor&) override { fail(ErrorKind::internal, "scatter_add: not there yet"); }
  void layer_norm(const Tensor&, const Tensor&, const Tensor&, double, Tensor&, Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "layer_norm: not there yet");
  }
  void layer_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&, Tensor&,
                           bool) override {
    fail(ErrorKind::internal, "layer_norm_backward: not there yet");
  }
  void batch_norm(const Tensor&, const Tensor&, const Tensor&, double, Tensor&, Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "batch_norm: not there yet");
  }
  void batch_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, Tensor&, Tensor&,
                           Tensor&) override {
    fail(ErrorKind::internal, "batch_norm_backward: not there yet");
  }
  void batch_norm_inference(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                            Tensor&) override {
    fail(ErrorKind::internal, "batch_norm_inference: not there yet");
  }
  void softmax(const Tensor&, Tensor&) override { fail(ErrorKind::internal, "softmax: not there yet"); }
  void softmax_backward(const Tensor&, const Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "softmax_backward: not there yet");
  }
  void attention(const AttentionShape&, const AttentionMask&, const Dropout&, const Heads&, const Heads&, const Heads&,
                 const Heads&, Tensor&) override {
    fail(ErrorKind::internal, "attention: not there yet");
  }
  void attention_backward(const AttentionShape&, const AttentionMask&, const Dropout&, const Heads&, const Heads&, const Heads&,
                          const Heads&, const Tensor&, const Heads&, const Heads&, const Heads&, const Heads&) override {
    fail(ErrorKind::internal, "attention_backward: not there yet");
  }
  void conv2d(const Conv2d&, const Tensor&, const Tensor&, const Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "conv2d: not there yet");
  }
  void conv2d_backward_data(const Conv2d&, const Tensor&, const Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "conv2d_backward_data: not there yet");
  }
  void conv2d_backward_weights(const Conv2d&, const Tensor&, const Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "conv2d_backward_weights: not there yet");
  }
  void max_pool(std::size_t, const Tensor&, Tensor&, Tensor&) override { fail(ErrorKind::internal, "max_pool: not there yet"); }
  void max_pool_backward(std::size_t, const Tensor&, const Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "max_pool_backward: not there yet");
  }
  void upsample(std::size_t, const Tensor&, Tensor&) override { fail(ErrorKind::internal, "upsample: not there yet"); }
  void upsample_backward(std::size_t, const Tensor&, Tensor&) override {
    fail(ErrorKind::internal, "upsample_backward: not there yet");
  }
  void cross_entropy(const Tensor&, const Tensor&, std::size_t, double, Tensor&, Tensor*) override {
    fail(ErrorKind::internal, "cross_entropy: not there yet");
  }
  void adamw(std::span<const AdamWTensors>, const AdamWStep&) override { fail(ErrorKind::internal, "adamw: not there yet"); }
  double sum_of_squares(std::span<const Tensor>) override { fail(ErrorKind::internal, "sum_of_squares: not there yet"); }
};

}  // namespace bitloom::nn
