// Products of matrices, and attention.
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "bench/op_workloads.h"

namespace bitloom::bench {
namespace {

using gpt2::rows;
using nn::Tensor;

// Weights such that outputs are about as large as inputs.
double deviation_of(std::size_t inputs) { return 1 / std::sqrt(static_cast<double>(inputs)); }

enum class Fused { bias, bias_and_gelu };

// y (R,O) = x (R,I) w (I,O) + bias.
OpWorkload forward(std::size_t inputs, std::size_t outputs, Fused fused) {
  const auto make = [=](nn::Engine& engine, DType dtype, Extent extent) -> OpRun {
    const Tensor x = numbers(engine, dtype, {rows_of(extent, rows()), inputs}, 1);
    const Tensor w = numbers(engine, dtype, {inputs, outputs}, 2, deviation_of(inputs));
    nn::MatmulOptions options;
    options.bias = numbers(engine, DType::f32, {outputs}, 3);
    if (fused == Fused::bias_and_gelu) options.activation = &nn::find_activation("gelu");
    Tensor y = blank(engine, dtype, {x.shape()[0], outputs});
    return {[=, &engine]() mutable { matmul(engine, x, w, y, options); }, {y}};
  };
  const char* what = fused == Fused::bias ? "forward" : "forward, GELU";
  return {fmt::format("{}->{} {}", inputs, outputs, what), 2.0 * rows() * inputs * outputs, 0, 0, make};
}

// dx (R,I) = dy (R,O) w^T.
OpWorkload data(std::size_t inputs, std::size_t outputs) {
  const auto make = [=](nn::Engine& engine, DType dtype, Extent extent) -> OpRun {
    const Tensor dy = numbers(engine, dtype, {rows_of(extent, rows()), outputs}, 1);
    const Tensor w = numbers(engine, dtype, {inputs, outputs}, 2, deviation_of(outputs));
    nn::MatmulOptions options;
    options.transpose_b = true;
    Tensor dx = blank(engine, dtype, {dy.shape()[0], inputs});
    return {[=, &engine]() mutable { matmul(engine, dy, w, dx, options); }, {dx}};
  };
  return {fmt::format("{}->{} data", inputs, outputs), 2.0 * rows() * inputs * outputs, 0, 0, make};
}

// dw (I,O) += x^T (I,R) dy (R,O); of the slice the first inputs.
OpRun make_weights(nn::Engine& engine, DType dtype, Extent extent, std::size_t inputs, std::size_t outputs) {
  const std::size_t here = rows_of(extent, inputs);
  const Tensor x = numbers(engine, dtype, {rows(), here}, 1, deviation_of(rows()), inputs);
  const Tensor dy = numbers(engine, dtype, {rows(), outputs}, 2);
  nn::MatmulOptions options;
  options.transpose_a = options.accumulate = true;
  Tensor dw = constant(engine, DType::f32, {here, outputs}, 0);
  return {[=, &engine]() mutable { matmul(engine, x, dy, dw, options); }, {dw}};
}

OpWorkload weights(std::size_t inputs, std::size_t outputs) {
  const auto make = [=](nn::Engine& engine, DType dtype, Extent extent) {
    return make_weights(engine, dtype, extent, inputs, outputs);
  };
  return {fmt::format("{}->{} weights", inputs, outputs), 2.0 * rows() * inputs * outputs, 0, 0, make};
}

// The head shares the table of tokens (V,C): logits (R,V) = x (R,C) table^T.
OpRun logits_forward(nn::Engine& engine, DType dtype, Extent extent) {
  const Tensor x = numbers(engine, dtype, {rows_of(extent, rows()), gpt2::width}, 1);
  const Tensor table = numbers(engine, dtype, {gpt2::columns, gpt2::width}, 2, deviation_of(gpt2::width));
  nn::MatmulOptions options;
  options.transpose_b = true;
  Tensor logits = blank(engine, dtype, {x.shape()[0], gpt2::columns});
  return {[=, &engine]() mutable { matmul(engine, x, table, logits, options); }, {logits}};
}

OpRun logits_data(nn::Engine& engine, DType dtype, Extent extent) {
  const Tensor dlogits = numbers(engine, dtype, {rows_of(extent, rows()), gpt2::columns}, 1);
  const Tensor table = numbers(engine, dtype, {gpt2::columns, gpt2::width}, 2, deviation_of(gpt2::columns));
  Tensor dx = blank(engine, dtype, {dlogits.shape()[0], gpt2::width});
  return {[=, &engine]() mutable { matmul(engine, dlogits, table, dx); }, {dx}};
}

OpRun logits_weights(nn::Engine& engine, DType dtype, Extent extent) {
  return make_weights(engine, dtype, extent, gpt2::columns, gpt2::width);
}

struct Sequences {
  std::size_t count, tokens;
};

using Mask = std::shared_ptr<const nn::AttentionMask>;

// Attention of queries, keys and values in one tensor (B,T,3C), as the layer has them.
OpRun make_attention(nn::Engine& engine, DType dtype, Extent extent, std::size_t sequences, const Mask& mask, bool backward) {
  const std::size_t count = extent == Extent::slice ? 1 : sequences;
  constexpr std::size_t width = gpt2::width;
  const nn::AttentionShape shape = {gpt2::heads, gpt2::head_size, deviation_of(gpt2::head_size)};
  const Tensor qkv = numbers(engine, dtype, {count, mask->queries(), 3 * width}, 1);
  const Tensor out = blank(engine, dtype, {count, mask->queries(), width});
  Tensor lse = blank(engine, DType::f32, {count, gpt2::heads, mask->queries()});
  auto forward = [=, &engine]() mutable {
    attention(engine, shape, *mask, {}, {qkv, 0}, {qkv, width}, {qkv, 2 * width}, {out, 0}, lse);
  };
  if (!backward) return {forward, {out, lse}};
  const Tensor dout = numbers(engine, dtype, out.shape(), 2), dqkv = blank(engine, dtype, qkv.shape());
  const auto both = [=, &engine]() mutable {
    forward();
    attention_backward(engine, shape, *mask, {}, {qkv, 0}, {qkv, width}, {qkv, 2 * width}, {out, 0}, lse, {dout, 0}, {dqkv, 0},
                       {dqkv, width}, {dqkv, 2 * width});
  };
  return {both, {out, dqkv}};
}

// Two products forward; five backward, one of which forms the softmax again. Pairs that the mask shows count.
OpWorkload attention_workload(const std::string& name, std::size_t sequences, const Mask& mask, bool backward) {
  const double pairs = static_cast<double>(sequences) * static_cast<double>(mask->size());
  const auto make = [=](nn::Engine& engine, DType dtype, Extent extent) {
    return make_attention(engine, dtype, extent, sequences, mask, backward);
  };
  return {fmt::format("attention {}, {}", name, backward ? "both" : "forward"), 2.0 * (backward ? 7 : 2) * pairs * gpt2::width,
          0, 0, make};
}

struct NamedMask {
  std::string name;
  Mask mask;
};

// Masks of 256 text tokens and 32 x 32 image tokens (Ramesh et al. 2021); the causal one shows 819,840 pairs.
std::vector<NamedMask> text_to_image_masks() {
  using nn::AttentionMask;
  constexpr std::size_t text = 256, grid = 32, extent = 11;
  const auto shared = [](AttentionMask mask) { return std::make_shared<const AttentionMask>(std::move(mask)); };
  const AttentionMask column = AttentionMask::column(text, grid);
  // Columns one after the other, as the transformer computes such layers.
  const auto at = [](std::size_t i) { return i < text ? i : text + (i - text) % grid * grid + (i - text) / grid; };
  const AttentionMask turned(text + grid * grid, text + grid * grid,
                             [&](std::size_t q, std::size_t k) { return column.sees(at(q), at(k)); });
  return {{"256+32x32 causal", shared(AttentionMask::causal(text + grid * grid, text + grid * grid))},
          {"256+32x32 row", shared(AttentionMask::row(text, grid))},
          {"256+32x32 column", shared(column)},
          {"256+32x32 column by column", shared(turned)},
          {"256+32x32 convolutional", shared(AttentionMask::convolutional(text, grid, extent))}};
}

}  // namespace

std::vector<OpWorkload> matrix_workloads() {
  struct Layer {
    std::size_t inputs, outputs;
  };
  constexpr std::size_t width = gpt2::width;
  std::vector<OpWorkload> all;
  for (const Layer layer :
       {Layer{width, 3 * width}, Layer{width, width}, Layer{width, gpt2::hidden}, Layer{gpt2::hidden, width}}) {
    all.push_back(forward(layer.inputs, layer.outputs, Fused::bias));
    all.push_back(data(layer.inputs, layer.outputs));
    all.push_back(weights(layer.inputs, layer.outputs));
  }
  all.push_back(forward(width, gpt2::hidden, Fused::bias_and_gelu));
  const double flops = 2.0 * rows() * width * gpt2::columns;
  all.push_back({"logits forward", flops, 0, 0, logits_forward});
  all.push_back({"logits data", flops, 0, 0, logits_data});
  all.push_back({"logits weights", flops, 0, 0, logits_weights});
  return all;
}

std::vector<OpWorkload> attention_workloads() {
  struct Sequences {
    std::size_t count, tokens;
  };
  std::vector<OpWorkload> all;
  for (const auto& [count, tokens] : {Sequences{gpt2::sequences, gpt2::tokens}, Sequences{1, 1024}}) {
    const auto causal = std::make_shared<const nn::AttentionMask>(nn::AttentionMask::causal(tokens, tokens));
    for (const bool backward : {false, true}) {
      all.push_back(attention_workload(fmt::format("{}x{}", count, tokens), count, causal, backward));
    }
  }
  for (const auto& [name, mask] : text_to_image_masks()) all.push_back(attention_workload(name, 1, mask, true));
  return all;
}

}  // namespace bitloom::bench
