// Ops on images: convolutions by cuDNN, which takes weights in another layout than ours, and kernels for what it has not and
// for the rest.
#include <algorithm>
#include <cstdint>
#include <string>

#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {
namespace {

Convolution describe(const Conv2d& conv, const Shape& x, const Shape& w, const Shape& y, Number number) {
  return {.images = x[0],
          .rows = x[1],
          .columns = x[2],
          .inputs = x[3],
          .outputs = w[0],
          .kernel_rows = w[2],
          .kernel_columns = w[3],
          .out_rows = y[1],
          .out_columns = y[2],
          .stride = conv.stride,
          .padding = conv.padding,
          .number = number};
}

// The library is not told where tensors are when it chooses how to read them.
bool is_aligned(const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data()) % 16 == 0; }

std::size_t room_for_copy(const Tensor& tensor) { return is_aligned(tensor) ? 0 : Scratch::rounded(tensor.bytes()); }

// Takes parts, one by one, from a workspace.
class Parts {
 public:
  explicit Parts(void* memory) : next_(static_cast<std::byte*>(memory)) {}
  std::byte* take(std::size_t bytes) {
    std::byte* part = next_;
    next_ += Scratch::rounded(bytes);
    return part;
  }
  // Where the tensor is, or where it will be copied from or to.
  std::byte* aligned(const Tensor& tensor) {
    return is_aligned(tensor) ? static_cast<std::byte*>(tensor.data()) : take(tensor.bytes());
  }

 private:
  std::byte* next_;
};

void copy(Stream stream, Number number, const void* from, void* to, std::size_t n) {
  if (from != to) convert(stream, number, from, number, to, n);
}

// Calls compute(convolution, x, y) for as many images as the library takes at once, and the next, with where they begin in x
// and in y; for all of them together if it takes none.
template <typename F>
void for_images(const Convolution& all, std::byte* x, std::byte* y, F&& compute) {
  const std::size_t at_once = Dnn::most_images(all) == 0 ? all.images : Dnn::most_images(all);
  const std::size_t bytes = all.number == Number::f32 ? 4 : 2;
  Convolution some = all;
  for (std::size_t first = 0; first < all.images; first += some.images) {
    some.images = std::min(at_once, all.images - first);
    compute(some, x + first * all.rows * all.columns * all.inputs * bytes,
            y + first * all.out_rows * all.out_columns * all.outputs * bytes);
  }
}

Windows windows_of(std::size_t k, const Shape& small, const Shape& large) {
  return {k, small[0], small[1], small[2], small[3], large[1], large[2]};
}

}  // namespace

void CudaBackend::note_slow(const char* op, const Convolution& c) {
  const std::string which = fmt::format("{} images {} x {} x {} and {} kernels {} x {}, stride {}", c.images, c.rows, c.columns,
                                        c.inputs, c.outputs, c.kernel_rows, c.kernel_columns, c.stride);
  if (Dnn::most_images(c) == 0) {
    notes_.add("{}: more numbers than the library can count in {}; by plain sums, which are much slower", op, which);
  } else {
    notes_.add(
        "{}: the library has no algorithm that gives the same bits every time for {}; by plain sums, which are much slower", op,
        which);
  }
}

void CudaBackend::conv2d(const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) {
  if (y.size() == 0) return;
  const Number number = number_of(x);
  const Shape& kernel = w.shape();
  if (w.size() == 0) {
    fill(y, 0);
  } else {
    Parts parts(workspace(Scratch::rounded(w.bytes()) + room_for_copy(x) + room_for_copy(y)));
    void* w_krsc = parts.take(w.bytes());
    std::byte* x_nhwc = parts.aligned(x);
    std::byte* y_nhwc = parts.aligned(y);
    lay_out_weights(stream(), number, w.data(), w_krsc, kernel[0], kernel[1], kernel[2] * kernel[3]);
    copy(stream(), number, x.data(), x_nhwc, x.size());
    for_images(describe(conv, x.shape(), kernel, y.shape(), number), x_nhwc, y_nhwc,
               [&](const Convolution& convolution, const void* some_x, void* some_y) {
                 if (dnn_.forward(convolution, some_x, w_krsc, some_y)) return;
                 note_slow("conv2d", convolution);
                 convolve(stream(), convolution, some_x, w_krsc, some_y);
               });
    copy(stream(), number, y_nhwc, y.data(), y.size());
  }
  if (!bias) return;
  const auto* bias_o = static_cast<const float*>(bias.data());
  bias_activate(stream(), number, y.data(), bias_o, Function::none, number, y.data(), y.size() / kernel[0], kernel[0]);
}

