#include <fmt/format.h>

#include <array>

#include "tests/cases/case.h"

namespace bitloom::test {
namespace {

struct Convolution {
  nn::Shape x;  // (N,Y,X,I)
  nn::Shape w;  // (O,I,KY,KX)
  nn::Conv2d conv = {};
  bool has_bias = true;
  bool is_large = false;
};

OpCase conv_case(const Convolution& p) {
  const auto length = [&](std::size_t axis) { return (p.x[axis] + 2 * p.conv.padding - p.w[axis + 1]) / p.conv.stride + 1; };
  const nn::Shape y = {p.x[0], length(1), length(2), p.w[0]};
  OpCase c;
  c.ops = {"conv2d", "conv2d_backward_data", "conv2d_backward_weights", "add_row_sums"};
  c.name = fmt::format("{} by {}, stride {}, padding {}{}", to_text(p.x), to_text(p.w), p.conv.stride, p.conv.padding,
                       p.has_bias ? "" : ", no bias");
  c.inputs = {values("x", p.x, 1), values("w", p.w, 2)};
  if (p.has_bias) c.inputs.push_back(parameters("bias", {p.w[0]}, 3));
  c.outputs = {overwritten("y", y)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::conv2d(engine, p.conv, t["x"], t["w"], p.has_bias ? t["bias"] : nn::Tensor(), t["y"]);
  };
  c.upstream = {values("dy", y, 4)};
  c.gradients = {overwritten("dx", p.x), added_to("dw", p.w, 5)};
  if (p.has_bias) c.gradients.push_back(added_to("dbias", {p.w[0]}, 6));
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::conv2d_backward_data(engine, p.conv, t["dy"], t["w"], t["dx"]);
    nn::conv2d_backward_weights(engine, p.conv, t["x"], t["dy"], t["dw"]);
    if (p.has_bias) nn::add_row_sums(engine, t["dy"], t["dbias"]);
  };
  c.is_large = p.is_large;
  return c;
}

// Numbers that differ by 1/16 at least, in any order, so that a small step changes no maximum; or few different ones, many of
// which are equal.
// rest: rows and columns of pixels that belong to no window.
OpCase max_pool_case(std::size_t k, const nn::Shape& y, bool has_ties, bool is_large = false,
                     std::array<std::size_t, 2> rest = {0, 0}) {
  const nn::Shape x = {y[0], y[1] * k + rest[0], y[2] * k + rest[1], y[3]};
  std::vector<double> numbers(x.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i) / 16 - 8;
  shuffle(numbers.data(), numbers.size(), Random(1, Stream::test));
  if (has_ties) numbers = whole_numbers(x.size(), 1, -2, 1);
  OpCase c;
  c.ops = {"max_pool", "max_pool_backward"};
  c.name = fmt::format("{} to {}{}", to_text(x), to_text(y), has_ties ? ", ties" : "");
  c.inputs = {{"x", Kind::values, x, std::move(numbers)}};
  c.outputs = {overwritten("y", y), overwritten("which", y, Kind::u8)};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::max_pool(engine, k, t["x"], t["y"], t["which"]); };
  c.upstream = {values("dy", y, 2)};
  c.gradients = {overwritten("dx", x)};
  c.backward = [=](nn::Engine& engine, Tensors& t) { nn::max_pool_backward(engine, k, t["dy"], t["which"], t["dx"]); };
  c.is_differentiable = !has_ties;
  c.is_large = is_large;
  return c;
}

OpCase upsample_case(std::size_t k, const nn::Shape& x, bool is_large = false) {
  const nn::Shape y = {x[0], x[1] * k, x[2] * k, x[3]};
  OpCase c;
  c.ops = {"upsample", "upsample_backward"};
  c.name = fmt::format("{} to {}", to_text(x), to_text(y));
  c.inputs = {values("x", x, 1)};
  c.outputs = {overwritten("y", y)};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::upsample(engine, k, t["x"], t["y"]); };
  c.upstream = {values("dy", y, 2)};
  c.gradients = {overwritten("dx", x)};
  c.backward = [=](nn::Engine& engine, Tensors& t) { nn::upsample_backward(engine, k, t["dy"], t["dx"]); };
  c.is_large = is_large;
  return c;
}

}  // namespace

