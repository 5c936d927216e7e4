// Convolutions by oneDNN. Activations stay as they are, (N,Y,X,C), which costs its kernels nothing; weights are put into the
// layout that the kernel wants at every call, because they change at every step and are small.
#include <omp.h>

#include <algorithm>
#include <exception>

#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/onednn.h"
#include "nn/cpu/parallel.h"

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

// oneDNN adds up the gradients of weights by threads, so that they depend on their number. Here images are put into groups
// that depend on shapes alone; one thread works on a group, and the groups' gradients are added in order. A group has as many
// pixels as make its work much longer than that addition.
std::size_t images_per_group(const Shape& x, const Shape& y) {
  constexpr std::size_t pixels = 256;
  constexpr std::size_t most_groups = 32;  // of which each has memory for a gradient
  const std::size_t for_pixels = (pixels + y[1] * y[2] - 1) / (y[1] * y[2]);
  return std::clamp((x[0] + most_groups - 1) / most_groups, std::min(for_pixels, x[0]), x[0]);
}

// What oneDNN does meanwhile it does in this thread alone.
class OneThread {
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

// Of so many of the images.
compat::Convolution convolution(const Problem& problem, std::size_t count) {
  const auto stride = static_cast<Dim>(problem.conv.stride);
  const auto padding = static_cast<Dim>(problem.conv.padding);
  compat::Convolution conv{.x = images(problem.x.with(0, count), problem.dtype),
                           .w = weights(problem.w, problem.dtype, Tag::any),
                           .bias = {},
                           .y = images(problem.y.with(0, count), problem.dtype),
                           .strides = {stride, stride},
                           .padding = {padding, padding}};
  if (problem.has_bias) conv.bias = {{static_cast<Dim>(problem.w[0])}, dnnl::memory::data_type::f32, Tag::x};
  return conv;
}

// Arguments: x, w, the bias if there is one, y.
LaidOutCall build_forward(const dnnl::engine& engine, const Problem& problem) {
  const compat::Convolution conv = convolution(problem, problem.x[0]);
  const auto pd = compat::forward(engine, conv);
  std::vector<Call::Argument> arguments = {{DNNL_ARG_SRC, conv.x}, {DNNL_ARG_WEIGHTS, pd.weights_desc()}};
  if (problem.has_bias) arguments.push_back({DNNL_ARG_BIAS, conv.bias});
  arguments.push_back({DNNL_ARG_DST, conv.y});
  LaidOutCall call;
  call.main = std::make_unique<Call>(engine, dnnl::convolution_forward(pd), pd.scratchpad_desc(), arguments);
  call.bytes = pd.weights_desc().get_size();
  const Desc plain = weights(problem.w, problem.dtype, Tag::oihw);
  if (pd.weights_desc() != plain) call.reorder = make_reorder(engine, plain, pd.weights_desc());
  return call;
}

// Arguments: dy, w, dx.
LaidOutCall build_data(const dnnl::engine& engine, const Problem& problem) {
  const compat::Convolution conv = convolution(problem, problem.x[0]);
  const auto pd = compat::backward_data(engine, conv, compat::forward(engine, conv));
  const std::array arguments = {Call::Argument{DNNL_ARG_DIFF_DST, conv.y}, Call::Argument{DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                Call::Argument{DNNL_ARG_DIFF_SRC, conv.x}};
  LaidOutCall call;
  call.main = std::make_unique<Call>(engine, dnnl::convolution_backward_data(pd), pd.scratchpad_desc(), arguments);
  call.bytes = pd.weights_desc().get_size();
  const Desc plain = weights(problem.w, problem.dtype, Tag::oihw);
  if (pd.weights_desc() != plain) call.reorder = make_reorder(engine, plain, pd.weights_desc());
  return call;
}

// Arguments of each group: x, dy, dw. The last group may be smaller; it is told to use the layout of the others.
LaidOutCall build_weights(const dnnl::engine& engine, const Problem& problem) {
  const OneThread one_thread;
  const std::size_t size = images_per_group(problem.x, problem.y);
  LaidOutCall call;
  Desc layout = weights(problem.w, DType::f32, Tag::any);
  const auto add_groups_of = [&](std::size_t images, std::size_t groups) {
    if (groups == 0) return;
    compat::Convolution conv = convolution(problem, images);
    const auto forward = compat::forward(engine, conv);
    conv.w = layout;
    const auto pd = compat::backward_weights(engine, conv, forward);
    layout = pd.diff_weights_desc();
    const dnnl::convolution_backward_weights primitive(pd);
    const std::array arguments = {Call::Argument{DNNL_ARG_SRC, conv.x}, Call::Argument{DNNL_ARG_DIFF_DST, conv.y},
                                  Call::Argument{DNNL_ARG_DIFF_WEIGHTS, layout}};
    for (std::size_t group = 0; group < groups; ++group) {
      call.groups.push_back(std::make_unique<Call>(engine, primitive, pd.scratchpad_desc(), arguments));
    }
  };
  add_groups_of(size, problem.x[0] / size);
  add_groups_of(problem.x[0] % size, problem.x[0] % size == 0 ? 0 : 1);
  call.bytes = layout.get_size();
  call.reorder = make_reorder(engine, layout, weights(problem.w, DType::f32, Tag::oihw), true);
  return call;
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
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build_forward(onednn_->engine(), problem); });
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
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build_data(onednn_->engine(), problem); });
        const void* dy_v = as_type(dy, problem.dtype, onednn_->a);
        const void* w_v = onednn_->lay_out(call, as_type(w, problem.dtype, onednn_->b));
        write_as(dx, problem.dtype, onednn_->out, [&](const void* dx_v) {
          onednn_->run(*call.main, std::array<const void*, 3>{dy_v, w_v, dx_v});
        });
      },
      [&] { return describe(problem); });
}

