// Convolutions by oneDNN. Activations stay as they are, (N,Y,X,C), which costs its kernels nothing; weights are put into the
// layout that the kernel wants at every call, because they change at every step and are small.
#include <omp.h>

#include <algorithm>

#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/onednn.h"

namespace bitloom::nn {
namespace {

using Desc = dnnl::memory::desc;
using Dim = dnnl::memory::dim;
using Tag = dnnl::memory::format_tag;

// x (N,Y,X,I), w (O,I,KY,KX), y (N,Y',X',O).
struct Problem {
  Operation operation;
  Conv2d conv;
  Shape x, w, y;
  DType dtype;
  bool has_bias;

  CacheKey key() const {
    const auto types = std::uint64_t{has_bias} | static_cast<std::uint64_t>(dtype) << 1U;
    const auto threads = static_cast<std::uint64_t>(omp_get_max_threads());
    return {static_cast<std::uint64_t>(operation),
            types,
            x[0],
            x[1],
            x[2],
            x[3],
            w[0],
            w[2],
            w[3],
            conv.stride,
            conv.padding,
            threads};
  }
};

// A tensor in oneDNN's order of axes: channels second.
Desc images(const Shape& nyxc, DType dtype) {
  return {{static_cast<Dim>(nyxc[0]), static_cast<Dim>(nyxc[3]), static_cast<Dim>(nyxc[1]), static_cast<Dim>(nyxc[2])},
          onednn_type(dtype),
          Tag::nhwc};
}

Desc weights(const Shape& oiyx, DType dtype, Tag tag) {
  return {{static_cast<Dim>(oiyx[0]), static_cast<Dim>(oiyx[1]), static_cast<Dim>(oiyx[2]), static_cast<Dim>(oiyx[3])},
          onednn_type(dtype),
          tag};
}

LaidOutCall build(const dnnl::engine& engine, const Problem& problem) {
  const auto stride = static_cast<Dim>(problem.conv.stride);
  const auto padding = static_cast<Dim>(problem.conv.padding);
  compat::Convolution conv{.x = images(problem.x, problem.dtype),
                           .w = weights(problem.w, problem.dtype, Tag::any),
                           .bias = {},
                           .y = images(problem.y, problem.dtype),
                           .strides = {stride, stride},
                           .padding = {padding, padding}};
  if (problem.has_bias) conv.bias = {{static_cast<Dim>(problem.w[0])}, dnnl::memory::data_type::f32, Tag::x};
  const auto forward = compat::forward(engine, conv);

  LaidOutCall calls;
  const auto finish = [&](const auto& pd, dnnl::primitive primitive, const Desc& layout,
                          std::span<const Call::Argument> arguments) {
    calls.main = std::make_unique<Call>(engine, std::move(primitive), pd.scratchpad_desc(), arguments);
    calls.bytes = layout.get_size();
  };
  const Desc plain = weights(problem.w, problem.dtype, Tag::oihw);
  switch (problem.operation) {
    case Operation::matmul: break;
    case Operation::convolution: {
      std::vector<Call::Argument> arguments = {{DNNL_ARG_SRC, conv.x}, {DNNL_ARG_WEIGHTS, forward.weights_desc()}};
      if (problem.has_bias) arguments.push_back({DNNL_ARG_BIAS, conv.bias});
      arguments.push_back({DNNL_ARG_DST, conv.y});
      finish(forward, dnnl::convolution_forward(forward), forward.weights_desc(), arguments);
      if (forward.weights_desc() != plain) calls.reorder = make_reorder(engine, plain, forward.weights_desc());
      break;
    }
    case Operation::convolution_data: {
      const auto pd = compat::backward_data(engine, conv, forward);
      finish(pd, dnnl::convolution_backward_data(pd), pd.weights_desc(),
             std::array{Call::Argument{DNNL_ARG_DIFF_DST, conv.y}, Call::Argument{DNNL_ARG_WEIGHTS, pd.weights_desc()},
                        Call::Argument{DNNL_ARG_DIFF_SRC, conv.x}});
      if (pd.weights_desc() != plain) calls.reorder = make_reorder(engine, plain, pd.weights_desc());
      break;
    }
    case Operation::convolution_weights: {
      conv.w = weights(problem.w, DType::f32, Tag::any);
      const auto pd = compat::backward_weights(engine, conv, forward);
      finish(pd, dnnl::convolution_backward_weights(pd), pd.diff_weights_desc(),
             std::array{Call::Argument{DNNL_ARG_SRC, conv.x}, Call::Argument{DNNL_ARG_DIFF_DST, conv.y},
                        Call::Argument{DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()}});
      calls.reorder = make_reorder(engine, pd.diff_weights_desc(), weights(problem.w, DType::f32, Tag::oihw), true);
      break;
    }
  }
  return calls;
}

// The type that is computed in: that of the tensors where the machine multiplies it.
DType compute_type(const OneDnn& onednn, DType dtype) { return onednn.has_bf16() ? dtype : DType::f32; }

// A tensor as the compute type; in `memory` unless it is.
const void* as_type(const Tensor& tensor, DType dtype, Workspace& memory) {
  return tensor.dtype() == dtype ? tensor.data() : as_f32(tensor, memory);
}

// Runs work(pointer of the compute type) and puts what it wrote there into `out`.
template <typename Work>
void write_as(Tensor& out, DType dtype, Workspace& memory, Work&& work) {
  if (out.dtype() == dtype) return work(out.data());
  auto* values = static_cast<float*>(memory.get(out.size() * sizeof(float)));
  work(values);
  f32_to_bf16({values, out.size()}, out.as<bf16>().data());
}

std::string describe(const Problem& problem) {
  return fmt::format("{} x {}, w {}, y {}, stride {}, padding {}", dtype_name(problem.dtype), to_text(problem.x),
                     to_text(problem.w), to_text(problem.y), problem.conv.stride, problem.conv.padding);
}

}  // namespace

void CpuBackend::conv2d(const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) {
  if (y.size() == 0) return;
  if (x.size() == 0) return fill_rows(y, bias);
  const Problem problem{Operation::convolution, conv, x.shape(), w.shape(), y.shape(), compute_type(*onednn_, x.dtype()),
                        static_cast<bool>(bias)};
  translate_errors(
      "conv2d",
      [&] {
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build(onednn_->engine(), problem); });
        const void* x_v = as_type(x, problem.dtype, onednn_->a);
        const void* w_v = onednn_->lay_out(call, as_type(w, problem.dtype, onednn_->b));
        write_as(y, problem.dtype, onednn_->out, [&](const void* y_v) {
          const std::array<const void*, 4> with_bias = {x_v, w_v, bias.data(), y_v};
          const std::array<const void*, 3> without = {x_v, w_v, y_v};
          onednn_->run(*call.main, bias ? std::span<const void* const>(with_bias) : std::span<const void* const>(without));
        });
      },
      [&] { return describe(problem); });
}

