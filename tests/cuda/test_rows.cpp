// Ops on rows of src/nn/cuda, beyond what the cases of all backends have: ids and targets that are none, and many rows.
#include <cmath>
#include <cstdint>
#include <vector>

#include "nn/ops.h"
#include "tests/cuda/tensors.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

nn::Tensor integers(nn::Engine& engine, const std::vector<std::int32_t>& values) {
  return engine.from<std::int32_t>(values, {values.size()}, nn::Use::data);
}

}  // namespace

TEST_CASE("ids that are no rows are reported with the first of them, and touch nothing", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  nn::Tensor table = floats(engine, {1, 2, 3, 4, 5, 6}, {3, 2});
  const nn::Tensor ids = integers(engine, {2, 3, 0, -1, 2, 1 << 30});

  nn::Tensor out = engine.zeros({6, 2}, DType::f32, nn::Use::data);
  nn::gather(engine, table, ids, out);
  CHECK(has(message_of(ErrorKind::usage, [&] { engine.synchronize(); }), "gather: ids[1] is no row"));
  CHECK(engine.to_host<float>(out) == std::vector<float>{5, 6, 0, 0, 1, 2, 0, 0, 5, 6, 0, 0});

  const nn::Tensor dout = floats(engine, {1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}, {6, 2});
  nn::scatter_add(engine, dout, ids, table);
  CHECK(has(message_of(ErrorKind::usage, [&] { engine.synchronize(); }), "scatter_add: ids[1] is no row"));
  CHECK(engine.to_host<float>(table) == std::vector<float>{4, 32, 3, 4, 11, 66});
  engine.synchronize();  // a fault is reported once
}

TEST_CASE("targets that are no classes are reported, and their rows do not count", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  const nn::Tensor logits = floats(engine, std::vector<float>(4 * 3, 0.5F), {4, 3});
  const nn::Tensor targets = integers(engine, {1, 0, -2, 2});  // targets of 2 classes
  nn::Tensor loss = engine.empty({4}, DType::f32, nn::Use::data);
  nn::Tensor dlogits = engine.empty({4, 3}, DType::f32, nn::Use::data);
  nn::cross_entropy(engine, logits, targets, 2, 1, loss, &dlogits);
  CHECK(has(message_of(ErrorKind::usage, [&] { engine.synchronize(); }), "cross_entropy: targets[2] is neither"));
  const std::vector<float> losses = engine.to_host<float>(loss);
  CHECK(std::abs(losses[0] - std::log(2.0F)) < 1e-6F);
  CHECK(losses[2] == 0);
  CHECK(losses[3] == 0);
  CHECK(engine.to_host<float>(dlogits) == std::vector<float>{0.5F, -0.5F, 0, -0.5F, 0.5F, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("sums of many rows", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  constexpr std::size_t rows = 300000;
  nn::Tensor sums = engine.zeros({3}, DType::f32, nn::Use::data);
  nn::add_row_sums(engine, floats(engine, std::vector<float>(3 * rows, 1), {rows, 3}), sums);
  CHECK(engine.to_host<float>(sums) == std::vector<float>(3, rows));
}

TEST_CASE("scatter_add of ids that are all the same, all different, and ascending runs", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  constexpr std::int32_t rows = 5000;
  for (const std::int32_t run : {rows, 1, 63, 64, 65, 700}) {
    std::vector<std::int32_t> ids(rows);
    std::vector<float> dout(rows);
    std::vector<float> expected(rows);
    for (std::int32_t r = 0; r < rows; ++r) {
      ids[r] = (rows - 1 - r) / run;
      dout[r] = static_cast<float>(r % 17 + 1);
      expected[ids[r]] += dout[r];  // whole numbers: exact in any order
    }
    nn::Tensor table = engine.zeros({rows, 1}, DType::f32, nn::Use::data);
    nn::scatter_add(engine, floats(engine, dout, {rows, 1}), integers(engine, ids), table);
    INFO(run);
    CHECK(engine.to_host<float>(table) == expected);
  }
}
