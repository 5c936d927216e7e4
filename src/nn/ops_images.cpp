// The checks of ops.h: images.
#include <array>
#include <string_view>

#include "nn/ops_check.h"

namespace bitloom::nn {

namespace {

struct Named {
  std::string_view name;
  const Tensor& tensor;
};

// x (N,Y,X,I), w (O,I,KY,KX), y (N,Y',X',O), or their gradients.
void check_conv(const Check& check, const Conv2d& conv, const Named& x_named, const Named& w_named, const Named& y_named) {
  const auto& [x_name, x] = x_named;
  const auto& [w_name, w] = w_named;
  const auto& [y_name, y] = y_named;
  check.axes(x_name, x, 4);
  check.axes(w_name, w, 4);
  check.axes(y_name, y, 4);
  if (conv.stride == 0) check.refuse("stride: 0; expected at least 1");
  std::array<std::size_t, 2> lengths = {};
  for (const std::size_t i : {0U, 1U}) {
    const std::size_t padded = x.shape()[1 + i] + 2 * conv.padding;
    const std::size_t kernel = w.shape()[2 + i];
    if (kernel == 0 || kernel > padded) {
      check.refuse("{}: {}: a kernel that is not within {} {} padded by {}", w_name, to_text(w), x_name, to_text(x),
                   conv.padding);
    }
    lengths[i] = (padded - kernel) / conv.stride + 1;
  }
  const Shape expected = {x.shape()[0], lengths[0], lengths[1], w.shape()[0]};
  if (w.shape()[1] != x.shape()[3] || y.shape() != expected) {
    check.refuse("{} {}, {} {}, {} {}: the shapes do not fit; expected {} {}", x_name, to_text(x), w_name, to_text(w), y_name,
                 to_text(y), y_name, to_text(expected));
  }
}

}  // namespace

void conv2d(Engine& engine, const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) {
  const Check check(engine, "conv2d");
  const DType values = check.values("x", x);
  check.typed("w", w, values);
  check.typed("y", y, values);
  check_conv(check, conv, {"x", x}, {"w", w}, {"y", y});
  if (bias) check.is("bias", bias, parameter_type(values), {w.shape()[0]});
  engine.backend().conv2d(conv, x, w, bias, y);
}

void conv2d_backward_data(Engine& engine, const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx) {
  const Check check(engine, "conv2d_backward_data");
  const DType values = check.values("dy", dy);
  check.typed("w", w, values);
  check.typed("dx", dx, values);
  check_conv(check, conv, {"dx", dx}, {"w", w}, {"dy", dy});
  engine.backend().conv2d_backward_data(conv, dy, w, dx);
}

void conv2d_backward_weights(Engine& engine, const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) {
  const Check check(engine, "conv2d_backward_weights");
  const DType values = check.values("x", x);
  check.typed("dy", dy, values);
  check.typed("dw", dw, parameter_type(values));
  check_conv(check, conv, {"x", x}, {"dw", dw}, {"dy", dy});
  engine.backend().conv2d_backward_weights(conv, x, dy, dw);
}

namespace {

// Shape of the pooled (N,Y,X,C), with Y and X k times smaller, rounded down. most: windows' largest side.
Shape pooled(const Check& check, std::size_t k, std::string_view name, const Tensor& large, std::size_t most = 15) {
  check.axes(name, large, 4);
  const Shape& shape = large.shape();
  if (k == 0 || k > most || shape[1] < k || shape[2] < k) {
    check.refuse("{}: {}: windows of {} x {} do not fit; expected 1 to {}, at most either side", name, to_text(large), k, k,
                 most);
  }
  return shape.with(1, shape[1] / k).with(2, shape[2] / k);
}

// The same for whole windows alone, whose places nobody has to note.
Shape divided(const Check& check, std::size_t k, std::string_view name, const Tensor& large) {
  const Shape small = pooled(check, k, name, large, 4096);
  if (large.shape()[1] % k != 0 || large.shape()[2] % k != 0) {
    check.refuse("{}: {}: expected sides that are multiples of {}", name, to_text(large), k);
  }
  return small;
}

}  // namespace

void max_pool(Engine& engine, std::size_t k, const Tensor& x, Tensor& y, Tensor& which) {
  const Check check(engine, "max_pool");
  const DType values = check.values("x", x);
  const Shape small = pooled(check, k, "x", x);
  check.is("y", y, values, small);
  check.is("which", which, DType::u8, small);
  engine.backend().max_pool(k, x, y, which);
}

void max_pool_backward(Engine& engine, std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) {
  const Check check(engine, "max_pool_backward");
  const DType values = check.values("dx", dx);
  const Shape small = pooled(check, k, "dx", dx);
  check.is("dy", dy, values, small);
  check.is("which", which, DType::u8, small);
  engine.backend().max_pool_backward(k, dy, which, dx);
}

void upsample(Engine& engine, std::size_t k, const Tensor& x, Tensor& y) {
  const Check check(engine, "upsample");
  const DType values = check.values("y", y);
  check.is("x", x, values, divided(check, k, "y", y));
  engine.backend().upsample(k, x, y);
}

void upsample_backward(Engine& engine, std::size_t k, const Tensor& dy, Tensor& dx) {
  const Check check(engine, "upsample_backward");
  const DType values = check.values("dy", dy);
  check.is("dx", dx, values, divided(check, k, "dy", dy));
  engine.backend().upsample_backward(k, dy, dx);
}

}  // namespace bitloom::nn