std::vector<OpCase> conv_cases() {
  std::vector<OpCase> cases;
  cases.push_back(conv_case({{1, 1, 1, 1}, {1, 1, 1, 1}}));
  cases.push_back(conv_case({{2, 5, 7, 3}, {7, 3, 1, 1}}));
  cases.push_back(conv_case({{2, 5, 7, 3}, {7, 3, 1, 1}, {.stride = 2}}));
  cases.push_back(conv_case({{1, 3, 4, 2}, {3, 2, 1, 1}, {.padding = 1}}));  // the border is the bias alone
  for (const std::size_t stride : {1U, 2U, 3U}) {
    for (const std::size_t padding : {0U, 1U, 2U}) {
      cases.push_back(conv_case({{2, 7, 6, 3}, {5, 3, 3, 3}, {stride, padding}, stride != 2}));
    }
  }
  cases.push_back(conv_case({{1, 9, 8, 1}, {33, 1, 7, 7}, {.padding = 3}}));
  cases.push_back(conv_case({{3, 6, 5, 33}, {1, 33, 3, 3}, {.padding = 1}, false}));
  cases.push_back(conv_case({{1, 5, 9, 3}, {2, 3, 2, 5}, {.stride = 2, .padding = 1}}));  // not square
  cases.push_back(conv_case({{2, 3, 3, 7}, {31, 7, 3, 3}}));                              // one pixel
  cases.push_back(conv_case({{1, 4, 4, 16}, {17, 16, 4, 4}, {.stride = 2, .padding = 1}}));
  // Which kernel oneDNN takes for it depends on the number of threads.
  cases.push_back(conv_case({{1, 7, 18, 16}, {16, 16, 4, 1}, {.stride = 3, .padding = 1}, false}));
  cases.push_back(conv_case({{0, 5, 5, 3}, {4, 3, 3, 3}, {.padding = 1}}));
  // Weight gradients by shifted products, where there is AMX; tests/nn/test_conv_weights.cpp has larger ones.
  cases.push_back(conv_case({{3, 3, 5, 128}, {130, 128, 3, 3}, {.padding = 1}, true, true}));
  cases.push_back(conv_case({{2, 3, 2, 129}, {128, 129, 5, 5}, {.padding = 2}, false, true}));
  cases.push_back(conv_case({{3, 17, 15, 9}, {31, 9, 3, 3}, {.padding = 1}, true, true}));
  cases.push_back(conv_case({{2, 19, 21, 3}, {13, 3, 7, 7}, {.stride = 2, .padding = 3}, true, true}));
  return cases;
}

std::vector<OpCase> pool_cases() {
  std::vector<OpCase> cases;
  for (const std::size_t k : {1U, 2U, 3U}) {
    for (const std::size_t channels : {1U, 7U, 33U}) {
      cases.push_back(max_pool_case(k, {2, 3, 5, channels}, false));
      cases.push_back(max_pool_case(k, {1, 3, 2, channels}, true));
      cases.push_back(upsample_case(k, {2, 3, 5, channels}));
    }
  }
  cases.push_back(max_pool_case(15, {1, 2, 1, 3}, true));
  for (const std::array<std::size_t, 2> rest : {std::array<std::size_t, 2>{1, 1}, {2, 0}, {0, 2}}) {
    cases.push_back(max_pool_case(3, {2, 3, 5, 7}, false, false, rest));
    cases.push_back(max_pool_case(3, {2, 1, 1, 33}, true, false, rest));
  }
  cases.push_back(max_pool_case(2, {5, 15, 15, 24}, true, true, {1, 1}));
  cases.push_back(max_pool_case(2, {0, 3, 5, 7}, false));
  cases.push_back(max_pool_case(2, {5, 16, 15, 65}, true, true));
  for (const std::size_t k : {15U, 16U, 17U, 31U}) cases.push_back(upsample_case(k, {2, 1, 2, 3}));
  cases.push_back(upsample_case(2, {0, 3, 5, 7}));
  cases.push_back(upsample_case(2, {5, 16, 15, 65}, true));
  return cases;
}

OpCase random_conv_case(Draw& draw) {
  const nn::Shape w = {draw.size(1, 40), draw.size(1, 40), draw.size(1, 5), draw.size(1, 5)};
  const nn::Conv2d conv = {.stride = draw.any_of({1UL, 1UL, 2UL, 3UL}), .padding = draw.any_of({0UL, 1UL, 2UL})};
  const nn::Shape x = {draw.size(1, 4), draw.size(5, 20), draw.size(5, 20), w[1]};
  return conv_case({x, w, conv, draw.coin()});
}
OpCase random_pool_case(Draw& draw) {
  const nn::Shape shape = {draw.size(1, 4), draw.size(1, 9), draw.size(1, 9), draw.size(1, 100)};
  const std::size_t k = draw.size(1, 4);
  if (!draw.coin()) return upsample_case(k, shape);
  return max_pool_case(k, shape, draw.coin(), false, {draw.size(0, k - 1), draw.size(0, k - 1)});
}

}  // namespace bitloom::test
