// Ops that go element by element and row by row.
#include "bench/op_workloads.h"

#include <memory>

#include "core/random.h"
#include "nn/few_bit.h"

namespace bitloom::bench {
namespace {

using nn::Shape;
using nn::Use;
using Tensor = nn::Tensor;
using gpt2::hidden, gpt2::rows, gpt2::width;

// Repeated, since tens of millions of normal numbers take seconds to make. A prime, so that rows differ.
constexpr std::size_t table_size = 8191;

std::vector<float> make_table() {
  std::vector<float> table(table_size);
  Random random(3, Stream::test);
  for (float& x : table) x = static_cast<float>(random.normal());
  return table;
}

}  // namespace

Tensor constant(nn::Engine& engine, DType dtype, const Shape& shape, double value) {
  Tensor tensor = blank(engine, dtype, shape);
  fill(engine, tensor, value);
  return tensor;
}

Tensor blank(nn::Engine& engine, DType dtype, const Shape& shape) { return engine.empty(shape, dtype, Use::data); }

Tensor numbers(nn::Engine& engine, DType dtype, const Shape& shape, std::uint64_t seed, double deviation,
               std::size_t row_length) {
  static const std::vector<float> table = make_table();
  const std::size_t columns = shape.back();
  if (row_length == 0) row_length = columns;
  std::vector<float> values(shape.size());
  for (std::size_t row = 0; row * columns < values.size(); ++row) {
    std::size_t at = (1009 * seed + row * row_length) % table_size;
    for (std::size_t c = 0; c < columns; ++c) {
      values[row * columns + c] = static_cast<float>(deviation) * table[at];
      if (++at == table_size) at = 0;
    }
  }
  const Tensor tensor = engine.from<float>(values, shape, Use::data);
  if (dtype == DType::f32) return tensor;
  Tensor converted = blank(engine, dtype, shape);
  convert(engine, tensor, converted);
  return converted;
}

Tensor ids(nn::Engine& engine, std::size_t n, std::size_t limit, std::uint64_t seed) {
  std::vector<std::int32_t> values(n);
  Random random(seed, Stream::test);
  for (std::int32_t& id : values) id = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(limit)));
  return engine.from<std::int32_t>(values, {n}, Use::data);
}

namespace {

// y = f(x), dx = f'(x) dy of (1024,3072).
OpWorkload activation(const std::string& name, const char* function) {
  const auto make = [=](nn::Engine& engine, DType dtype, Extent) -> OpRun {
    const nn::Activation& f = nn::find_activation(function);
    const Tensor x = numbers(engine, dtype, {rows(), hidden}, 1);
    Tensor y = blank(engine, dtype, x.shape());
    return {[=, &engine, &f]() mutable { activate(engine, f, x, y); }, {y}};
  };
  return {name + ", forward", 0, 2.0 * rows() * hidden, 0, make};
}

OpWorkload activation_backward(const std::string& name, const char* function) {
  const auto make = [=](nn::Engine& engine, DType dtype, Extent) -> OpRun {
    const nn::Activation& f = nn::find_activation(function);
    const Tensor x = numbers(engine, dtype, {rows(), hidden}, 1), dy = numbers(engine, dtype, {rows(), hidden}, 2);
    Tensor dx = blank(engine, dtype, x.shape());
    return {[=, &engine, &f]() mutable { activate_backward(engine, f, x, dy, dx); }, {dx}};
  };
  return {name + ", backward", 0, 3.0 * rows() * hidden, 0, make};
}

constexpr unsigned few_bits = 3;

const nn::FewBitTable& gelu_table() {
  static const nn::FewBitTable table =
      nn::fit_few_bit(nn::few_bit_problem(nn::find_activation("gelu"), nn::uniform_weight(), -10, 10), few_bits);
  return table;
}

OpRun few_bit_gelu(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, {rows(), hidden}, 1);
  Tensor y = blank(engine, dtype, x.shape()), stash = blank(engine, DType::u8, {x.size() * few_bits / 8});
  const nn::Activation& gelu = nn::find_activation("gelu");
  return {[=, &engine, &gelu]() mutable { activate_few_bit(engine, gelu, gelu_table(), x, y, stash); }, {y, stash}};
}

