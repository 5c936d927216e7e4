// Convolutions by oneDNN. Activations stay as they are, (N,Y,X,C), which costs its kernels nothing; weights are put into the
// layout that the kernel wants at every call, because they change at every step and are small.
#include <algorithm>
#include <exception>

#include "nn/cpu/conv_weights.h"
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
    return {static_cast<std::uint64_t>(operation), types, x[0], x[1], x[2], x[3], w[0], w[2], w[3], conv.stride, conv.padding};
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

// oneDNN adds up the gradients of weights by threads, so that they depend on their number; and which kernel it takes for other
// convolutions depends on that number for some shapes, also with AVX-512 (16 maps by 16 x 4 x 1 with a stride of 3). So images
// are put into groups that depend on shapes alone, and one thread works on a group; the groups' gradients are added in order. A
// group has as many pixels as make its work much longer than that addition. With two threads this is as fast as oneDNN's own
// division or faster.
std::size_t images_per_group(const Problem& problem) {
  constexpr std::size_t pixels = 256;
  // Each group has its own memory for gradients of weights.
  const std::size_t most_groups = problem.operation == Operation::convolution_weights ? 32 : 256;
  const std::size_t images = problem.x[0];
  const std::size_t for_pixels = (pixels + problem.y[1] * problem.y[2] - 1) / (problem.y[1] * problem.y[2]);
  return std::clamp((images + most_groups - 1) / most_groups, std::min(for_pixels, images), images);
}

// For this number of the images.
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

// A primitive and the layout that it has for weights.
struct BuiltConv {
  dnnl::primitive primitive;
  Desc scratchpad, weights;
  std::vector<Call::Argument> arguments;
};

// Arguments: x, w, the bias if there is one, y. The layout of w may be any.
BuiltConv build_forward(const dnnl::engine& engine, compat::Convolution conv, const Desc& layout) {
  conv.w = layout;
  const auto pd = compat::forward(engine, conv);
  std::vector<Call::Argument> arguments = {{DNNL_ARG_SRC, conv.x}, {DNNL_ARG_WEIGHTS, pd.weights_desc()}};
  if (conv.bias != Desc()) arguments.push_back({DNNL_ARG_BIAS, conv.bias});
  arguments.push_back({DNNL_ARG_DST, conv.y});
  return {dnnl::convolution_forward(pd), pd.scratchpad_desc(), pd.weights_desc(), std::move(arguments)};
}

// Arguments: dy, w, dx.
BuiltConv build_data(const dnnl::engine& engine, compat::Convolution conv, const Desc& layout) {
  const auto forward = compat::forward(engine, conv);
  conv.w = layout;
  const auto pd = compat::backward_data(engine, conv, forward);
  return {dnnl::convolution_backward_data(pd),
          pd.scratchpad_desc(),
          pd.weights_desc(),
          {{DNNL_ARG_DIFF_DST, conv.y}, {DNNL_ARG_WEIGHTS, pd.weights_desc()}, {DNNL_ARG_DIFF_SRC, conv.x}}};
}

// Arguments: x, dy, dw.
BuiltConv build_weights(const dnnl::engine& engine, compat::Convolution conv, const Desc& layout) {
  const auto forward = compat::forward(engine, conv);
  conv.w = layout;
  const auto pd = compat::backward_weights(engine, conv, forward);
  return {dnnl::convolution_backward_weights(pd),
          pd.scratchpad_desc(),
          pd.diff_weights_desc(),
          {{DNNL_ARG_SRC, conv.x}, {DNNL_ARG_DIFF_DST, conv.y}, {DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()}}};
}

using Build = BuiltConv (*)(const dnnl::engine&, compat::Convolution, const Desc&);

// A call for each group of images, and how it has weights.
Desc add_groups(const dnnl::engine& engine, const Problem& problem, Build build, Desc layout, LaidOutCall& call) {
  const OneThread one_thread;
  const std::size_t size = images_per_group(problem);
  // The last group may be smaller; it is told to use the layout of the others.
  for (const auto& [images, groups] : {std::pair(size, problem.x[0] / size), std::pair(problem.x[0] % size, std::size_t{1})}) {
    if (images == 0) continue;
    const BuiltConv built = build(engine, convolution(problem, images), layout);
    layout = built.weights;
    for (std::size_t group = 0; group < groups; ++group) {
      call.groups.push_back(std::make_unique<Call>(engine, built.primitive, built.scratchpad, built.arguments));
    }
  }
  return layout;
}

