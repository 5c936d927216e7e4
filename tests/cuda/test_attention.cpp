// Attention on CUDA beyond the cases that all backends share: more tiles, every size of heads that has a kernel of its own, and
// masks that are kept.
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/half.h"
#include "nn/cuda/attention_masks.h"
#include "tests/cases/run.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// q, k and v are parts of one tensor, as in a transformer; so are their gradients.
OpCase self_attention(std::size_t heads, std::size_t head_size, const nn::AttentionMask& mask, double rate) {
  const nn::AttentionShape shape{heads, head_size, 1 / std::sqrt(static_cast<double>(head_size))};
  const nn::Dropout dropout{rate, 7, 11};
  const std::size_t tokens = mask.queries();
  const std::size_t width = heads * head_size;
  OpCase c;
  c.inputs = {values("x", {1, tokens, 3 * width}, 1)};
  c.outputs = {overwritten("y", {1, tokens, width}), overwritten("lse", {1, heads, tokens}, Kind::parameters)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::attention(engine, shape, mask, dropout, t.heads("x"), t.heads("x", width), t.heads("x", 2 * width), t.heads("y"),
                  t["lse"]);
  };
  c.upstream = {values("dy", {1, tokens, width}, 2)};
  c.gradients = {overwritten("dx", {1, tokens, 3 * width})};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::attention_backward(engine, shape, mask, dropout, t.heads("x"), t.heads("x", width), t.heads("x", 2 * width),
                           t.heads("y"), t["lse"], t.heads("dy"), t.heads("dx"), t.heads("dx", width),
                           t.heads("dx", 2 * width));
  };
  c.limit = 2;
  return c;
}

std::string problem_of(const OpCase& the_case, DType dtype) {
  nn::Engine cuda(device_of("cuda"), "cuda");
  nn::Engine reference({}, "ref");
  const Outcome actual = run(the_case, cuda, dtype);
  return compare(the_case, actual, run(rounded(the_case, dtype), reference, DType::f64, {.kept = &actual}), dtype);
}

template <typename T>
std::vector<T> read(nn::cuda::Runtime& runtime, const T* device, std::size_t n) {
  std::vector<T> host(n);
  runtime.download(device, std::as_writable_bytes(std::span(host)));
  return host;
}

// Whether the copy says what the mask does, both ways around.
bool says_the_same(nn::cuda::Runtime& runtime, const nn::cuda::DeviceMask& copy, const nn::AttentionMask& mask) {
  constexpr std::size_t block = nn::AttentionMask::block;
  const std::size_t query_blocks = mask.query_blocks(), key_blocks = (mask.keys() + block - 1) / block;
  std::vector<char> seen(mask.queries() * mask.keys()), transposed = seen;
  const auto fill = [&](const nn::cuda::MaskMap& map, std::size_t blocks, bool of_queries, std::vector<char>& pairs) {
    const std::vector<std::uint32_t> first = read(runtime, map.first, blocks + 1);
    const std::vector<nn::cuda::MaskBlock> entries = read(runtime, map.blocks, first.back());
    for (std::size_t i = 0; i < blocks; ++i) {
      for (std::size_t e = first[i]; e < first[i + 1]; ++e) {
        const std::size_t query_block = of_queries ? i : entries[e].block, key_block = of_queries ? entries[e].block : i;
        std::vector<std::uint64_t> words(block, ~std::uint64_t{0});
        if (entries[e].rows != nn::cuda::all_seen) words = read(runtime, copy.bits + block * entries[e].rows, block);
        for (std::size_t q = query_block * block; q < std::min(mask.queries(), (query_block + 1) * block); ++q) {
          for (std::size_t k = key_block * block; k < std::min(mask.keys(), (key_block + 1) * block); ++k) {
            pairs[q * mask.keys() + k] = static_cast<char>((words[q % block] >> (k % block)) & 1U);
          }
        }
      }
    }
  };
  fill(copy.keys_of_queries, query_blocks, true, seen);
  fill(copy.queries_of_keys, key_blocks, false, transposed);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const bool expected = mask.sees(i / mask.keys(), i % mask.keys());
    if ((seen[i] != 0) != expected || (transposed[i] != 0) != expected) return false;
  }
  return copy.queries == mask.queries() && copy.keys == mask.keys();
}

}  // namespace

