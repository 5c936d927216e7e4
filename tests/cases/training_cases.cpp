#include <fmt/format.h>

#include "tests/cases/run.h"

namespace bitloom::test {
namespace {

struct CrossEntropy {
  std::size_t rows, columns, classes;
  double size_of_logits = 2;
  bool counts_all = false;  // else some targets are -1
  bool is_large = false;
  bool rounds = false;  // logits of type P, dlogits of V
  double smoothing = 0;
};

OpCase cross_entropy_case(const CrossEntropy& p) {
  constexpr double scale = 0.125;
  const nn::Shape shape = {p.rows, p.columns};
  OpCase c;
  c.ops = {"cross_entropy"};
  c.name = fmt::format("{}, {} classes{}, logits of {}", to_text(shape), p.classes, p.counts_all ? ", all count" : "",
                       p.size_of_logits);
  if (p.rounds) c.name += ", gradients rounded";
  if (p.smoothing != 0) c.name += fmt::format(", smoothing {}", p.smoothing);
  Slot logits = p.rounds ? parameters("logits", shape, 1, p.size_of_logits) : values("logits", shape, 1, p.size_of_logits);
  // Columns after the classes would drown them.
  for (std::size_t i = 0; i < logits.numbers.size(); ++i) {
    if (i % p.columns >= p.classes) logits.numbers[i] = 1000;
  }
  c.inputs = {
      logits,
      {"targets", Kind::i32, {p.rows}, whole_numbers(p.rows, 2, p.counts_all ? 0 : -1, static_cast<int>(p.classes) - 1)}};
  c.outputs = {overwritten("loss", {p.rows}, Kind::parameters)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::cross_entropy(engine, t["logits"], t["targets"], p.classes, scale, t["loss"], nullptr, p.smoothing);
  };
  c.upstream = {{"dloss", Kind::parameters, {p.rows}, std::vector<double>(p.rows, scale)}};
  c.gradients = {overwritten("dlogits", shape)};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::Tensor loss = engine.empty({p.rows}, t["loss"].dtype(), nn::Use::workspace);
    nn::cross_entropy(engine, t["logits"], t["targets"], p.classes, scale, loss, &t["dlogits"], p.smoothing);
  };
  if (!p.rounds) c.backward_in_place = {{"dlogits", "logits"}};
  c.is_large = p.is_large;
  return c;
}

// Logits of two processes, which divide the classes: of the second's columns some may be padding.
struct SlicedCrossEntropy {
  std::size_t rows, first_columns, second_columns, classes;
  bool is_large = false;
  bool rounds = false;
};

// Element by element: f(a, b).
template <typename F>
nn::Tensor combined(nn::Engine& engine, const nn::Tensor& a, const nn::Tensor& b, F f) {
  std::vector<double> numbers = to_numbers(engine, a);
  const std::vector<double> others = to_numbers(engine, b);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = f(numbers[i], others[i]);
  return to_tensor(engine, numbers, a.shape(), a.dtype());
}

nn::Tensor largest_of(nn::Engine& engine, Tensors& t) {
  return combined(engine, t["maxima_a"], t["maxima_b"], [](double a, double b) { return std::max(a, b); });
}
nn::Tensor sum_of_terms(nn::Engine& engine, Tensors& t) {
  return combined(engine, t["terms_a"], t["terms_b"], [](double a, double b) { return a + b; });
}

OpCase sliced_cross_entropy_case(const SlicedCrossEntropy& p) {
  constexpr double scale = 0.125;
  const nn::VocabularySlice a{0, p.classes};
  const nn::VocabularySlice b{p.first_columns, p.classes};
  OpCase c;
  c.ops = {"cross_entropy_maxima", "cross_entropy_terms", "cross_entropy_of_terms"};
  c.name = fmt::format("{} rows of {} + {} columns, {} classes{}", p.rows, p.first_columns, p.second_columns, p.classes,
                       p.rounds ? ", gradients rounded" : "");
  const auto logits = [&](const char* name, std::size_t columns, const nn::VocabularySlice& slice, std::uint64_t seed) {
    const nn::Shape shape = {p.rows, columns};
    Slot slot = p.rounds ? parameters(name, shape, seed, 2) : values(name, shape, seed, 2);
    for (std::size_t i = 0; i < slot.numbers.size(); ++i) {
      if (i % columns >= slice.count(columns)) slot.numbers[i] = 1000;
    }
    return slot;
  };
  c.inputs = {logits("logits_a", p.first_columns, a, 1),
              logits("logits_b", p.second_columns, b, 2),
              {"targets", Kind::i32, {p.rows}, whole_numbers(p.rows, 3, -1, static_cast<int>(p.classes) - 1)}};
  for (const char* name : {"maxima_a", "maxima_b", "loss"}) c.outputs.push_back(overwritten(name, {p.rows}, Kind::parameters));
  for (const char* name : {"terms_a", "terms_b"}) c.outputs.push_back(overwritten(name, {2, p.rows}, Kind::parameters));
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::cross_entropy_maxima(engine, t["logits_a"], a, t["maxima_a"]);
    nn::cross_entropy_maxima(engine, t["logits_b"], b, t["maxima_b"]);
    const nn::Tensor maxima = largest_of(engine, t);
    nn::cross_entropy_terms(engine, t["logits_a"], t["targets"], a, maxima, t["terms_a"]);
    nn::cross_entropy_terms(engine, t["logits_b"], t["targets"], b, maxima, t["terms_b"]);
    nn::cross_entropy_of_terms(engine, t["logits_a"], t["targets"], a, maxima, sum_of_terms(engine, t), scale, t["loss"],
                               nullptr);
  };
  c.upstream = {{"dloss", Kind::parameters, {p.rows}, std::vector<double>(p.rows, scale)}};
  c.gradients = {overwritten("dlogits_a", {p.rows, p.first_columns}), overwritten("dlogits_b", {p.rows, p.second_columns})};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    const nn::Tensor maxima = largest_of(engine, t);
    const nn::Tensor terms = sum_of_terms(engine, t);
    nn::Tensor loss = engine.empty({p.rows}, t["loss"].dtype(), nn::Use::workspace);
    nn::cross_entropy_of_terms(engine, t["logits_a"], t["targets"], a, maxima, terms, scale, loss, &t["dlogits_a"]);
    nn::cross_entropy_of_terms(engine, t["logits_b"], t["targets"], b, maxima, terms, scale, loss, &t["dlogits_b"]);
  };
  if (!p.rounds) c.backward_in_place = {{"dlogits_a", "logits_a"}, {"dlogits_b", "logits_b"}};
  c.is_large = p.is_large;
  return c;
}