LaidOutCall build_reading_weights(const OneDnn& onednn, const Problem& problem) {
  const Build build = problem.operation == Operation::convolution ? build_forward : build_data;
  const Desc any = weights(problem.w, problem.dtype, Tag::any);
  const Desc plain = weights(problem.w, problem.dtype, Tag::oihw);
  LaidOutCall call;
  const Desc layout = add_groups(onednn.engine(), problem, build, any, call);
  call.weights.bytes = layout.get_size();
  if (layout != plain) call.weights.reorder = make_reorder(onednn.engine(), plain, layout);
  return call;
}

LaidOutCall build_adding_weights(const OneDnn& onednn, const Problem& problem) {
  LaidOutCall call;
  const Desc layout = add_groups(onednn.engine(), problem, build_weights, weights(problem.w, DType::f32, Tag::any), call);
  call.weights.bytes = layout.get_size();
  call.weights.reorder = make_reorder(onednn.engine(), layout, weights(problem.w, DType::f32, Tag::oihw), true);
  return call;
}

// Pointers to all images, in the problem's type, of which a call is given its own.
struct Images {
  Images(const Problem& problem, const void* x_images, const void* y_images)
      : x(static_cast<const std::byte*>(x_images)), y(static_cast<const std::byte*>(y_images)) {
    const std::size_t bytes = images_per_group(problem) * dtype_size(problem.dtype);
    x_bytes = bytes * problem.x.with(0, 1).size();
    y_bytes = bytes * problem.y.with(0, 1).size();
  }
  const void* x_of(std::size_t group) const { return x + group * x_bytes; }
  const void* y_of(std::size_t group) const { return y + group * y_bytes; }

  const std::byte *x, *y;
  std::size_t x_bytes, y_bytes;  // of a group
};

// Runs all calls, whose pointers are pointers(group).
template <typename Pointers>
void run_all(OneDnn& onednn, LaidOutCall& call, const Pointers& pointers) {
  onednn.for_blocks(call.groups.size(), call,
                    [&](std::size_t group, std::size_t, void* scratch) { call.groups[group]->run(scratch, pointers(group)); });
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
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build_reading_weights(*onednn_, problem); });
        const void* x_v = as_type(x, problem.dtype, onednn_->a);
        const void* w_v = onednn_->lay_out(call.weights, as_type(w, problem.dtype, onednn_->b), onednn_->layout);
        write_as(y, problem.dtype, onednn_->out, [&](const void* y_v) {
          const Images images(problem, x_v, y_v);
          run_all(*onednn_, call, [&](std::size_t group) {
            std::vector<const void*> pointers = {images.x_of(group), w_v};
            if (bias) pointers.push_back(bias.data());
            pointers.push_back(images.y_of(group));
            return pointers;
          });
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
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build_reading_weights(*onednn_, problem); });
        const void* dy_v = as_type(dy, problem.dtype, onednn_->a);
        const void* w_v = onednn_->lay_out(call.weights, as_type(w, problem.dtype, onednn_->b), onednn_->layout);
        write_as(dx, problem.dtype, onednn_->out, [&](const void* dx_v) {
          const Images images(problem, dx_v, dy_v);
          run_all(*onednn_, call, [&](std::size_t group) { return std::array{images.y_of(group), w_v, images.x_of(group)}; });
        });
      },
      [&] { return describe(problem); });
}

void CpuBackend::conv2d_backward_weights(const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) {
  if (dw.size() == 0 || dy.size() == 0) return;
  if (takes_shifted_products(*onednn_, conv, x, dy, dw.shape())) {
    return translate_errors(
        "conv2d_backward_weights", [&] { add_shifted_products(*onednn_, conv, x, dy, dw); },
        [&] { return fmt::format("x {}, dy {}, dw {}", to_text(x), to_text(dy), to_text(dw)); });
  }
  const Problem problem{Operation::convolution_weights,     conv, x.shape(), dw.shape(), dy.shape(),
                        compute_type(*onednn_, dy.dtype()), false};
  translate_errors(
      "conv2d_backward_weights",
      [&] {
        LaidOutCall& call = onednn_->call(problem.key(), [&] { return build_adding_weights(*onednn_, problem); });
        const void* x_v = as_type(x, problem.dtype, onednn_->a);
        const void* dy_v = as_type(dy, problem.dtype, onednn_->b);
        const Images images(problem, x_v, dy_v);
        // The gradients of the groups, one behind the other.
        const std::size_t size = call.weights.bytes / sizeof(float);
        auto* dw_v = static_cast<float*>(onednn_->layout.get(call.groups.size() * call.weights.bytes));
        run_all(*onednn_, call, [&](std::size_t group) {
          return std::array<const void*, 3>{images.x_of(group), images.y_of(group), dw_v + group * size};
        });
        add_sums(dw_v, size, call.groups.size());
        onednn_->run(*call.weights.reorder, std::array<const void*, 2>{dw_v, dw.data()});
      },
      [&] { return describe(problem); });
}

}  // namespace bitloom::nn
