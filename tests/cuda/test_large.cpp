// Tensors of more than 2^31 elements, which overflow 32-bit indices: results of the last rows are those of these rows alone,
// bit for bit, since no op's order of sums depends on the number of rows before. The emulated GPU gets small ones.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/half.h"
#include "core/random.h"
#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

constexpr std::size_t last = 3;  // rows that are looked at

bool is_emulated() { return nn::describe_gpu(0).name == "emulated"; }

// Rows of `columns` that have a little more than 2^31 elements.
std::size_t many_rows(std::size_t columns) {
  const std::size_t elements = is_emulated() ? 40 * columns : (std::size_t{1} << 31U) + 5 * columns;
  return elements / columns + last;
}

// Zeros, but for the last rows.
nn::Tensor large(nn::Engine& engine, std::size_t rows, std::size_t columns, std::uint64_t seed) {
  nn::Tensor x = engine.zeros({rows, columns}, DType::bf16, nn::Use::data);
  std::vector<bf16> values(last * columns);
  Random random(seed, Stream::test);
  for (bf16& value : values) value = to_bf16(static_cast<float>(random.normal()));
  nn::Tensor end = x.slice(rows - last, rows);
  engine.write(end, std::as_bytes(std::span<const bf16>(values)));
  return x;
}

nn::Tensor end_of(const nn::Tensor& x) { return x.slice(x.shape()[0] - last, x.shape()[0]); }

template <typename T>
std::vector<float> numbers(nn::Engine& engine, const nn::Tensor& x) {
  std::vector<float> all;
  for (const T value : engine.to_host<T>(x)) {
    if constexpr (std::is_same_v<T, float>) {
      all.push_back(value);
    } else {
      all.push_back(to_float(value));
    }
  }
  return all;
}

// Whether two bf16 tensors are equal and not all 0.
bool are_same(nn::Engine& engine, const nn::Tensor& a, const nn::Tensor& b) {
  const std::vector<float> x = numbers<bf16>(engine, a);
  return x == numbers<bf16>(engine, b) && std::any_of(x.begin(), x.end(), [](float value) { return value != 0; });
}

}  // namespace

TEST_CASE("elements beyond 2^31", "[cuda][large]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::size_t columns = 1000, rows = many_rows(columns);
  const nn::Tensor x = large(engine, rows, columns, 1);
  nn::Tensor y = engine.empty(x.shape(), DType::bf16, nn::Use::data);
  nn::Tensor small = engine.empty({last, columns}, DType::bf16, nn::Use::data);
  const nn::Activation& gelu = nn::find_activation("gelu_tanh");
  nn::activate(engine, gelu, x, y);
  nn::activate(engine, gelu, end_of(x), small);
  CHECK(are_same(engine, end_of(y), small));
  nn::scale_add(engine, 0.5, x, 2, y);
  nn::scale_add(engine, 0.5, end_of(x), 2, small);
  CHECK(are_same(engine, end_of(y), small));
  nn::fill(engine, y, 3);
  for (const float value : numbers<bf16>(engine, end_of(y))) REQUIRE(value == 3);
  nn::dropout(engine, {0.5, 1, 2}, y, y);
  std::size_t dropped = 0;
  for (const float value : numbers<bf16>(engine, end_of(y))) dropped += value == 0 ? 1 : 0;
  CHECK(dropped > last * columns / 3);
  CHECK(dropped < last * columns * 2 / 3);
}

