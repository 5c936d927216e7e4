// Attention of CudaBackend: from heads and masks to what the kernels get.
#include "core/error.h"
#include "nn/cuda/cuda_backend.h"
#include "nn/dropout.h"

namespace bitloom::nn::cuda {
namespace {

template <typename Void>
AttentionRows<Void> rows_of(const Heads& heads, const AttentionShape& shape) {
  const std::size_t element = dtype_size(heads.tensor.dtype());
  auto* first = static_cast<std::byte*>(heads.tensor.data());
  if (heads.tensor.size() > 0) first += heads.first * element;
  const std::size_t stride = heads.tensor.shape()[2];
  constexpr std::size_t alignment = 16;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(first) % alignment == 0 && stride * element % alignment == 0 &&
                          shape.head_size * element % alignment == 0;
  return {first, stride, is_aligned};
}

// CUDA C++ programming guide, "Technical specifications per compute capability": what a block may have of shared memory.
std::size_t shared_limit_of(const Gpu& gpu) {
  const int capability = 10 * gpu.major + gpu.minor;
  constexpr std::size_t kibibyte = 1024;
  if (capability == 80 || capability == 87) return 163 * kibibyte;
  if (capability == 90 || capability == 100 || capability == 103) return 227 * kibibyte;
  return 99 * kibibyte;
}

AttentionTask task_of(const Gpu& gpu, const AttentionShape& shape, const Dropout& dropout, const DeviceMask& mask,
                      const Heads& q, const Heads& k, const Heads& v) {
  if (shape.head_size > most_head_size) {
    fail(ErrorKind::usage, "attention on CUDA: heads of size {}; expected at most {}", shape.head_size, most_head_size);
  }
  AttentionTask task;
  task.number = number_of(q.tensor);
  task.sequences = q.tensor.shape()[0];
  task.heads = shape.heads;
  task.head_size = shape.head_size;
  task.first_head = shape.first_head;
  task.other_heads = shape.all_heads == 0 ? 0 : shape.all_heads - shape.heads;
  task.scale = static_cast<float>(shape.scale);
  const std::uint32_t threshold = dropout_threshold(dropout.rate);
  task.drops = {dropout.seed, dropout.site, threshold, static_cast<float>(dropout_factor(threshold)), dropout.first};
  task.mask = mask;
  task.q = rows_of<const void>(q, shape);
  task.k = rows_of<const void>(k, shape);
  task.v = rows_of<const void>(v, shape);
  task.shared_limit = shared_limit_of(gpu);
  return task;
}

}  // namespace

void CudaBackend::attention(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q,
                            const Heads& k, const Heads& v, const Heads& out, Tensor& lse) {
  const AttentionTask task = task_of(runtime_.gpu(), shape, dropout, masks_.find(mask), q, k, v);
  cuda::attention(stream(), task, rows_of<void>(out, shape), static_cast<float*>(lse.data()));
}

void CudaBackend::attention_backward(const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout,
                                     const Heads& q, const Heads& k, const Heads& v, const Heads& out, const Tensor& lse,
                                     const Heads& dout, const Heads& dq, const Heads& dk, const Heads& dv) {
  const AttentionTask task = task_of(runtime_.gpu(), shape, dropout, masks_.find(mask), q, k, v);
  AttentionGradients gradients;
  gradients.out = rows_of<const void>(out, shape);
  gradients.dout = rows_of<const void>(dout, shape);
  gradients.lse = static_cast<const float*>(lse.data());
  gradients.delta = static_cast<float*>(workspace(lse.size() * sizeof(float)));
  gradients.dq = rows_of<void>(dq, shape);
  gradients.dk = rows_of<void>(dk, shape);
  gradients.dv = rows_of<void>(dv, shape);
  cuda::attention_backward(stream(), task, gradients);
}

}  // namespace bitloom::nn::cuda