namespace {

// sums[0] += sums[1] + ... in this order, of arrays of `size` one behind the other.
void add_groups(float* sums, std::size_t size, std::size_t groups) {
  for_elements(size, groups * sizeof(float), [&](std::size_t first, std::size_t count) {
    for (std::size_t group = 1; group < groups; ++group) {
      const float* from = sums + group * size;
      for (std::size_t i = first; i < first + count; ++i) sums[i] += from[i];
    }
  });
}

// The gradients of the groups, laid out as call.bytes says, one behind the other.
float* run_groups(OneDnn& onednn, LaidOutCall& call, const Problem& problem, const void* x, const void* dy) {
  const std::size_t groups = call.groups.size();
  const std::size_t images = images_per_group(problem.x, problem.y);
  const std::size_t element = dtype_size(problem.dtype);
  const std::size_t x_bytes = images * problem.x.size() / problem.x[0] * element;
  const std::size_t y_bytes = images * problem.y.size() / problem.y[0] * element;
  std::size_t scratch_bytes = 0;
  for (const auto& group : call.groups) scratch_bytes = std::max(scratch_bytes, (group->scratchpad_bytes() + 63) / 64 * 64);
  const auto threads = std::min(static_cast<std::size_t>(omp_get_max_threads()), groups);
  auto* scratch = static_cast<std::byte*>(onednn.scratchpad.get(threads * scratch_bytes));
  auto* sums = static_cast<float*>(onednn.layout.get(groups * call.bytes));
  std::exception_ptr failure;  // none may leave the parallel region
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(threads))
  for (std::size_t group = 0; group < groups; ++group) {
    try {
      const OneThread one_thread;
      const std::array<const void*, 3> pointers = {static_cast<const std::byte*>(x) + group * x_bytes,
                                                   static_cast<const std::byte*>(dy) + group * y_bytes,
                                                   sums + group * (call.bytes / sizeof(float))};
      call.groups[group]->run(scratch + static_cast<std::size_t>(omp_get_thread_num()) * scratch_bytes, pointers);
    } catch (...) {
#pragma omp critical(bitloom_run_groups)
      failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  return sums;
}

}  // namespace

void CpuBackend::conv2d_backward_weights(const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) {
  if (dw.size() == 0 || dy.size() == 0) return;
  const Problem problem{Operation::convolution_weights,     conv, x.shape(), dw.shape(), dy.shape(),
                        compute_type(*onednn_, dy.dtype()), false};
  translate_errors(
      "conv2d_backward_weights",
      [&] {
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build_weights(onednn_->engine(), problem); });
        const void* x_v = as_type(x, problem.dtype, onednn_->a);
        const void* dy_v = as_type(dy, problem.dtype, onednn_->b);
        float* dw_v = run_groups(*onednn_, call, problem, x_v, dy_v);
        add_groups(dw_v, call.bytes / sizeof(float), call.groups.size());
        onednn_->run(*call.reorder, std::array<const void*, 2>{dw_v, dw.data()});
      },
      [&] { return describe(problem); });
}

}  // namespace bitloom::nn