void CpuBackend::conv2d_backward_data(const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx) {
  if (dx.size() == 0) return;
  if (dy.size() == 0) return fill_rows(dx, {});
  const Problem problem{Operation::convolution_data,        conv, dx.shape(), w.shape(), dy.shape(),
                        compute_type(*onednn_, dy.dtype()), false};
  translate_errors(
      "conv2d_backward_data",
      [&] {
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build(onednn_->engine(), problem); });
        const void* dy_v = as_type(dy, problem.dtype, onednn_->a);
        const void* w_v = onednn_->lay_out(call, as_type(w, problem.dtype, onednn_->b));
        write_as(dx, problem.dtype, onednn_->out, [&](const void* dx_v) {
          onednn_->run(*call.main, std::array<const void*, 3>{dy_v, w_v, dx_v});
        });
      },
      [&] { return describe(problem); });
}

void CpuBackend::conv2d_backward_weights(const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) {
  if (dw.size() == 0 || dy.size() == 0) return;
  const Problem problem{Operation::convolution_weights,     conv, x.shape(), dw.shape(), dy.shape(),
                        compute_type(*onednn_, dy.dtype()), false};
  translate_errors(
      "conv2d_backward_weights",
      [&] {
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build(onednn_->engine(), problem); });
        const void* x_v = as_type(x, problem.dtype, onednn_->a);
        const void* dy_v = as_type(dy, problem.dtype, onednn_->b);
        const void* dw_v = onednn_->layout.get(call.bytes);
        onednn_->run(*call.main, std::array<const void*, 3>{x_v, dy_v, dw_v});
        onednn_->run(*call.reorder, std::array<const void*, 2>{dw_v, dw.data()});
      },
      [&] { return describe(problem); });
}

}  // namespace bitloom::nn
