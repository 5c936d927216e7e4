// A GPT whose layers several processes divide: it computes what one process computes, with as many sums as were promised.
#include "train/parallel/tensor.h"

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "models/gpt/evaluate.h"
#include "models/gpt/sampler.h"
#include "models/transformer/blocks.h"
#include "mpi/float_collectives.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/support/parameters.h"
#include "tests/support/parts.h"
#include "train/optimizer.h"
#include "train/parallel/replicas.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::world;

namespace {

constexpr std::size_t sequences = 2;

// Heads for 1 to 4 processes, and a vocabulary for one.
GptConfig config_for_groups() {
  GptConfig config = test::small_gpt();
  config.heads = 12;
  config.width = 48;
  config.vocabulary_multiple = 1;
  config.dropout = 0.2;
  return config;
}

// A tensor of a parameter, whole on every process.
std::vector<double> whole(nn::Engine& engine, nn::Parameter* parameter, nn::Tensor nn::Parameter::*which) {
  const std::vector<double> own = test::all_of(engine, {parameter}, which);
  if (!parameter->part) return own;
  std::vector<double> all(parameter->part->full.size());
  test::put_part(*parameter->part, own, all);
  mpi::sum_in_order(world(), std::span(all));
  return all;
}

// A net, whole or this process's part of it, and passes over micro-batches.
struct TensorRun {
  TensorRun(const GptConfig& config, train::TensorGroup* group, DType values = DType::f32,
            nn::MasterWeights masters = nn::MasterWeights::f32)
      : net(config, 0, group), source(test::chains(config, 4)), parameters(nn::parameters_of(net)) {
    nn::initialise(engine, parameters, values, 3, masters);
  }

  // Losses, and the gradients of the parameters.
  std::vector<double> pass(std::uint64_t step = 4, std::uint64_t logits_bytes = 1 << 27) {
    const nn::Shape shape = {sequences, net.tokens()};
    std::vector<std::int32_t> inputs(shape.size());
    std::vector<std::int32_t> targets(shape.size());
    source(step, 0, inputs, targets);
    targets[5] = -1;
    nn::clear_gradients(engine, parameters);
    nn::Stash stash;
    nn::Pass pass{engine};
    pass.stash = &stash;
    pass.seed = 9;
    pass.step = step;
    const nn::Tensor hidden = net.forward(pass, engine.from(std::span<const std::int32_t>(inputs), shape, nn::Use::data));
    nn::Tensor dhidden = engine.empty(hidden.shape(), hidden.dtype(), nn::Use::activations);
    const nn::Tensor losses =
        language_losses(engine, net, hidden, engine.from(std::span<const std::int32_t>(targets), shape, nn::Use::data),
                        1.0 / static_cast<double>(shape.size()), &dhidden, logits_bytes);
    net.backward(pass, dhidden);
    nn::settle_gradients(engine, parameters);
    CHECK(stash.empty());
    kept = stash.peak_bytes();
    const std::vector<float> values = engine.to_host<float>(losses);
    return {values.begin(), values.end()};
  }
  std::map<std::string, std::vector<double>> all(nn::Tensor nn::Parameter::*which) {
    std::map<std::string, std::vector<double>> tensors;
    for (nn::Parameter* parameter : parameters) tensors[parameter->name] = whole(engine, parameter, which);
    return tensors;
  }

  nn::Engine engine;
  Gpt net;
  LanguageTask::Source source;
  std::vector<nn::Parameter*> parameters;
  std::uint64_t kept = 0;
};

void check_equal(const std::map<std::string, std::vector<double>>& is,
                 const std::map<std::string, std::vector<double>>& should_be, double limit) {
  REQUIRE(is.size() == should_be.size());
  for (const auto& [name, values] : should_be) {
    INFO(name);
    CHECK(compare(is.at(name), values, limit) == "");
  }
}

}  // namespace

TEST_CASE("a group's loss and gradients are those of one process", "[tensor_parallel]") {
  struct Setting {
    const char* name;
    std::size_t vocabulary, multiple;
    unsigned bits;
    bool recompute;
    double clip = 0;
  };
  for (const Setting& setting :
       {Setting{"plain", 83, 1, 0, false}, Setting{"padded", 83, 16, 0, false}, Setting{"padding alone", 33, 64, 0, false},
        Setting{"no rows", 2, 1, 0, false}, Setting{"recomputed", 83, 1, 0, true}, Setting{"few bits", 83, 1, 3, true},
        Setting{"clipped", 83, 16, 0, false, 0.1}}) {
    GptConfig config = config_for_groups();
    config.vocabulary = setting.vocabulary;
    config.vocabulary_multiple = setting.multiple;
    config.activation_bits = setting.bits;
    config.recompute = setting.recompute;
    config.logit_clip = setting.clip;
    INFO(setting.name);
    train::TensorGroup group(world());
    TensorRun one(config, nullptr);
    TensorRun divided(config, &group);
    const std::vector<double> losses = one.pass();
    CHECK(compare(divided.pass(), losses, 1e-5) == "");
    check_equal(divided.all(&nn::Parameter::gradient), one.all(&nn::Parameter::gradient), 1e-5);
    if (!setting.recompute) CHECK(divided.kept == divided.net.peak_stash_bytes({sequences, config.context}, DType::f32));
    if (group.size() == 1) CHECK(divided.all(&nn::Parameter::gradient) == one.all(&nn::Parameter::gradient));
    // Logits a few rows at a time: the same number of turns everywhere.
    if (setting.bits == 0) CHECK(compare(divided.pass(4, 1), losses, 1e-5) == "");
  }
}