OpRun few_bit_gelu_backward(nn::Engine& engine, DType dtype, Extent) {
  Tensor stash = few_bit_gelu(engine, dtype, Extent::whole).results[1];
  Tensor y = blank(engine, dtype, {rows(), hidden});
  activate_few_bit(engine, nn::find_activation("gelu"), gelu_table(), numbers(engine, dtype, {rows(), hidden}, 1), y, stash);
  const Tensor dy = numbers(engine, dtype, {rows(), hidden}, 2);
  Tensor dx = blank(engine, dtype, dy.shape());
  return {[=, &engine]() mutable { activate_few_bit_backward(engine, gelu_table(), stash, dy, dx); }, {dx}};
}

OpRun residual_add(nn::Engine& engine, DType dtype, Extent) {
  const Tensor a = numbers(engine, dtype, {rows(), width}, 1), b = numbers(engine, dtype, {rows(), width}, 2);
  Tensor y = blank(engine, dtype, a.shape());
  return {[=, &engine]() mutable { add(engine, a, b, y); }, {y}};
}

OpRun drop(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, {rows(), width}, 1);
  Tensor y = blank(engine, dtype, x.shape());
  return {[=, &engine]() mutable { dropout(engine, {0.1, 5, 6}, x, y); }, {y}};
}

// Number of parameters of a block of GPT-2, in shapes of its own.
constexpr std::size_t block_parameters = 12 * width * width + 13 * width;

OpRun adamw_step(nn::Engine& engine, DType dtype, Extent) {
  std::vector<nn::AdamWTensors> tensors;
  const std::vector<Shape> shapes = {{width, 3 * width}, {3 * width},     {width, width}, {width}, {width}, {width},
                                     {width, hidden},    {hidden, width}, {hidden},       {width}, {width}, {width}};
  std::vector<Tensor> results;
  std::uint64_t seed = 1;
  for (const Shape& shape : shapes) {
    nn::AdamWTensors each;
    each.value = numbers(engine, DType::f32, shape, ++seed, 0.02);
    each.gradient = numbers(engine, DType::f32, shape, ++seed, 1e-3);
    each.mean = numbers(engine, DType::f32, shape, ++seed, 1e-3);
    each.variance = constant(engine, DType::f32, shape, 1e-6);
    if (dtype != DType::f32) each.copy = blank(engine, dtype, shape);
    each.decays = shape.axes() > 1;
    for (const Tensor& result : {each.value, each.mean, each.variance}) results.push_back(result);
    tensors.push_back(std::move(each));
  }
  nn::AdamWStep step;
  step.rate = 1e-4;
  step.decay = 0.1;
  step.step = 100;
  return {[=, &engine] { adamw(engine, tensors, step); }, results};
}

OpRun gradient_norm(nn::Engine& engine, DType /*dtype*/, Extent) {
  const Tensor gradient = numbers(engine, DType::f32, {block_parameters}, 1);
  Tensor sum = blank(engine, DType::f32, {1});
  return {[=, &engine]() mutable { fill(engine, sum, sum_of_squares(engine, {&gradient, 1})); }, {sum}};
}

OpRun norm_of_rows(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, {rows(), width}, 1);
  const Tensor gain = numbers(engine, DType::f32, {width}, 3), bias = numbers(engine, DType::f32, {width}, 4);
  Tensor y = blank(engine, dtype, x.shape());
  Tensor mean = blank(engine, DType::f32, {rows()}), rstd = blank(engine, DType::f32, {rows()});
  return {[=, &engine]() mutable { layer_norm(engine, x, gain, bias, 1e-5, y, mean, rstd); }, {y, mean, rstd}};
}

OpRun norm_of_rows_backward(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, {rows(), width}, 1), dy = numbers(engine, dtype, {rows(), width}, 2);
  const Tensor gain = numbers(engine, DType::f32, {width}, 3), bias = constant(engine, DType::f32, {width}, 0);
  Tensor dx = blank(engine, dtype, x.shape());
  Tensor mean = blank(engine, DType::f32, {rows()}), rstd = blank(engine, DType::f32, {rows()});
  layer_norm(engine, x, gain, bias, 1e-5, dx, mean, rstd);
  Tensor dgain = constant(engine, DType::f32, {width}, 0), dbias = constant(engine, DType::f32, {width}, 0);
  return {[=, &engine]() mutable { layer_norm_backward(engine, dy, x, gain, mean, rstd, dx, dgain, dbias); },
          {dx, dgain, dbias}};
}

// As many rows as the heads of the sequences have queries.
std::size_t softmax_rows() { return gpt2::heads * rows(); }

