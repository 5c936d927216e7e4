#include <fmt/format.h>

#include "tests/cases/case.h"

namespace bitloom::test {
namespace {

OpCase layer_norm_case(const nn::Shape& shape, bool accumulate = false, double mean = 0, bool is_large = false) {
  constexpr double epsilon = 1e-5;
  const nn::Shape columns = {shape.back()};
  const nn::Shape rows = {shape.rows()};
  OpCase c;
  c.ops = {"layer_norm", "layer_norm_backward"};
  c.name = fmt::format("{}{}{}", to_text(shape), accumulate ? ", accumulated" : "", mean != 0 ? ", far from 0" : "");
  c.inputs = {values("x", shape, 1, 1, mean), parameters("gain", columns, 2, 0.3, 1), parameters("bias", columns, 3)};
  c.outputs = {overwritten("y", shape), overwritten("mean", rows, Kind::parameters),
               overwritten("rstd", rows, Kind::parameters)};
  c.forward = [](nn::Engine& engine, Tensors& t) {
    nn::layer_norm(engine, t["x"], t["gain"], t["bias"], epsilon, t["y"], t["mean"], t["rstd"]);
  };
  c.upstream = {values("dy", shape, 4)};
  c.gradients = {accumulate ? added_to("dx", shape, 5, Kind::values) : overwritten("dx", shape), added_to("dgain", columns, 6),
                 added_to("dbias", columns, 7)};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::layer_norm_backward(engine, t["dy"], t["x"], t["gain"], t["mean"], t["rstd"], t["dx"], t["dgain"], t["dbias"],
                            accumulate);
  };
  c.is_large = is_large;
  return c;
}

OpCase batch_norm_case(const nn::Shape& shape, double mean = 0, bool is_large = false) {
  constexpr double epsilon = 1e-3;
  const nn::Shape columns = {shape.back()};
  OpCase c;
  c.ops = {"batch_norm", "batch_norm_backward"};
  c.name = fmt::format("{}{}", to_text(shape), mean != 0 ? ", far from 0" : "");
  c.inputs = {values("x", shape, 1, 1, mean), parameters("gain", columns, 2, 0.3, 1), parameters("bias", columns, 3)};
  c.outputs = {overwritten("y", shape), overwritten("mean", columns, Kind::parameters),
               overwritten("variance", columns, Kind::parameters)};
  c.forward = [](nn::Engine& engine, Tensors& t) {
    nn::batch_norm(engine, t["x"], t["gain"], t["bias"], epsilon, t["y"], t["mean"], t["variance"]);
  };
  c.upstream = {values("dy", shape, 4)};
  c.gradients = {overwritten("dx", shape), added_to("dgain", columns, 5), added_to("dbias", columns, 6)};
  c.backward = [](nn::Engine& engine, Tensors& t) {
    nn::batch_norm_backward(engine, t["dy"], t["x"], t["gain"], t["mean"], t["variance"], epsilon, t["dx"], t["dgain"],
                            t["dbias"]);
  };
  c.is_large = is_large;
  return c;
}

OpCase batch_norm_inference_case(const nn::Shape& shape) {
  const nn::Shape columns = {shape.back()};
  OpCase c;
  c.ops = {"batch_norm_inference"};
  c.name = to_text(shape);
  Slot variance = parameters("variance", columns, 5);
  for (double& v : variance.numbers) v *= v;
  c.inputs = {values("x", shape, 1), parameters("gain", columns, 2, 0.3, 1), parameters("bias", columns, 3),
              parameters("mean", columns, 4), variance};
  c.outputs = {overwritten("y", shape)};
  c.forward = [](nn::Engine& engine, Tensors& t) {
    nn::batch_norm_inference(engine, t["x"], t["gain"], t["bias"], t["mean"], t["variance"], 1e-3, t["y"]);
  };
  return c;
}

OpCase softmax_case(const nn::Shape& shape, double scale, double mean, bool is_large = false) {
  OpCase c;
  c.ops = {"softmax", "softmax_backward"};
  c.name = fmt::format("{} of {} +- {}", to_text(shape), mean, scale);
  c.inputs = {values("x", shape, 1, scale, mean)};
  c.outputs = {overwritten("y", shape)};
  c.forward = [](nn::Engine& engine, Tensors& t) { nn::softmax(engine, t["x"], t["y"]); };
  c.upstream = {values("dy", shape, 2)};
  c.gradients = {overwritten("dx", shape)};
  c.backward = [](nn::Engine& engine, Tensors& t) { nn::softmax_backward(engine, t["y"], t["dy"], t["dx"]); };
  c.forward_in_place = {{"y", "x"}};
  c.backward_in_place = {{"dx", "dy"}};
  c.is_large = is_large;
  return c;
}

}  // namespace

