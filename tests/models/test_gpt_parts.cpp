// The parts of a GPT that the processes of a group have, described in one process.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/gpt/gpt.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::message_of;

namespace {

GptConfig divided_gpt() {
  GptConfig config = test::small_gpt();
  config.heads = 12;
  config.vocabulary_multiple = 1;
  return config;
}

}  // namespace

TEST_CASE("the processes of a group have every element of a divided parameter once", "[gpt]") {
  const GptConfig config = divided_gpt();
  Gpt whole(config);
  const std::vector<nn::Parameter*> expected = nn::parameters_of(whole);
  for (const std::size_t size : {2U, 3U, 4U, 12U}) {
    std::map<std::string, std::vector<int>> times;
    double cost = 0;
    for (std::size_t rank = 0; rank < size; ++rank) {
      train::TensorGroup group(rank, size);
      Gpt part(config, 0, &group);
      const std::vector<nn::Parameter*> parameters = nn::parameters_of(part);
      REQUIRE(parameters.size() == expected.size());
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const nn::Parameter& parameter = *parameters[i];
        INFO(parameter.name << " of rank " << rank << " of " << size);
        CHECK(parameter.name == expected[i]->name);
        CHECK(parameter.deviation == expected[i]->deviation);
        CHECK(parameter.block == expected[i]->block);
        CHECK(parameter.decays == expected[i]->decays);
        if (!parameter.part) {
          CHECK(parameter.shape == expected[i]->shape);
          continue;
        }
        CHECK(parameter.part->full == expected[i]->shape);
        CHECK(parameter.shape == parameter.part->shape());
        std::vector<int>& seen = times[parameter.name];
        seen.resize(parameter.part->full.size());
        for (std::size_t k = 0; k < parameter.shape.size(); ++k) ++seen.at(parameter.numbers()(k));
      }
      cost += part.cost({2, config.context});
    }
    // The table, and of each layer: weights and biases of q, k and v and of the first product, weights of the two others.
    CHECK(times.size() == 1 + config.layers * 6);
    for (const auto& [name, seen] : times) {
      INFO(name << " in " << size << " parts");
      CHECK(std::ranges::all_of(seen, [](int n) { return n == 1; }));
    }
    // Norms and sums are computed by all.
    CHECK(cost >= whole.cost({2, config.context}));
    CHECK(cost < whole.cost({2, config.context}) * (1 + 0.06 * static_cast<double>(size)));
  }
}

TEST_CASE("a group that is only described runs nothing, and one process divides nothing", "[gpt]") {
  const GptConfig config = divided_gpt();
  train::TensorGroup absent(1, 3);
  nn::Engine engine;
  Gpt net(config, 0, &absent);
  CHECK(net.group() == &absent);
  nn::initialise(engine, nn::parameters_of(net), DType::f32, 1);
  nn::Pass pass{engine};
  const std::vector<std::int32_t> ids(config.context);
  CHECK(message_of(ErrorKind::internal, [&] {
          net.forward(pass, engine.from(std::span<const std::int32_t>(ids), {1, ids.size()}, nn::Use::data));
        }) == "a net of a tensor group that is only described cannot be run");
  train::TensorGroup alone(0, 1);
  CHECK(Gpt(config, 0, &alone).group() == nullptr);
  CHECK(message_of(ErrorKind::usage, [] { train::TensorGroup(3, 3); }) == "tensor group: rank 3 of 3");
  train::TensorGroup five(0, 5);
  CHECK(message_of(ErrorKind::usage, [&] { Gpt(config, 0, &five); }) ==
        "`heads`: 12; expected a multiple of the 5 processes that divide each layer");
}

TEST_CASE("shares of a group differ by one at most and leave nothing out", "[gpt]") {
  for (const std::size_t n : {0U, 1U, 2U, 3U, 83U, 96U}) {
    for (const std::size_t size : {1U, 2U, 3U, 4U, 7U}) {
      std::size_t end = 0;
      for (std::size_t rank = 0; rank < size; ++rank) {
        const train::TensorGroup group(rank, size);
        CHECK(group.begin_of(n) == end);
        end = group.end_of(n);
        const std::size_t share = end - group.begin_of(n);
        CHECK((share == n / size || share == n / size + 1));
        CHECK(share <= group.most_of(n));
      }
      CHECK(end == n);
    }
  }
}