OpRun softmax_of_rows(nn::Engine& engine, DType dtype, Extent) {
  const Tensor x = numbers(engine, dtype, {softmax_rows(), gpt2::tokens}, 1);
  Tensor y = blank(engine, dtype, x.shape());
  return {[=, &engine]() mutable { softmax(engine, x, y); }, {y}};
}

OpRun softmax_of_rows_backward(nn::Engine& engine, DType dtype, Extent) {
  Tensor y = numbers(engine, dtype, {softmax_rows(), gpt2::tokens}, 1);
  softmax(engine, y, y);
  const Tensor dy = numbers(engine, dtype, y.shape(), 2);
  Tensor dx = blank(engine, dtype, y.shape());
  return {[=, &engine]() mutable { softmax_backward(engine, y, dy, dx); }, {dx}};
}

OpRun loss_of_rows(nn::Engine& engine, DType dtype, Extent extent) {
  const std::size_t here = rows_of(extent, rows());
  const Tensor logits = numbers(engine, dtype, {here, gpt2::columns}, 1, 3), targets = ids(engine, here, gpt2::vocabulary, 2);
  Tensor dlogits = blank(engine, dtype, logits.shape()), loss = blank(engine, DType::f32, {here});
  return {[=, &engine]() mutable { cross_entropy(engine, logits, targets, gpt2::vocabulary, 1.0 / rows(), loss, &dlogits); },
          {loss, dlogits}};
}

OpRun bias_gradient(nn::Engine& engine, DType dtype, Extent) {
  const Tensor dy = numbers(engine, dtype, {rows(), hidden}, 1);
  Tensor sums = constant(engine, DType::f32, {hidden}, 0);
  return {[=, &engine]() mutable { add_row_sums(engine, dy, sums); }, {sums}};
}

OpRun embed(nn::Engine& engine, DType dtype, Extent) {
  const Tensor table = numbers(engine, dtype, {gpt2::vocabulary, width}, 1), tokens = ids(engine, rows(), gpt2::vocabulary, 2);
  Tensor y = blank(engine, dtype, {rows(), width});
  return {[=, &engine]() mutable { gather(engine, table, tokens, y); }, {y}};
}

OpRun embed_backward(nn::Engine& engine, DType dtype, Extent) {
  const Tensor dy = numbers(engine, dtype, {rows(), width}, 1), tokens = ids(engine, rows(), gpt2::vocabulary, 2);
  Tensor dtable = constant(engine, DType::f32, {gpt2::vocabulary, width}, 0);
  return {[=, &engine]() mutable { scatter_add(engine, dy, tokens, dtable); }, {dtable}};
}

}  // namespace

std::vector<OpWorkload> element_workloads() {
  const double few_bit_bytes = few_bits * rows() * hidden / 8.0;
  const auto adamw_bytes = 7.0 * 4 * block_parameters;
  return {activation("GELU", "gelu"),
          activation_backward("GELU", "gelu"),
          activation("GELU tanh", "gelu_tanh"),
          activation_backward("GELU tanh", "gelu_tanh"),
          {"GELU 3 bits, forward", 0, 2.0 * rows() * hidden, few_bit_bytes, few_bit_gelu},
          {"GELU 3 bits, backward", 0, 2.0 * rows() * hidden, few_bit_bytes, few_bit_gelu_backward},
          {"residual add", 0, 3.0 * rows() * width, 0, residual_add},
          {"dropout", 0, 2.0 * rows() * width, 0, drop},
          {"AdamW", 0, 0, adamw_bytes, adamw_step},
          {"gradient norm", 0, 0, 4.0 * block_parameters, gradient_norm}};
}

std::vector<OpWorkload> row_workloads() {
  const double row_values = rows() * width, softmax_values = softmax_rows() * gpt2::tokens;
  return {{"layer norm, forward", 0, 2 * row_values, 8.0 * rows(), norm_of_rows},
          {"layer norm, backward", 0, 3 * row_values, 8.0 * rows(), norm_of_rows_backward},
          {"softmax, forward", 0, 2 * softmax_values, 0, softmax_of_rows},
          {"softmax, backward", 0, 3 * softmax_values, 0, softmax_of_rows_backward},
          {"cross-entropy, both", 0, 2.0 * rows() * gpt2::columns, 0, loss_of_rows},
          {"bias gradient", 0, 1.0 * rows() * hidden, 0, bias_gradient},
          {"embedding, forward", 0, 2 * row_values, 4.0 * rows(), embed},
          {"embedding, backward", 0, row_values, 8 * row_values, embed_backward}};
}

}  // namespace bitloom::bench