// Steps 1 to 10 with gradients that change, of two tensors of which one does not decay and one has a copy.
OpCase adamw_case(std::size_t n, std::size_t other, bool is_large = false, double variance_limit = 0) {
  OpCase c;
  c.ops = {"adamw"};
  c.name = fmt::format("{} and {} elements, variance limit {}", n, other, variance_limit);
  c.inputs = {parameters("gradient", {n}, 1), parameters("other_gradient", {other}, 2)};
  c.outputs = {parameters("value", {n}, 3),
               parameters("mean", {n}, 4, 0.1),
               parameters("variance", {n}, 5),
               parameters("other_value", {other}, 6),
               parameters("other_mean", {other}, 7, 0),
               parameters("other_variance", {other}, 8, 0),
               overwritten("copy", {n})};
  for (double& v : c.outputs[2].numbers) v *= v;
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::AdamWStep step = {
        .rate = 0.01, .beta1 = 0.9, .beta2 = 0.96, .epsilon = 1e-8, .decay = 0.045, .variance_limit = variance_limit};
    for (step.step = 1; step.step <= 10; ++step.step) {
      step.gradient_scale = step.step % 3 == 0 ? -0.5 : 0.25;
      const std::vector<nn::AdamWTensors> tensors = {
          {t["value"], t["gradient"], t["mean"], t["variance"], t["copy"], true},
          {t["other_value"], t["other_gradient"], t["other_mean"], t["other_variance"], {}, false}};
      nn::adamw(engine, tensors, step);
    }
  };
  c.is_large = is_large;
  return c;
}

OpCase sum_of_squares_case(const std::vector<std::size_t>& sizes, double size_of_numbers, bool is_large = false) {
  OpCase c;
  c.ops = {"sum_of_squares", "sums_of_squares"};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    c.name += fmt::format("{}{}", i == 0 ? "" : " + ", sizes[i]);
    Slot slot = values(fmt::format("x{}", i), {sizes[i]}, i, size_of_numbers);
    if (i % 2 == 1) slot.kind = Kind::parameters;
    c.inputs.push_back(slot);
  }
  c.outputs = {overwritten("sum", {1}, Kind::f64)};
  c.forward = [n = sizes.size()](nn::Engine& engine, Tensors& t) {
    std::vector<nn::Tensor> tensors;
    for (std::size_t i = 0; i < n; ++i) tensors.push_back(t[fmt::format("x{}", i)]);
    const double sum = nn::sum_of_squares(engine, tensors);
    engine.write(t["sum"], std::as_bytes(std::span(&sum, 1)));
  };
  c.limit = 1e-6;  // double precision, whatever is summed
  c.is_large = is_large;
  return c;
}

}  // namespace