TEST_CASE("attention over several tiles, with heads of every size that has a kernel", "[cuda]") {
  const nn::AttentionMask causal = nn::AttentionMask::causal(200, 200);
  CHECK(problem_of(self_attention(1, 64, causal, 0), DType::bf16) == "");
  CHECK(problem_of(self_attention(1, 64, causal, 0.2), DType::bf16) == "");
  CHECK(problem_of(self_attention(1, 80, causal, 0.2), DType::bf16) == "");
  CHECK(problem_of(self_attention(1, 64, nn::AttentionMask::full(192, 192), 0.2), DType::f16) == "");
  // Most keys are seen by no query: their gradients are 0.
  const nn::AttentionMask first_keys(200, 200, [](std::size_t, std::size_t key) { return key < 70; });
  CHECK(problem_of(self_attention(1, 32, first_keys, 0), DType::bf16) == "");
  CHECK(problem_of(self_attention(1, 32, first_keys, 0), DType::f32) == "");
}

TEST_CASE("attention of a transformer's packed queries, keys and values, as long as GPT-2's", "[cuda]") {
  // The emulator needs minutes for 1024 tokens.
  const std::size_t tokens = nn::describe_gpu(0).name == "emulated" ? 130 : 1024;
  for (const std::size_t head_size : {64U, 128U}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      INFO(head_size << " " << dtype_name(dtype));
      CHECK(problem_of(self_attention(2, head_size, nn::AttentionMask::causal(tokens, tokens), 0), dtype) == "");
    }
  }
}

TEST_CASE("attention with large heads", "[cuda]") {
  const nn::AttentionMask causal = nn::AttentionMask::causal(130, 130);
  CHECK(problem_of(self_attention(1, 128, causal, 0.2), DType::bf16) == "");
  CHECK(problem_of(self_attention(1, 121, causal, 0), DType::f16) == "");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    INFO(dtype_name(dtype));
    CHECK(problem_of(self_attention(1, 129, nn::AttentionMask::causal(65, 65), 0.2), dtype) == "");
  }
  CHECK(problem_of(self_attention(1, 100, causal, 0.2), DType::f32) == "");
  CHECK(problem_of(self_attention(1, 256, nn::AttentionMask::causal(70, 70), 0), DType::bf16) == "");
  CHECK(has(message_of(ErrorKind::usage, [&] { (void)problem_of(self_attention(1, 257, causal, 0), DType::f32); }),
            "heads of size 257; expected at most 256"));
}

TEST_CASE("attention gives the same bits where there is room for one stage of copies only", "[cuda]") {
  constexpr std::size_t tokens = 200, size = 128;
  nn::cuda::Runtime runtime(0);
  nn::cuda::MaskCache masks(runtime);
  nn::Engine engine(device_of("cuda"), "cuda");
  const auto numbers = [&](std::uint64_t seed) {
    std::vector<bf16> values;
    for (const double x : normal_numbers(tokens * size, seed)) values.push_back(to_bf16(static_cast<float>(x)));
    return engine.from<bf16>(values, {tokens, size}, nn::Use::data);
  };
  const nn::Tensor q = numbers(1), k = numbers(2), v = numbers(3), dout = numbers(4);
  const auto results = [&](std::size_t shared_limit) {
    nn::cuda::AttentionTask task;
    task.number = nn::cuda::Number::bf16;
    task.sequences = task.heads = 1;
    task.head_size = size;
    task.scale = 0.1F;
    task.mask = masks.find(nn::AttentionMask::causal(tokens, tokens));
    task.q = {q.data(), size, false};
    task.k = {k.data(), size, false};
    task.v = {v.data(), size, false};
    task.shared_limit = shared_limit;
    const auto blank = [&](const nn::Shape& shape, DType dtype) { return engine.zeros(shape, dtype, nn::Use::data); };
    const nn::Tensor out = blank(q.shape(), DType::bf16), dq = blank(q.shape(), DType::bf16);
    const nn::Tensor dk = blank(q.shape(), DType::bf16), dv = blank(q.shape(), DType::bf16);
    const nn::Tensor lse = blank({tokens}, DType::f32), delta = blank({tokens}, DType::f32);
    engine.synchronize();  // the kernels are on another stream
    nn::cuda::attention(runtime.stream(), task, {out.data(), size, false}, static_cast<float*>(lse.data()));
    nn::cuda::AttentionGradients gradients;
    gradients.out = {out.data(), size, false};
    gradients.dout = {dout.data(), size, false};
    gradients.lse = static_cast<const float*>(lse.data());
    gradients.delta = static_cast<float*>(delta.data());
    gradients.dq = {dq.data(), size, false};
    gradients.dk = {dk.data(), size, false};
    gradients.dv = {dv.data(), size, false};
    nn::cuda::attention_backward(runtime.stream(), task, gradients);
    runtime.synchronize();
    std::vector<std::vector<std::uint16_t>> bits;
    for (const nn::Tensor& tensor : {out, dq, dk, dv}) {
      bits.emplace_back();
      for (const bf16 x : engine.to_host<bf16>(tensor)) bits.back().push_back(x.bits);
    }
    return bits;
  };
  const auto one_stage = results(std::size_t{75} << 10U);
  CHECK(one_stage[3] != std::vector<std::uint16_t>(q.size()));
  CHECK(one_stage == results(std::size_t{163} << 10U));
}

