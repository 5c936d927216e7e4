// Boundaries between blocks of a float net are plain tensors: a net of four blocks that runs as two processes has the gradients
// of one process, bit for bit.
#include <memory>
#include <vector>

#include "core/random.h"
#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "tests/support/catch.h"
#include "tests/support/mpi.h"

namespace bitloom::nn {

namespace {

constexpr std::size_t rows = 5;
constexpr std::size_t width = 12;

Sequence four_blocks() {
  Sequence net;
  for (std::size_t i = 0; i < 4; ++i) {
    LinearOptions options;
    options.deviation = 0.3;
    const std::string name = "block" + std::to_string(i);
    auto branch = std::make_unique<Sequence>();
    branch->emplace<LayerNorm>(name + ".norm", width);
    branch->emplace<Linear>(name + ".linear", width, width, options);
    branch->emplace<Activate>(find_activation("gelu"));
    branch->emplace<DropoutLayer>(0.2, i);
    net.emplace<Residual>(std::move(branch), i);
  }
  return net;
}

std::vector<std::byte> bytes_of(Engine& engine, const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  engine.read(tensor, tensor.dtype(), bytes);
  return bytes;
}

Tensor tensor_of(Engine& engine, const std::vector<std::byte>& bytes) {
  Tensor tensor = engine.empty({rows, width}, DType::f32, Use::activations);
  engine.write(tensor, bytes);
  return tensor;
}

Tensor random_tensor(Engine& engine, std::uint64_t seed) {
  std::vector<float> values(rows * width);
  Random random(seed, Stream::test);
  for (float& value : values) value = static_cast<float>(random.normal());
  return engine.from(std::span<const float>(values), {rows, width}, Use::activations);
}

}  // namespace

TEST_CASE("four blocks as two processes have the gradients of one", "[boundary]") {
  mpi::Comm& world = test::world();
  if (world.rank() > 1) return;
  Engine engine;
  Sequence net = four_blocks();
  const std::vector<Parameter*> parameters = parameters_of(net);
  initialise(engine, parameters, DType::f32, 1);
  const auto gradients = [&](std::size_t first, std::size_t last) {
    std::vector<std::vector<std::byte>> all;
    for (const Parameter* parameter : parameters) {
      if (*parameter->block >= first && *parameter->block < last) all.push_back(bytes_of(engine, parameter->gradient));
    }
    return all;
  };
  Stash stash;
  Pass pass{engine};
  pass.stash = &stash;
  pass.seed = 2;
  const Tensor x = random_tensor(engine, 1);
  const Tensor dy = random_tensor(engine, 2);
  const std::vector<std::byte> whole_y = bytes_of(engine, net.forward(pass, x));
  const std::vector<std::byte> whole_dx = bytes_of(engine, net.backward(pass, dy));
  const auto whole = std::pair(gradients(0, 2), gradients(2, 4));
  CHECK(whole.first.size() == 8);
  if (world.size() == 1) return;

  clear_gradients(engine, parameters);
  if (world.rank() == 0) {
    world.send(1, bytes_of(engine, net.forward(pass, x, 0, 2)));
    CHECK(bytes_of(engine, net.backward(pass, tensor_of(engine, world.receive(1)), 0, 2)) == whole_dx);
    CHECK(gradients(0, 2) == whole.first);
  } else {
    CHECK(bytes_of(engine, net.forward(pass, tensor_of(engine, world.receive(0)), 2, 4)) == whole_y);
    world.send(0, bytes_of(engine, net.backward(pass, dy, 2, 4)));
    CHECK(gradients(2, 4) == whole.second);
  }
  CHECK(stash.empty());
}

}  // namespace bitloom::nn