std::vector<OpCase> loss_cases() {
  std::vector<OpCase> cases;
  for (const std::size_t columns : odd_sizes) {
    cases.push_back(cross_entropy_case({7, columns, columns}));
    cases.push_back(cross_entropy_case({1, columns, columns, 2, true}));
    if (columns > 5) cases.push_back(cross_entropy_case({5, columns, columns - 5}));
  }
  for (const double smoothing : {0.2, 1.0}) {
    cases.push_back(cross_entropy_case({7, 33, 30, 2, false, false, false, smoothing}));
    cases.push_back(cross_entropy_case({5, 10, 10, 6, true, false, true, smoothing}));
  }
  cases.push_back(cross_entropy_case({5, 7, 1}));
  cases.push_back(cross_entropy_case({0, 7, 7}));
  cases.push_back(cross_entropy_case({9, 33, 30, 60}));  // all but sure of one class, often the wrong one
  cases.push_back(cross_entropy_case({301, 129, 127, 2, false, true}));
  cases.push_back(cross_entropy_case({5, 64, 57, 2, false, true}));
  cases.push_back(cross_entropy_case({3, 4101, 4097, 2, true, true}));
  cases.push_back(cross_entropy_case({3, 8704, 8700, 2, true, true}));
  for (const std::size_t columns : {1U, 33U, 127U, 4101U}) {
    cases.push_back(cross_entropy_case({5, columns, columns, 2, false, columns > 127, true}));
  }
  for (const std::size_t columns : odd_sizes) {
    cases.push_back(sliced_cross_entropy_case({7, columns, columns + 1, 2 * columns + 1}));
    if (columns > 3) cases.push_back(sliced_cross_entropy_case({5, columns, columns, 2 * columns - 3}));
  }
  cases.push_back(sliced_cross_entropy_case({5, 4, 3, 4}));  // of padding alone
  cases.push_back(sliced_cross_entropy_case({5, 4, 3, 2}));
  cases.push_back(sliced_cross_entropy_case({5, 4, 0, 4}));
  cases.push_back(sliced_cross_entropy_case({0, 4, 3, 7}));
  for (const bool rounds : {false, true}) {
    cases.push_back(sliced_cross_entropy_case({301, 64, 33, 90, true, rounds}));
    cases.push_back(sliced_cross_entropy_case({3, 4101, 4100, 8200, true, rounds}));
  }
  return cases;
}

std::vector<OpCase> optimizer_cases() {
  std::vector<OpCase> cases;
  for (const std::size_t n : odd_sizes) cases.push_back(adamw_case(n, 5));
  cases.push_back(adamw_case(0, 1));
  cases.push_back(adamw_case(70001, 3, true));
  cases.push_back(adamw_case(65, 33, false, 0.4));
  for (const std::size_t n : odd_sizes) cases.push_back(sum_of_squares_case({n}, 1));
  cases.push_back(sum_of_squares_case({}, 1));
  cases.push_back(sum_of_squares_case({0}, 1));
  cases.push_back(sum_of_squares_case({33, 7, 0, 65}, 1e-4));
  cases.push_back(sum_of_squares_case({100001, 33}, 100, true));
  return cases;
}

OpCase random_loss_case(Draw& draw) {
  if (draw.any_of({0, 1, 2}) == 0) {
    const std::size_t first = draw.size(1, 3000);
    const std::size_t second = draw.size(1, 3000);
    return sliced_cross_entropy_case({draw.size(1, 60), first, second, first + draw.size(1, second), true, draw.coin()});
  }
  const std::size_t columns = draw.size(2, 6000);
  const std::size_t classes = columns - (draw.coin() ? draw.size(1, columns - 1) : 0);
  return cross_entropy_case({draw.size(1, 60), columns, classes, draw.any_of({2.0, 6.0}), draw.coin()});
}
OpCase random_optimizer_case(Draw& draw) {
  if (draw.coin()) return adamw_case(draw.size(1, 5000), draw.size(1, 300), false, draw.any_of({0.0, 0.3}));
  return sum_of_squares_case({draw.size(1, 20000), draw.size(1, 500), draw.size(1, 30)}, 1);
}

}  // namespace bitloom::test