TEST_CASE("rows beyond 2^31 elements", "[cuda][large]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::size_t columns = 1024, rows = many_rows(columns);
  const nn::Tensor x = large(engine, rows, columns, 1);
  nn::Tensor y = engine.empty(x.shape(), DType::bf16, nn::Use::data);
  nn::Tensor small = engine.empty({last, columns}, DType::bf16, nn::Use::data);
  const auto parameter = [&](std::size_t n, double value) {
    nn::Tensor p = engine.empty({n}, DType::f32, nn::Use::data);
    nn::fill(engine, p, value);
    return p;
  };
  const nn::Tensor gain = parameter(columns, 1.5), bias = parameter(columns, 0.5);
  nn::Tensor mean = parameter(rows, 0), rstd = parameter(rows, 0), small_mean = parameter(last, 0),
             small_rstd = parameter(last, 0);
  nn::layer_norm(engine, x, gain, bias, 1e-5, y, mean, rstd);
  nn::layer_norm(engine, end_of(x), gain, bias, 1e-5, small, small_mean, small_rstd);
  CHECK(are_same(engine, end_of(y), small));
  nn::Tensor dgain = parameter(columns, 0), dbias = parameter(columns, 0);
  nn::Tensor small_dgain = parameter(columns, 0), small_dbias = parameter(columns, 0);
  nn::Tensor dx = engine.empty(x.shape(), DType::bf16, nn::Use::data),
             small_dx = engine.empty(small.shape(), DType::bf16, nn::Use::data);
  nn::layer_norm_backward(engine, x, x, gain, mean, rstd, dx, dgain, dbias);
  nn::layer_norm_backward(engine, end_of(x), end_of(x), gain, small_mean, small_rstd, small_dx, small_dgain, small_dbias);
  CHECK(are_same(engine, end_of(dx), small_dx));
  // All other rows are 0, but other blocks sum up these.
  CHECK(compare(engine.to_host<float>(dgain), engine.to_host<float>(small_dgain), 1e-5) == "");
  nn::softmax(engine, x, y);
  nn::softmax(engine, end_of(x), small);
  CHECK(are_same(engine, end_of(y), small));

  // A table of as many rows, of which the last are asked for.
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < last; ++i) ids.push_back(static_cast<std::int32_t>(rows - 1 - i));
  const nn::Tensor row_numbers = engine.from<std::int32_t>(ids, {last}, nn::Use::data);
  nn::gather(engine, x, row_numbers, small);
  const std::vector<float> gathered = numbers<bf16>(engine, small), end = numbers<bf16>(engine, end_of(x));
  for (std::size_t i = 0; i < last; ++i) {
    for (std::size_t c = 0; c < columns; ++c) REQUIRE(gathered[i * columns + c] == end[(last - 1 - i) * columns + c]);
  }
}

TEST_CASE("gradients of a table beyond 2^31 elements", "[cuda][large]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::size_t columns = 1024, rows = many_rows(columns);
  const nn::Tensor dout = large(engine, last, columns, 1);
  nn::Tensor table = engine.zeros({rows, columns}, DType::f32, nn::Use::data);
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < last; ++i) ids.push_back(static_cast<std::int32_t>(rows - last + i));
  nn::scatter_add(engine, dout, engine.from<std::int32_t>(ids, {last}, nn::Use::data), table);
  CHECK(numbers<float>(engine, end_of(table)) == numbers<bf16>(engine, dout));
}

TEST_CASE("logits beyond 2^31 elements, with a target that is none among the last", "[cuda][large]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::size_t columns = is_emulated() ? 1304 : 50304, classes = columns - 47, rows = many_rows(columns);
  nn::Tensor logits = large(engine, rows, columns, 1);
  nn::Tensor end = engine.empty({last, columns}, DType::bf16, nn::Use::data);
  nn::scale_add(engine, 1, end_of(logits), 0, end);
  std::vector<std::int32_t> targets(rows, 7);
  nn::Tensor loss = engine.zeros({rows}, DType::f32, nn::Use::data), end_loss = engine.zeros({last}, DType::f32, nn::Use::data);
  const nn::Tensor on_device = engine.from<std::int32_t>(targets, {rows}, nn::Use::data);
  nn::cross_entropy(engine, logits, on_device, classes, 1, loss, &logits);
  nn::cross_entropy(engine, end, on_device.slice(0, last), classes, 1, end_loss, &end);
  CHECK(numbers<float>(engine, end_of(loss)) == numbers<float>(engine, end_loss));
  CHECK(are_same(engine, end_of(logits), end));

  targets[rows - 1] = static_cast<std::int32_t>(classes);
  nn::cross_entropy(engine, logits, engine.from<std::int32_t>(targets, {rows}, nn::Use::data), classes, 1, loss, nullptr);
  std::string message;
  try {
    engine.synchronize();
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message == fmt::format("cross_entropy: targets[{}] is neither -1 nor a class", rows - 1));
}