// Once all drew the same numbers, so that their errors added up in sums over the group.
TEST_CASE("tensor ranks round what they keep of activations each by numbers of its own", "[tensor_parallel]") {
  BlockConfig config;
  config.heads = 12;
  config.width = 48;
  config.activation_bits = 2;
  config.activation_quantiser = nn::Quantiser::act_nn;
  train::TensorGroup group(world());
  BlockBuilder builder(config, &group);
  nn::Sequence net;
  const auto mask = std::make_shared<const nn::AttentionMask>(nn::AttentionMask::causal(5, 5));
  builder.add_blocks(net, [&](std::size_t) { return BlockBuilder::Mask{mask, nullptr}; });
  nn::Engine engine;
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(net);
  nn::initialise(engine, parameters, DType::f32, 3);
  const auto waves = [&](const nn::Shape& shape) {
    std::vector<float> values(shape.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i / shape[shape.axes() - 1]));
    return engine.from(std::span<const float>(values), shape, nn::Use::parameters);
  };
  // With equal columns all processes keep the same inputs.
  for (nn::Parameter* parameter : parameters) {
    if (parameter->name != "blocks.0.feed_forward.first.weight") continue;
    nn::scale_add(engine, 1, waves(parameter->shape), 0, parameter->value);
  }
  nn::refresh_copies(engine, parameters);
  nn::Tensor x = engine.zeros({sequences, 5, config.width}, DType::f32, nn::Use::activations);
  std::vector<float> values(x.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i * i));
  engine.write(x, std::as_bytes(std::span(values)));
  nn::Stash stash;
  nn::Pass pass{engine};
  pass.stash = &stash;
  net.forward(pass, x);
  nn::Tensor ranges;
  nn::Tensor packed = stash.take();
  for (; packed.dtype() != DType::u8; packed = stash.take()) ranges = packed;
  CHECK(test::same_everywhere(engine.to_host<float>(ranges)));
  std::vector<std::byte> numbers(packed.bytes());
  engine.read(packed, DType::u8, numbers);
  CHECK(test::same_everywhere(numbers) == (group.size() == 1));
}

TEST_CASE("a group in bf16 computes what one process computes, as exactly as bf16 has it", "[tensor_parallel]") {
  const GptConfig config = config_for_groups();
  train::TensorGroup group(world());
  TensorRun one(config, nullptr, DType::bf16);
  TensorRun divided(config, &group, DType::bf16);
  CHECK(compare(divided.pass(), one.pass(), 1e-2) == "");
  check_equal(divided.all(&nn::Parameter::gradient), one.all(&nn::Parameter::gradient), 0.2);
}

TEST_CASE("a step takes two and two sums per layer, and three numbers per row for the loss", "[tensor_parallel]") {
  for (const bool recompute : {false, true}) {
    GptConfig config = config_for_groups();
    config.recompute = recompute;
    train::TensorGroup group(world());
    TensorRun divided(config, &group);
    const auto traffic = [&] {
      return std::array{world().traffic(mpi::Collective::float_sum), world().traffic(mpi::Collective::float_max),
                        world().traffic()};
    };
    const auto before = traffic();
    divided.pass();
    const auto after = traffic();
    const auto calls = [&](std::size_t kind) { return after.at(kind).calls - before.at(kind).calls; };
    const auto bytes = [&](std::size_t kind) { return after.at(kind).bytes_sent - before.at(kind).bytes_sent; };
    INFO("recomputed: " << recompute);
    if (group.size() == 1) {
      CHECK(calls(2) == 0);
      continue;
    }
    const std::size_t rows = sequences * config.context;
    const std::size_t in_layers = config.layers * (recompute ? 6 : 4);
    // Sums of the residual stream: those of the layers, of the embedding and of the hidden states' gradient; and the loss.
    CHECK(calls(0) == in_layers + 2 + 1);
    CHECK(calls(1) == 1);
    CHECK(calls(2) == calls(0) + calls(1));
    const std::size_t of_loss = bytes(2) - (in_layers + 2) * rows * config.width * sizeof(float);
    CHECK(of_loss == 3 * rows * sizeof(float));
    CHECK(bytes(1) == rows * sizeof(float));
  }
}

