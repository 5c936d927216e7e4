// Windows of pooling: how large they may be, and that means of large maps are means.
#include <cstddef>
#include <string>
#include <vector>

#include "nn/layers/images.h"
#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

namespace bitloom::nn {
namespace {

using test::compare;
using test::has;
using test::message_of;

}  // namespace

// Places in windows of max_pool are bytes; windows of upsample, which nothing is noted of, had the same limit.
TEST_CASE("windows of max_pool have sides of up to 15 pixels, those of upsample larger ones", "[nn][pooling]") {
  Engine engine({}, "ref");
  const auto complaint = [](const auto& operation) { return message_of(ErrorKind::usage, operation); };
  const auto zeros = [&](const Shape& shape, DType dtype = DType::f32) { return engine.zeros(shape, dtype, Use::data); };
  for (const std::size_t k : {15U, 16U, 17U, 31U}) {
    INFO(k);
    Tensor large = zeros({2, k, 2 * k, 3}), small = zeros({2, 1, 2, 3}), which = zeros({2, 1, 2, 3}, DType::u8);
    CHECK(complaint([&] { upsample(engine, k, small, large); }) == "no error");
    CHECK(complaint([&] { upsample_backward(engine, k, large, small); }) == "no error");
    const std::string forward = complaint([&] { max_pool(engine, k, large, small, which); });
    const std::string backward = complaint([&] { max_pool_backward(engine, k, small, which, large); });
    if (k == 15) {
      CHECK(forward == "no error");
      CHECK(backward == "no error");
    } else {
      CHECK(has(forward, "do not fit; expected 1 to 15, at most either side"));
      CHECK(has(backward, "do not fit; expected 1 to 15, at most either side"));
    }
  }
  Tensor none = zeros({0, 4097, 4097, 1}), small = zeros({0, 1, 1, 1});
  CHECK(has(complaint([&] { upsample(engine, 4097, small, none); }), "expected 1 to 4096, at most either side"));
  CHECK(has(complaint([&] { upsample_backward(engine, 4097, none, small); }), "expected 1 to 4096, at most either side"));
}

TEST_CASE("a mean over a map is that of its pixels, whatever its side", "[nn][pooling]") {
  constexpr std::size_t images = 2, channels = 3;
  for (const std::string& backend : test::tested_backends()) {
    for (const std::size_t side : {1U, 15U, 16U, 17U, 31U}) {
      INFO(backend << ", side " << side);
      Engine engine(test::device_of(backend), backend);
      std::vector<float> x(images * side * side * channels);
      std::vector<double> expected(images * channels);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(i * 7 % 101) / 50;
        const std::size_t mean = i / (side * side * channels) * channels + i % channels;
        expected[mean] += static_cast<double>(x[i]) / static_cast<double>(side * side);
      }
      MeanPool layer;
      Pass pass{engine};
      const Tensor y = layer.forward(pass, engine.from(std::span<const float>(x), {images, side, side, channels}, Use::data));
      REQUIRE(y.shape() == Shape{images, channels});
      const std::vector<float> found = engine.to_host<float>(y);
      CHECK(compare(std::vector<double>(found.begin(), found.end()), expected, 1e-4) == "");
    }
  }
  MeanPool layer;
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         (void)layer.output({2, 16, 17, 3});
                       }),
            "mean_pool: x (2, 16, 17, 3); expected square maps"));
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         (void)layer.output({2, 0, 0, 3});
                       }),
            "mean_pool: x (2, 0, 0, 3); expected square maps"));
}

}  // namespace bitloom::nn