TEST_CASE("masks in the device's memory say the same and are kept, but not all of them", "[cuda]") {
  nn::cuda::Runtime runtime(0);
  nn::Pool& pool = runtime.pool();
  const auto bytes = [&] { return pool.count(nn::Use::data).now; };
  {
    nn::cuda::MaskCache masks(runtime);
    const nn::AttentionMask often = nn::AttentionMask::convolutional(20, 12, 3);
    const nn::cuda::DeviceMask kept = masks.find(often);
    CHECK(says_the_same(runtime, kept, often));
    CHECK(says_the_same(runtime, masks.find(nn::AttentionMask::full(70, 200)), nn::AttentionMask::full(70, 200)));
    // As generation makes them, beside a mask that is used all the time.
    std::uint64_t after_some = 0;
    for (std::size_t n = 1; n <= 300; ++n) {
      const nn::AttentionMask mask = nn::AttentionMask::causal(1, n, n - 1);
      CHECK(says_the_same(runtime, masks.find(mask), mask));
      CHECK(masks.find(often).bits == kept.bits);
      if (n == 100) after_some = bytes();
    }
    CHECK(says_the_same(runtime, masks.find(often), often));
    CHECK(after_some > 0);
    CHECK(bytes() == after_some);
    CHECK(pool.total().peak == after_some);
    // A large one takes the place of a small one.
    const nn::AttentionMask large = nn::AttentionMask::causal(500, 500);
    CHECK(says_the_same(runtime, masks.find(large), large));
    CHECK(bytes() > after_some);
    // The one whose place could not grow is found when there is room again.
    const nn::AttentionMask larger = nn::AttentionMask::causal(2000, 2000);
    pool.set_limit(bytes() + 1000);
    CHECK(has(message_of(ErrorKind::io, [&] { (void)masks.find(larger); }), "more for data (the limit is reached)"));
    pool.set_limit(0);
    CHECK(says_the_same(runtime, masks.find(larger), larger));
  }
  CHECK(bytes() == 0);
}

TEST_CASE("masks count among the memory of tensors and under its limit", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  constexpr std::size_t tokens = 8, size = 16;
  const nn::Tensor x = engine.zeros({1, tokens, size}, DType::f32, nn::Use::activations);
  const nn::Tensor out = engine.empty(x.shape(), DType::f32, nn::Use::activations);
  nn::Tensor lse = engine.empty({1, 1, tokens}, DType::f32, nn::Use::activations);
  const auto attend = [&] {
    nn::attention(engine, {1, size, 0.25}, nn::AttentionMask::causal(tokens, tokens), {}, {x, 0}, {x, 0}, {x, 0}, {out, 0},
                  lse);
  };
  engine.pool().set_limit(engine.pool().total().now + 100);
  CHECK(has(message_of(ErrorKind::io, attend), "out of memory on cuda:0"));
  engine.pool().set_limit(0);
  CHECK(engine.pool().count(nn::Use::data).now == 0);
  attend();
  CHECK(engine.pool().count(nn::Use::data).now > 0);
}