std::vector<OpCase> norm_cases() {
  std::vector<OpCase> cases;
  for (const std::size_t columns : odd_sizes) {
    cases.push_back(layer_norm_case({31, columns}, false));
    cases.push_back(layer_norm_case({1, columns}, true));
    cases.push_back(batch_norm_case({columns < 3 ? 3 : columns, 7}));
    cases.push_back(batch_norm_case({5, columns}));
    cases.push_back(batch_norm_inference_case({3, columns}));
  }
  cases.push_back(layer_norm_case({2, 3, 33}, true));
  cases.push_back(layer_norm_case({9}));
  cases.push_back(layer_norm_case({0, 7}));
  cases.push_back(layer_norm_case({7, 33}, false, 100));  // the mean of squares minus the square of the mean has no digits left
  cases.push_back(layer_norm_case({301, 129}, false, 0, true));
  // Rows that vectors divide, and rows so long that a GPU gives them to more threads or reads them again.
  for (const std::size_t columns : {64U, 264U, 768U, 1501U, 4096U, 8192U, 8203U}) {
    cases.push_back(layer_norm_case({5, columns}, columns % 3 == 0, 3, true));
  }
  cases.push_back(batch_norm_case({3, 5, 7, 9}));
  cases.push_back(batch_norm_case({65, 7}, 100));
  cases.push_back(batch_norm_case({5, 17, 19, 33}, 0, true));
  cases.push_back(batch_norm_case({3, 7, 11, 64}, 1, true));
  cases.push_back(batch_norm_case({4099, 3}, 0, true));
  cases.push_back(batch_norm_case({33, 520}, 0, true));
  cases.push_back(batch_norm_inference_case({1, 7}));
  cases.push_back(batch_norm_inference_case({0, 7}));
  cases.push_back(batch_norm_inference_case({3, 5, 7, 9}));
  cases.push_back(batch_norm_inference_case({3, 5, 7, 16}));
  return cases;
}

std::vector<OpCase> softmax_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](const nn::Shape& shape, double scale, double mean, bool is_large) {
    cases.push_back(softmax_case(shape, scale, mean, is_large));
  };
  for (const std::size_t columns : odd_sizes) {
    add({7, columns}, 1, 0, false);
    add({1, columns}, 1, 0, false);
  }
  add({2, 3, 5, 7}, 1, 0, false);
  add({9}, 1, 0, false);
  add({0, 7}, 1, 0, false);
  add({5, 0}, 1, 0, false);
  add({5, 33}, 1, 1000, false);  // exp overflows where the largest is not subtracted
  add({5, 33}, 30, -500, false);
  add({301, 129}, 2, 0, true);
  add({5, 64}, 2, 0, true);
  add({3, 1000}, 2, 0, true);
  add({2, 8203}, 2, 0, true);
  return cases;
}

OpCase random_norm_case(Draw& draw) {
  const double mean = draw.any_of({0.0, 3.0});
  switch (draw.any_of({0, 1, 2, 3})) {
    case 0: return batch_norm_case({draw.size(8, 400), draw.size(1, 200)}, mean);
    case 1: return batch_norm_inference_case({draw.size(1, 100), draw.size(1, 300)});
    default: return layer_norm_case({draw.size(1, 60), draw.size(3, 3000)}, draw.coin(), mean);
  }
}
OpCase random_softmax_case(Draw& draw) {
  const nn::Shape shape = {draw.size(1, 60), draw.size(8, 3000)};
  return softmax_case(shape, draw.any_of({1.0, 2.0}), draw.any_of({0.0, -100.0}));
}

}  // namespace bitloom::test
