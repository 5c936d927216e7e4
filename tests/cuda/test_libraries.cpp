// Whether cuBLASLt and cuDNN compute what they are there for: where they do not, kernels of ours take their place, with the
// same results, so that no other test would tell.
#include <cstddef>
#include <string>

#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// Notes about what was computed in a slower way.
std::string notes_of(nn::Engine& engine) {
  engine.synchronize();
  std::string all;
  for (const std::string& note : engine.take_notes()) all += note + "\n";
  return all;
}

}  // namespace

TEST_CASE("the libraries compute plain convolutions, in every type", "[cuda]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    INFO(nn::to_text(dtype));
    nn::Engine engine(device_of("cuda"), "cuda");
    const nn::Conv2d conv{.stride = 1, .padding = 1};
    const nn::Tensor x = engine.zeros({8, 16, 16, 16}, dtype, nn::Use::data);
    const nn::Tensor w = engine.zeros({16, 16, 3, 3}, dtype, nn::Use::data);
    nn::Tensor y = engine.empty(x.shape(), dtype, nn::Use::data), dx = engine.empty(x.shape(), dtype, nn::Use::data);
    nn::Tensor dw = engine.zeros(w.shape(), DType::f32, nn::Use::data);
    nn::conv2d(engine, conv, x, w, {}, y);
    CHECK(notes_of(engine) == "");
    nn::conv2d_backward_data(engine, conv, y, w, dx);
    CHECK(notes_of(engine) == "");
    nn::conv2d_backward_weights(engine, conv, x, y, dw);
    CHECK(notes_of(engine) == "");
  }
}

TEST_CASE("the libraries compute plain products, in every type", "[cuda]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    INFO(nn::to_text(dtype));
    nn::Engine engine(device_of("cuda"), "cuda");
    const nn::Tensor a = engine.zeros({64, 64}, dtype, nn::Use::data), b = engine.zeros({64, 64}, dtype, nn::Use::data);
    nn::Tensor out = engine.empty({64, 64}, dtype, nn::Use::data);
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        nn::MatmulOptions options;
        options.transpose_a = transpose_a;
        options.transpose_b = transpose_b;
        nn::matmul(engine, a, b, out, options);
        CHECK(notes_of(engine) == "");
      }
    }
  }
}
