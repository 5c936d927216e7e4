#include "nn/layer.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"

namespace bitloom::nn {

void Stash::put(Tensor tensor) {
  tensor.count_as(Use::stash);
  bytes_ += tensor.bytes();
  peak_bytes_ = std::max(peak_bytes_, bytes_);
  tensors_.push_back(std::move(tensor));
}

Tensor Stash::take() {
  if (tensors_.empty()) fail(ErrorKind::internal, "stash: nothing is left to take");
  Tensor tensor = std::move(tensors_.back());
  tensors_.pop_back();
  bytes_ -= tensor.bytes();
  return tensor;
}

Dropout Pass::dropout(double rate, std::uint64_t layer, std::size_t examples, std::uint64_t elements) const {
  return {training ? rate : 0, seed, mix64(mix64(layer) ^ step), micro_batch * examples * elements};
}

Tensor backward_through(Layer& layer, Pass& pass, const Tensor& dy) {
  if (pass.branch_scales == nullptr || !dy || dy.dtype() == pass.branch_scales->values || layer.takes_wide_gradients()) {
    return layer.backward(pass, dy);
  }
  return layer.backward(pass, converted(pass.engine, dy, pass.branch_scales->values));
}

Tensor Sequence::forward(Pass& pass, const Tensor& x, std::size_t first, std::size_t last) {
  Tensor y = x;
  for (std::size_t i = first; i < last; ++i) y = layers_[i]->forward(pass, y);
  return y;
}

Tensor Sequence::backward(Pass& pass, const Tensor& dy, std::size_t first, std::size_t last) {
  Tensor dx = dy;
  for (std::size_t i = last; i > first; --i) dx = backward_through(*layers_[i - 1], pass, dx);
  return dx;
}

void Sequence::add_parameters(std::vector<Parameter*>& all) {
  for (const LayerPointer& layer : layers_) layer->add_parameters(all);
}

void Sequence::end_step(Pass& pass, bool counts, std::size_t replicas) {
  for (const LayerPointer& layer : layers_) layer->end_step(pass, counts, replicas);
}

void Sequence::add_step_sums(std::vector<Tensor*>& all) {
  for (const LayerPointer& layer : layers_) layer->add_step_sums(all);
}

void Sequence::add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) {
  for (const LayerPointer& layer : layers_) layer->add_buffers(engine, values, all);
}

Shape Sequence::output(const Shape& x) const {
  Shape shape = x;
  for (const LayerPointer& layer : layers_) shape = layer->output(shape);
  return shape;
}

double Sequence::cost(const Shape& x) const {
  double cost = 0;
  Shape shape = x;
  for (const LayerPointer& layer : layers_) {
    cost += layer->cost(shape);
    shape = layer->output(shape);
  }
  return cost;
}

std::uint64_t Sequence::stash_bytes(const Shape& x, DType values) const {
  std::uint64_t bytes = 0;
  Shape shape = x;
  for (const LayerPointer& layer : layers_) {
    bytes += layer->stash_bytes(shape, values);
    shape = layer->output(shape);
  }
  return bytes;
}

std::uint64_t Sequence::peak_stash_bytes(const Shape& x, DType values) const {
  std::uint64_t below = 0;  // bytes of the layers before this one, which are there until their turn
  std::uint64_t peak = 0;
  Shape shape = x;
  for (const LayerPointer& layer : layers_) {
    peak = std::max(peak, below + layer->peak_stash_bytes(shape, values));
    below += layer->stash_bytes(shape, values);
    shape = layer->output(shape);
  }
  return peak;
}

std::vector<Parameter*> parameters_of(Layer& layer) {
  std::vector<Parameter*> all;
  layer.add_parameters(all);
  return all;
}

}  // namespace bitloom::nn
