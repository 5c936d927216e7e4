// Gradients of a convolution's weights in bf16, which with AMX are products of shifted matrices, against those in f32.
#include <omp.h>

#include <vector>

#include "core/random.h"
#include "nn/ops.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/threads.h"

using namespace bitloom;
using namespace bitloom::nn;

namespace {

// Random numbers that bf16 has, as f32 and as bf16.
struct Both {
  nn::Tensor wide, narrow;
  Both(Engine& engine, const Shape& shape, std::uint64_t seed) {
    Random random(seed, Stream::test);
    std::vector<float> numbers(shape.size());
    for (float& number : numbers) number = static_cast<float>(random.below(129)) / 64 - 1;
    wide = engine.from(std::span<const float>(numbers), shape, Use::data);
    narrow = engine.empty(shape, DType::bf16, Use::data);
    convert(engine, wide, narrow);
  }
};

}  // namespace

TEST_CASE("bf16 gradients of weights are those of f32, whatever the parts and threads", "[nn][conv]") {
  struct Case {
    Shape x;
    std::size_t outputs, kernel;
  };
  Engine engine({}, "cpu");
  for (const Case& each : {Case{{37, 15, 15, 128}, 128, 3},  // several parts of images, the last with fewer
                           Case{{64, 11, 13, 128}, 136, 3},  // several groups of parts
                           Case{{5, 46, 45, 128}, 128, 1},   // a part has one image
                           Case{{33, 9, 9, 136}, 128, 5},    // two zeros on each side
                           Case{{1, 3, 3, 256}, 256, 3}}) {  // one image alone
    INFO(to_text(each.x) << " to " << each.outputs << ", kernel " << each.kernel);
    const Both x(engine, each.x, 1);
    const Both dy(engine, each.x.with(3, each.outputs), 2);
    const Shape shape = {each.outputs, each.x[3], each.kernel, each.kernel};
    const Conv2d conv{1, each.kernel / 2};
    const auto gradient = [&](const nn::Tensor& from, const nn::Tensor& slope) {
      nn::Tensor dw = engine.empty(shape, DType::f32, Use::data);
      fill(engine, dw, 3);  // to be added to
      conv2d_backward_weights(engine, conv, from, slope, dw);
      return engine.to_host<float>(dw);
    };
    const std::vector<float> expected = gradient(x.wide, dy.wide);
    const std::vector<float> found = gradient(x.narrow, dy.narrow);
    CHECK(test::compare(found, expected, 1e-4) == "");
    const test::Threads threads(3);
    CHECK(gradient(x.narrow, dy.narrow) == found);
  }
}