TEST_CASE("initial values of a group are those of one process, to the bit", "[tensor_parallel]") {
  const GptConfig config = config_for_groups();
  train::TensorGroup group(world());
  for (const nn::MasterWeights masters : {nn::MasterWeights::f32, nn::MasterWeights::none}) {
    TensorRun one(config, nullptr, DType::bf16, masters);
    TensorRun divided(config, &group, DType::bf16, masters);
    CHECK(divided.all(&nn::Parameter::value) == one.all(&nn::Parameter::value));
    std::size_t own = 0;
    for (const nn::Parameter* parameter : divided.parameters) own += parameter->shape.size();
    if (group.size() > 1) CHECK(own < 0.65 * static_cast<double>(config.parameters()));
  }
}

TEST_CASE("what all processes of a group have stays the same to the bit", "[tensor_parallel]") {
  const GptConfig config = config_for_groups();
  train::TensorGroup group(world());
  for (const DType values : {DType::f32, DType::bf16}) {
    const nn::MasterWeights masters = values == DType::f32 ? nn::MasterWeights::f32 : nn::MasterWeights::none;
    TensorRun one(config, nullptr, values, masters);
    TensorRun divided(config, &group, values, masters);
    train::Optimizer of_one(one.engine, one.parameters, {});
    train::Optimizer of_group(divided.engine, divided.parameters, {});
    for (std::uint64_t step = 0; step < 3; ++step) {
      const std::vector<double> losses = divided.pass(step);
      CHECK(test::same_everywhere(losses));
      CHECK(compare(losses, one.pass(step), values == DType::f32 ? 1e-4 : 3e-2) == "");
      of_one.step(1e-3, 1, 1, 1);
      of_group.step(1e-3, 1, 1, 1);
    }
    mpi::Grid grid(world(), {1, 1, world().size()});
    std::vector<train::Replica> replicas;
    for (const nn::Parameter* parameter : divided.parameters) {
      if (!parameter->part) replicas.push_back({parameter->name, &parameter->value, {&grid.tensor()}});
    }
    CHECK_NOTHROW(train::require_same(divided.engine, world(), replicas, "now"));
    std::size_t replicated = 0;
    for (nn::Parameter* parameter : divided.parameters) {
      if (parameter->part) continue;
      INFO(parameter->name);
      CHECK(test::same_everywhere(test::all_of(divided.engine, {parameter}, &nn::Parameter::value)));
      ++replicated;
    }
    // Two norms, two biases after sums per layer; the last norm; positions.
    CHECK(replicated == (group.size() == 1 ? divided.parameters.size() : config.layers * 6 + 3));
    // One bit of one process.
    nn::Parameter& last = *divided.parameters.back();
    if (group.rank() + 1 == group.size()) {
      std::vector<float> numbers = divided.engine.to_host<float>(last.value);
      numbers[3] = std::nextafter(numbers[3], 2.0F);
      divided.engine.write(last.value, std::as_bytes(std::span(numbers)));
    }
    const std::string message =
        test::message_of(ErrorKind::data, [&] { train::require_same(divided.engine, world(), replicas, "now"); });
    const std::string expected = fmt::format("rank 0: now: '{}' of rank {} is not that of rank", last.name, group.size() - 1);
    CHECK(test::has(message, group.size() == 1 ? "no error" : expected));
  }
}

TEST_CASE("a group draws the tokens and logits of one process", "[tensor_parallel]") {
  GptConfig config = config_for_groups();
  train::TensorGroup group(world());
  TensorRun one(config, nullptr);
  TensorRun divided(config, &group);
  const std::vector<std::int32_t> tokens = test::random_tokens(20, config.vocabulary, 1);
  const std::vector<float> logits = token_logits({one.engine, one.net}, tokens);
  CHECK(compare(token_logits({divided.engine, divided.net}, tokens), logits, 1e-5) == "");
  SampleOptions options;
  options.tokens = 60;  // more than a context
  options.count = 2;
  const auto drawn = sample({divided.engine, divided.net}, tokens, options);
  CHECK(drawn == sample({one.engine, one.net}, tokens, options));
  CHECK(drawn.front().size() == 60);
}

TEST_CASE("what a group cannot divide is refused by name", "[tensor_parallel]") {
  GptConfig config = config_for_groups();
  train::TensorGroup group(world());
  config.heads = 1;
  if (group.size() == 1) {
    CHECK_NOTHROW(Gpt(config, 0, &group));
    return;
  }
  CHECK(test::message_of(ErrorKind::usage, [&] { Gpt(config, 0, &group); }) ==
        "`heads`: 1; expected a multiple of the " + std::to_string(group.size()) + " processes that divide each layer");
}