void CudaBackend::conv2d_backward_data(const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx) {
  if (dx.size() == 0) return;
  if (dy.size() == 0) return fill(dx, 0);
  const Number number = number_of(dx);
  const Shape& kernel = w.shape();
  Parts parts(workspace(Scratch::rounded(w.bytes()) + room_for_copy(dy) + room_for_copy(dx)));
  void* w_krsc = parts.take(w.bytes());
  std::byte* dy_nhwc = parts.aligned(dy);
  std::byte* dx_nhwc = parts.aligned(dx);
  lay_out_weights(stream(), number, w.data(), w_krsc, kernel[0], kernel[1], kernel[2] * kernel[3]);
  copy(stream(), number, dy.data(), dy_nhwc, dy.size());
  for_images(describe(conv, dx.shape(), kernel, dy.shape(), number), dx_nhwc, dy_nhwc,
             [&](const Convolution& convolution, void* some_dx, const void* some_dy) {
               if (dnn_.backward_data(convolution, some_dy, w_krsc, some_dx)) return;
               note_slow("conv2d_backward_data", convolution);
               convolve_backward_data(stream(), convolution, some_dy, w_krsc, some_dx);
             });
  copy(stream(), number, dx_nhwc, dx.data(), dx.size());
}

void CudaBackend::conv2d_backward_weights(const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) {
  if (dw.size() == 0 || dy.size() == 0) return;
  const Number number = number_of(x);
  const Shape& kernel = dw.shape();
  const std::size_t bytes = dw.size() * dtype_size(x.dtype());
  Parts parts(workspace(Scratch::rounded(bytes) + room_for_copy(x) + room_for_copy(dy)));
  void* dw_krsc = parts.take(bytes);
  std::byte* x_nhwc = parts.aligned(x);
  std::byte* dy_nhwc = parts.aligned(dy);
  copy(stream(), number, x.data(), x_nhwc, x.size());
  copy(stream(), number, dy.data(), dy_nhwc, dy.size());
  for_images(describe(conv, x.shape(), kernel, dy.shape(), number), x_nhwc, dy_nhwc,
             [&](const Convolution& convolution, const void* some_x, const void* some_dy) {
               if (!dnn_.backward_weights(convolution, some_x, some_dy, dw_krsc)) {
                 note_slow("conv2d_backward_weights", convolution);
                 convolve_backward_weights(stream(), convolution, some_x, some_dy, dw_krsc);
               }
               add_laid_out_weights(stream(), number, dw_krsc, static_cast<float*>(dw.data()), kernel[0], kernel[1],
                                    kernel[2] * kernel[3]);
             });
}

void CudaBackend::max_pool(std::size_t k, const Tensor& x, Tensor& y, Tensor& which) {
  cuda::max_pool(stream(), windows_of(k, y.shape(), x.shape()), number_of(x), x.data(), y.data(),
                 static_cast<std::uint8_t*>(which.data()));
}

void CudaBackend::max_pool_backward(std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) {
  const Windows windows = windows_of(k, dy.shape(), dx.shape());
  if (windows.large_size() != k * k * windows.size()) fill(dx, 0);  // what no window has
  cuda::spread(stream(), windows, number_of(dy), dy.data(), static_cast<const std::uint8_t*>(which.data()), dx.data());
}

void CudaBackend::upsample(std::size_t k, const Tensor& x, Tensor& y) {
  cuda::spread(stream(), windows_of(k, x.shape(), y.shape()), number_of(x), x.data(), nullptr, y.data());
}

void CudaBackend::upsample_backward(std::size_t k, const Tensor& dy, Tensor& dx) {
  sum_of_windows(stream(), windows_of(k, dx.shape(), dy.shape()), number_of(dy), dy.data(), dx.data());
}

}  // namespace bitloom::nn::cuda
