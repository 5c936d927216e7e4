// Costs of layers, as estimated and as measured.
#include "train/parallel/layer_costs.h"

#include <chrono>
#include <thread>

#include "nn/layers/basic.h"
#include "nn/layers/images.h"
#include "tests/support/catch.h"
#include "tests/train/spirals.h"

using namespace bitloom;
using namespace bitloom::train;

namespace {

class Slow final : public nn::Layer {
 public:
  explicit Slow(int milliseconds) : milliseconds_(milliseconds) {}
  nn::Tensor forward(nn::Pass&, const nn::Tensor& x) override { return rest(x); }
  nn::Tensor backward(nn::Pass&, const nn::Tensor& dy) override { return rest(dy); }
  nn::Shape output(const nn::Shape& x) const override { return x; }
  double cost(const nn::Shape&) const override { return 1; }
  std::uint64_t stash_bytes(const nn::Shape&, DType) const override { return 0; }

 private:
  nn::Tensor rest(const nn::Tensor& x) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    return x;
  }

  int milliseconds_;
};

}  // namespace

TEST_CASE("an estimated cost is that of the forward pass, the head's is the last layer's", "[layer_costs]") {
  nn::Sequence net;
  net.emplace<nn::Linear>("first", 3, 5);
  net.emplace<nn::Linear>("second", 5, 7);
  CHECK(estimated_costs(net, {11, 3}, 1000) == std::vector<double>{2 * 11 * 3 * 5, 2 * 11 * 5 * 7 + 1000});
}

TEST_CASE("a measured cost is the time of a layer's passes, and leaves no trace", "[layer_costs]") {
  nn::Engine engine;
  auto net = std::make_shared<nn::Sequence>();
  net->emplace<nn::Linear>("first", 2, 24);
  net->emplace<Slow>(20);
  net->emplace<nn::BatchNorm>("norm", 24);
  net->emplace<Slow>(5);
  net->emplace<nn::Linear>("last", 24, 3);
  const test::SpiralOptions spirals;
  Classification task(net, {spirals.examples, 2}, test::spirals<float>(engine, spirals, DType::f32));
  const std::vector<double> costs = measured_costs(engine, task, DType::f32);
  REQUIRE(costs.size() == 5);
  CHECK(costs[1] > 0.04);
  CHECK(costs[1] > costs[3]);
  CHECK(costs[3] > 0.01);
  for (const double cost : costs) CHECK((cost > 0 && cost < 60));
  for (const nn::Parameter* parameter : nn::parameters_of(*net)) {
    CHECK(!parameter->value);
    CHECK(!parameter->copy);
    CHECK(!parameter->gradient);
  }
  CHECK(engine.pool().count(nn::Use::gradients).now == 0);
  // The moving averages of batch norm did not move.
  std::vector<std::pair<std::string, nn::Tensor*>> buffers;
  net->add_buffers(engine, DType::f32, buffers);
  nn::Pass pass{engine};
  net->end_step(pass, true, 1);
  for (const auto& [name, tensor] : buffers) {
    const float expected = name == "norm.moving_mean" ? 0 : 1;
    CHECK(engine.to_host<float>(*tensor) == std::vector<float>(24, expected));
  }
}