TEST_CASE("attention of more than 2^31 numbers", "[cuda][large]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::size_t heads = 12, size = 64, width = heads * size, tokens = is_emulated() ? 64 : 1024;
  const std::size_t sequences = is_emulated() ? 3 : (std::size_t{1} << 31U) / (tokens * 3 * width) + 2;
  const nn::AttentionShape shape{heads, size, 0.125};
  const nn::AttentionMask mask = nn::AttentionMask::causal(tokens, tokens);
  // The last tokens of the last sequence are not 0.
  nn::Tensor x = large(engine, sequences * tokens, 3 * width, 1).reshaped({sequences, tokens, 3 * width});
  const auto run = [&](const nn::Tensor& qkv) {
    const std::size_t n = qkv.shape()[0];
    nn::Tensor out = engine.empty({n, tokens, width}, DType::bf16, nn::Use::data);
    nn::Tensor lse = engine.empty({n, heads, tokens}, DType::f32, nn::Use::data);
    nn::Tensor dx = engine.empty(qkv.shape(), DType::bf16, nn::Use::data);
    const auto part = [&](nn::Tensor& of, std::size_t i) { return nn::Heads{of, i * width}; };
    nn::Tensor q = qkv;
    nn::attention(engine, shape, mask, {}, part(q, 0), part(q, 1), part(q, 2), part(out, 0), lse);
    nn::attention_backward(engine, shape, mask, {}, part(q, 0), part(q, 1), part(q, 2), part(out, 0), lse, part(out, 0),
                           part(dx, 0), part(dx, 1), part(dx, 2));
    return std::vector<nn::Tensor>{out.slice(n - 1, n), dx.slice(n - 1, n)};
  };
  const std::vector<nn::Tensor> all = run(x);
  const std::vector<nn::Tensor> one = run(x.slice(sequences - 1, sequences));
  CHECK(are_same(engine, all[0], one[0]));
  CHECK(are_same(engine, all[1], one[1]));
}

// cuDNN counts the elements of a tensor with an int.
TEST_CASE("a convolution of images of more than 2^31 numbers", "[cuda][large]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::size_t side = is_emulated() ? 8 : 64, channels = is_emulated() ? 8 : 64, columns = side * side * channels;
  const std::size_t images = many_rows(columns);
  const nn::Tensor rows = large(engine, images, columns, 1);
  const nn::Tensor w = large(engine, last, channels * channels * 3, 2).reshaped({channels, channels, 3, 3});
  const auto run = [&](const nn::Tensor& some_rows) {
    const nn::Tensor x = some_rows.reshaped({some_rows.shape()[0], side, side, channels});
    nn::Tensor y = engine.empty(x.shape(), DType::bf16, nn::Use::data),
               dx = engine.empty(x.shape(), DType::bf16, nn::Use::data);
    nn::Tensor dw = engine.zeros(w.shape(), DType::f32, nn::Use::data);
    const nn::Conv2d conv{.stride = 1, .padding = 1};
    nn::conv2d(engine, conv, x, w, {}, y);
    nn::conv2d_backward_data(engine, conv, x, w, dx);
    nn::conv2d_backward_weights(engine, conv, x, x, dw);
    return std::vector{numbers<bf16>(engine, end_of(y)), numbers<bf16>(engine, end_of(dx)), numbers<float>(engine, dw)};
  };
  const auto all = run(rows), alone = run(end_of(rows));
  // Other numbers of images may have other algorithms.
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(compare(all[i], alone[i], 0.03) == "");
  CHECK(engine.take_notes().empty());
}

TEST_CASE("a product of more than 2^31 numbers", "[cuda][large]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::size_t columns = is_emulated() ? 32 : 32768, depth = 64, rows = many_rows(columns);
  const nn::Tensor a = large(engine, rows, depth, 1), b = large(engine, columns, depth, 2);
  nn::Tensor out = engine.empty({rows, columns}, DType::bf16, nn::Use::data);
  nn::MatmulOptions options;
  options.transpose_b = true;
  nn::matmul(engine, a, b, out, options);
  const std::vector<float> x = numbers<bf16>(engine, end_of(a)), y = numbers<bf16>(engine, end_of(b));
  const std::vector<float> is = numbers<bf16>(engine, end_of(out));
  for (std::size_t i = 0; i < last; ++i) {
    for (std::size_t j = 0; j < last; ++j) {
      double expected = 0;
      for (std::size_t k = 0; k < depth; ++k) expected += static_cast<double>(x[i * depth + k]) * y[j * depth + k];
      INFO(i << ", " << j << ": " << is[(i + 1) * columns - last + j] << ", expected " << expected);
      CHECK(!(std::abs(is[(i + 1) * columns - last + j] - expected) > 0.05 + 0.01 * std::abs(expected)));
    }
  }
}
