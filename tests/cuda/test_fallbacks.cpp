// The backend where a library or the GPU refuses: only the emulated ones do so when they are told to.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "nn/ops.h"
#include "tests/cases/case.h"
#include "tests/cuda/emulated_runtime.h"
#include "tests/cuda/tensors.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/environment.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

// The emulated library refuses lengths as cuBLASLt may, odd ones and 1.
TEST_CASE("products for which the library has no algorithm are computed on copies, which is said once", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  nn::Engine reference({}, "ref");
  struct Lengths {
    std::size_t m, k, n;
  };
  const auto numbers = [](nn::Engine& on, const nn::Shape& shape, std::uint64_t seed) {
    const std::vector<double> values = normal_numbers(shape.size(), seed);
    return floats(on, std::vector<float>(values.begin(), values.end()), shape);
  };
  const auto product = [&](nn::Engine& on, const Lengths& l, bool a_is_transposed, bool b_is_transposed, bool accumulate) {
    const nn::Tensor a = numbers(on, a_is_transposed ? nn::Shape{2, l.k, l.m} : nn::Shape{2, l.m, l.k}, 1);
    const nn::Tensor b = numbers(on, b_is_transposed ? nn::Shape{2, l.n, l.k} : nn::Shape{2, l.k, l.n}, 2);
    nn::Tensor out = numbers(on, {2, l.m, l.n}, 3);
    nn::MatmulOptions options;
    options.transpose_a = a_is_transposed;
    options.transpose_b = b_is_transposed;
    options.accumulate = accumulate;
    nn::matmul(on, a, b, out, options);
    return on.to_host<float>(out);
  };
  (void)product(engine, {4, 4, 4}, false, false, false);
  CHECK(engine.take_notes().empty());
  for (const Lengths& l : {Lengths{3, 5, 7}, Lengths{1, 5, 1}, Lengths{2, 13, 8}, Lengths{7, 16, 23}}) {
    for (unsigned flags = 0; flags < 8; ++flags) {
      INFO(l.m << " x " << l.k << " x " << l.n << ", flags " << flags);
      const bool a = (flags & 1U) != 0, b = (flags & 2U) != 0, accumulate = (flags & 4U) != 0;
      CHECK(compare(product(engine, l, a, b, accumulate), product(reference, l, a, b, accumulate), 1e-5) == "");
    }
    const std::vector<std::string> notes = engine.take_notes();
    REQUIRE(notes.size() == 1);
    CHECK(has(notes[0], fmt::format("no algorithm for 2 products {} x {} x {}", l.m, l.k, l.n)));
  }
}

// The error that a kernel's failure leaves was reported as "out of memory", and the benchmark went on with a smaller net.
TEST_CASE("a GPU that refuses everything is not out of memory", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const emulated::BrokenDevice broken;
  const std::string message = message_of(ErrorKind::io, [&] { engine.zeros({1U << 20U}, DType::f32, nn::Use::data); });
  CHECK(has(message, "illegal memory access"));
  CHECK_FALSE(has(message, "out of memory"));
}

TEST_CASE("a convolution that takes the slow way is told of once", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const auto convolve = [&](std::size_t outputs, std::size_t columns = 4) {
    const nn::Tensor x = engine.zeros({1, 4, columns, 2}, DType::f32, nn::Use::data);
    const nn::Tensor w = engine.zeros({outputs, 2, 3, 3}, DType::f32, nn::Use::data);
    nn::Tensor y = engine.empty({1, 4, columns, outputs}, DType::f32, nn::Use::data);
    nn::conv2d(engine, {.stride = 1, .padding = 1}, x, w, {}, y);
  };
  convolve(4);
  CHECK(engine.take_notes().empty());
  for (int i = 0; i < 2; ++i) convolve(5);  // the emulated library has nothing for it
  const std::vector<std::string> notes = engine.take_notes();
  REQUIRE(notes.size() == 1);
  CHECK(has(notes[0], "conv2d: the library has no algorithm"));
  CHECK(engine.take_notes().empty());
  convolve(4, 61);  // it does not take a single image as wide as that
  const std::vector<std::string> other = engine.take_notes();
  REQUIRE(other.size() == 1);
  CHECK(has(other[0], "conv2d: more numbers than the library can count in 1 images 4 x 61"));
}

// The host waited in the driver for a collective whose peer was gone, for ever.
TEST_CASE("who waits for a GPU in vain is told by those that watch it", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  nn::Tensor x = floats(engine, {1, 2, 3}, {3});
  int looks = 0;
  auto watch = engine.watch([&](double waited) {
    ++looks;
    if (waited > 0.01) fail(ErrorKind::io, "a peer is gone");
  });
  CHECK(engine.to_host<float>(x) == std::vector<float>{1, 2, 3});
  CHECK(looks > 0);
  {
    const emulated::HungStream hung;
    CHECK(message_of(ErrorKind::io, [&] { (void)engine.to_host<float>(x); }) == "a peer is gone");
    CHECK(message_of(ErrorKind::io, [&] { engine.synchronize(); }) == "a peer is gone");
    CHECK(message_of(ErrorKind::io, [&] { (void)nn::sums_of_squares(engine, {&x, 1}); }) == "a peer is gone");
    const std::vector<float> values = {4, 5, 6};
    CHECK(message_of(ErrorKind::io, [&] { engine.write(x, std::as_bytes(std::span(values))); }) == "a peer is gone");
  }
  CHECK(engine.to_host<float>(x) == std::vector<float>{1, 2, 3});
  watch.reset();
  looks = 0;
  engine.synchronize();
  CHECK(looks == 0);
}

// Such a GPU was taken, and the first kernel failed.
TEST_CASE("a GPU that has none of the program's code is refused in words", "[cuda]") {
  CHECK(nn::gpu_problem(0).empty());
  const Environment other("BITLOOM_EMULATED_ARCHITECTURES", "90a-real");
  const std::string message = message_of(ErrorKind::usage, [] { nn::Engine engine(device_of("cuda"), "cuda"); });
  CHECK(has(message, "cuda:0: it has compute capability 8.0, and this program was compiled for 9.0a: "));
  CHECK(std::ranges::count(nn::backends(), "cuda") == 0);
}
