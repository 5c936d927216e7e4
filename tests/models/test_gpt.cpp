// The GPT: its sizes, its gradients, that a cache and a padded vocabulary change nothing, and what is drawn.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "core/random.h"
#include "models/gpt/language_task.h"
#include "models/gpt/sampler.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/finite_differences.h"
#include "tests/support/message_of.h"
#include "tests/support/parameters.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::chains;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::small_gpt;

namespace {

std::vector<double> all_gradients(nn::Engine& engine, const std::vector<nn::Parameter*>& parameters) {
  return test::all_of(engine, parameters, &nn::Parameter::gradient);
}

// A net with initial weights and one pass of its task, forward and backward.
struct GptRun {
  GptRun(const GptConfig& config, DType values, const std::string& backend, std::uint64_t logits_bytes = 1 << 27)
      : engine(test::device_of(backend), backend),
        net(config),
        task(net, 2, chains(config, 1), logits_bytes),
        parameters(nn::parameters_of(net)) {
    nn::initialise(engine, parameters, values, 3);
  }
  train::Loss pass(bool backward) {
    nn::Stash stash;
    nn::Pass pass{engine};
    pass.seed = seed;
    pass.step = 4;
    if (backward) pass.stash = &stash;
    train::LossSum sum(engine);
    sum.add(train::run_micro_batch(task, pass, 1));
    CHECK(stash.empty());
    kept = stash.peak_bytes();
    return sum.total();
  }

  nn::Engine engine;
  Gpt net;
  LanguageTask task;
  std::vector<nn::Parameter*> parameters;
  std::uint64_t seed = 9;
  std::uint64_t kept = 0;
};

}  // namespace

TEST_CASE("the named sizes have the parameters of their papers", "[gpt]") {
  const auto count = [](const char* name) {
    GptConfig config = config_of(find_gpt(name));
    config.vocabulary = 50257;
    return config.parameters();
  };
  // Radford et al. 2019 as released, plus 47 rows of padding.
  CHECK(count("gpt2-124m") == 124439808 + 47 * 768);
  CHECK(count("gpt2-355m") == 354823168 + 47 * 1024);
  CHECK(count("gpt2-774m") == 774030080 + 47 * 1280);
  CHECK(count("gpt2-1.5b") == 1557611200 + 47 * 1600);
  // Shoeybi et al. 2019, table 1, with the vocabulary padded to 51,200.
  CHECK(static_cast<double>(count("1.2b")) == Approx(1.213e9).epsilon(5e-4));
  CHECK(static_cast<double>(count("2.5b")) == Approx(2.490e9).epsilon(5e-4));
  CHECK(static_cast<double>(count("4.2b")) == Approx(4.199e9).epsilon(5e-4));
  CHECK(static_cast<double>(count("8.3b")) == Approx(8.317e9).epsilon(5e-4));
  GptConfig megatron = config_of(find_gpt("8.3b"));
  megatron.vocabulary = 50257;
  CHECK(megatron.padded_vocabulary() == 51200);
  for (const NamedGpt& named : named_gpts()) CHECK_NOTHROW(check(config_of(named)));
}

TEST_CASE("a net has as many parameters as its description says, with the deviations of Shoeybi et al. 2019", "[gpt]") {
  const bool small = GENERATE(false, true);  // as Huang et al. 2019 begin deep nets
  GptConfig config = config_of(find_gpt("tiny"));
  config.vocabulary = 257;
  config.small_feed_forward = small;
  Gpt net(config);
  nn::Engine engine;
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(net);
  nn::initialise(engine, parameters, DType::f32, 1);
  std::uint64_t count = 0;
  for (const nn::Parameter* parameter : parameters) {
    count += parameter->shape.size();
    if (parameter->shape.axes() < 2) continue;
    const std::vector<float> values = engine.to_host<float>(parameter->value);
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
    const bool last = has(parameter->name, "projection") || has(parameter->name, "second");
    double expected = last ? 0.02 / std::sqrt(2.0 * 4) : 0.02;
    if (small && has(parameter->name, "feed_forward")) expected = 0.02 / 4;
    INFO(parameter->name << ", small " << small);
    CHECK(std::sqrt(sum / static_cast<double>(values.size())) == Approx(expected).epsilon(0.02));
  }
  CHECK(count == config.parameters());
}

TEST_CASE("gradients of a GPT are those of finite differences", "[gpt]") {
  for (const double dropout : {0.0, 0.3}) {
    for (const bool recompute : {false, true}) {
      GptConfig config = small_gpt();
      config.dropout = dropout;
      config.recompute = recompute;
      INFO("dropout " << dropout << ", recompute " << recompute);
      GptRun run(config, DType::f64, "ref");
      run.pass(true);
      // A stash makes it a pass of training, with dropout.
      const auto [found, expected] = test::differences(run.engine, run.parameters, [&] { return run.pass(true).sum; });
      CHECK(compare(found, expected, 1e-6) == "");
    }
  }
}

// Ramesh et al. 2021, appendix D, 2.
TEST_CASE("a census of types: embeddings, gains, biases, logits and all gradients have 32 bits", "[gpt]") {
  const nn::MasterWeights masters = GENERATE(nn::MasterWeights::f32, nn::MasterWeights::none);
  nn::Engine engine;
  Gpt net(small_gpt());
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(net);
  nn::initialise(engine, parameters, DType::bf16, 1, masters);
  std::size_t narrow = 0;
  for (const nn::Parameter* parameter : parameters) {
    INFO(parameter->name);
    const bool is_matrix = has(parameter->name, "blocks.") && has(parameter->name, ".weight");
    CHECK(parameter->is_block_matrix() == is_matrix);
    const bool may_be_narrow = is_matrix && masters == nn::MasterWeights::none;
    CHECK(parameter->value.dtype() == (may_be_narrow ? DType::bf16 : DType::f32));
    CHECK(parameter->gradient.dtype() == DType::f32);
    narrow += may_be_narrow ? 1 : 0;
  }
  CHECK(narrow == (masters == nn::MasterWeights::none ? 4 * small_gpt().layers : 0));
  const nn::Tensor hidden = engine.zeros({3, net.config().width}, DType::bf16, nn::Use::activations);
  CHECK(net.head().logits(engine, hidden).dtype() == DType::f32);
}

TEST_CASE("clipped logits give the loss and gradients of clipping, in training alone", "[gpt]") {
  GptConfig config = small_gpt();
  GptRun plain(config, DType::f64, "ref");
  config.logit_clip = 1e6;
  GptRun far(config, DType::f64, "ref");
  config.logit_clip = 0.1;  // below about half of them
  GptRun run(config, DType::f64, "ref");
  CHECK(far.pass(true).sum == plain.pass(true).sum);
  CHECK(all_gradients(far.engine, far.parameters) == all_gradients(plain.engine, plain.parameters));
  CHECK(run.pass(false).sum == plain.pass(false).sum);
  const double loss = run.pass(true).sum;
  CHECK(loss != plain.pass(true).sum);
  // No probability is above e^0.1 / (1 + ... ) of the others' e^-0.1.
  const auto classes = static_cast<double>(config.vocabulary);
  CHECK(loss / (2 * 37) > std::log(1 + (classes - 1) * std::exp(-0.2)));
  CHECK(loss / (2 * 37) < std::log(1 + (classes - 1) * std::exp(0.2)));
  nn::clear_gradients(run.engine, run.parameters);
  run.pass(true);
  const auto [found, expected] = test::differences(run.engine, run.parameters, [&] { return run.pass(true).sum; });
  CHECK(compare(found, expected, 1e-6) == "");
}

TEST_CASE("logits in parts and padding change nothing", "[gpt]") {
  const GptConfig config = small_gpt();
  GptRun whole(config, DType::f64, "ref");
  GptRun parts(config, DType::f64, "ref", 1);  // 64 rows of 74
  const train::Loss loss = whole.pass(true);
  CHECK(loss.count == 2 * 37);
  CHECK(loss.sum / static_cast<double>(loss.count) == Approx(std::log(83.0)).epsilon(0.02));
  CHECK(parts.pass(true).sum == Approx(loss.sum).epsilon(1e-13));
  const std::vector<double> gradients = all_gradients(whole.engine, whole.parameters);
  CHECK(compare(all_gradients(parts.engine, parts.parameters), gradients, 1e-11) == "");
  // Rows of the table that no token has learn nothing.
  const std::vector<double> table = whole.engine.to_host<double>(whole.parameters[0]->gradient);
  REQUIRE(whole.parameters[0]->shape == nn::Shape{96, 24});
  CHECK(std::all_of(table.begin() + 83 * 24, table.end(), [](double g) { return g == 0; }));
  GptConfig unpadded = config;
  unpadded.vocabulary_multiple = 1;
  GptRun exact(unpadded, DType::f64, "ref");
  CHECK(exact.pass(false).sum == Approx(loss.sum).epsilon(1e-12));
}

TEST_CASE("recomputing blocks keeps less and gives the same bits, dropout and few bits included", "[gpt]") {
  for (const unsigned bits : {0U, 3U}) {
    GptConfig config = small_gpt();
    config.dropout = 0.2;
    config.activation_bits = bits;
    GptRun kept(config, DType::f32, "cpu");
    config.recompute = true;
    GptRun again(config, DType::f32, "cpu");
    CHECK(kept.pass(true).sum == again.pass(true).sum);
    CHECK(all_gradients(kept.engine, kept.parameters) == all_gradients(again.engine, again.parameters));
    CHECK(again.kept < kept.kept / 3);
    CHECK(kept.kept == kept.net.peak_stash_bytes({2, 37}, DType::f32));
  }
}

TEST_CASE("what is kept of activations takes the bits asked for", "[gpt]") {
  GptConfig config = small_gpt();
  GptRun all(config, DType::f32, "cpu");
  all.pass(true);
  for (const unsigned bits : {1U, 2U, 3U, 4U}) {
    config.activation_bits = bits;
    GptRun few(config, DType::f32, "cpu");
    few.pass(true);
    const std::uint64_t elements = 2 * 37 * 4 * 24;
    CHECK(all.kept - few.kept == 2 * (elements * 4 - (elements * bits + 7) / 8));
  }
}

TEST_CASE("what ActNN's quantiser keeps is predicted, the same for blocks computed again, and like all bits in the mean",
          "[gpt]") {
  GptConfig config = small_gpt();
  GptRun all(config, DType::f32, "cpu");
  all.pass(true);
  const std::vector<double> exact = all_gradients(all.engine, all.parameters);
  const auto distance = [&](unsigned bits, std::size_t seeds) {
    config.activation_bits = bits;
    config.activation_quantiser = nn::Quantiser::act_nn;
    std::uint64_t kept = 0;
    std::vector<double> sum(exact.size());
    for (std::size_t seed = 0; seed < seeds; ++seed) {
      GptRun few(config, DType::f32, "cpu");
      few.seed = seed;
      few.pass(true);
      kept = few.kept;
      const std::vector<double> gradients = all_gradients(few.engine, few.parameters);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradients[i] / static_cast<double>(seeds);
    }
    const std::uint64_t elements = 2 * 37 * 4 * 24;
    CHECK(all.kept - kept == 2 * (elements * 4 - (elements * bits + 7) / 8 - (elements + 255) / 256 * 8));
    double squares = 0, all_squares = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      squares += (sum[i] - exact[i]) * (sum[i] - exact[i]);
      all_squares += exact[i] * exact[i];
    }
    return std::sqrt(squares / all_squares);
  };
  const double one = distance(4, 1);
  CHECK(one > 1e-5);
  CHECK(one < 0.1);
  CHECK(distance(4, 16) < 0.6 * one);  // errors of one seed are independent of those of another
  CHECK(distance(2, 1) > 2 * one);
  config.activation_bits = 2;
  GptRun kept(config, DType::f32, "cpu");
  config.recompute = true;
  GptRun again(config, DType::f32, "cpu");
  kept.pass(true);
  again.pass(true);
  CHECK(all_gradients(kept.engine, kept.parameters) == all_gradients(again.engine, again.parameters));
}

TEST_CASE("loss and gradients of a GPT are those of plain loops on every backend, in every type", "[gpt][backends]") {
  struct Type {
    DType dtype;
    double loss, gradients;  // limits
  };
  for (const unsigned bits : {0U, 4U}) {
    GptConfig config = small_gpt();
    config.activation_bits = bits;
    config.dropout = bits == 0 ? 0.2 : 0;
    GptRun exact(config, DType::f64, "ref");
    const double loss = exact.pass(true).sum;
    const std::vector<double> gradients = all_gradients(exact.engine, exact.parameters);
    for (const std::string& backend : test::tested_backends()) {
      for (const Type& type : {Type{DType::f32, 1e-6, 1e-4}, Type{DType::bf16, 1e-3, 0.2}, Type{DType::f16, 1e-4, 0.03}}) {
        if (!nn::Engine(test::device_of(backend), backend).supports(type.dtype)) continue;
        INFO(backend << ", " << dtype_name(type.dtype) << ", " << bits << " bits");
        GptRun run(config, type.dtype, backend);
        CHECK(run.pass(true).sum == Approx(loss).epsilon(type.loss));
        // With few bits an element next to a boundary may fall on its other side, and its derivative is another then.
        const double limit = bits == 0 ? type.gradients : std::max(type.gradients, 0.05);
        CHECK(compare(all_gradients(run.engine, run.parameters), gradients, limit) == "");
      }
    }
  }
}

TEST_CASE("a GPT learns chains", "[gpt]") {
  for (const DType values : {DType::f32, DType::bf16}) {
    GptConfig config = small_gpt();
    config.dropout = 0.05;
    nn::Engine engine;
    Gpt net(config);
    LanguageTask task(net, 4, chains(config, 2));
    train::TrainOptions options;
    options.values = values;
    options.micro_batches = 2;
    options.rate.peak = 0.01;
    options.rate.warmup = 10;
    options.optimizer.clip = 1;
    train::Trainer trainer(engine, task, options);
    const double first = trainer.step().loss;
    for (int i = 0; i < 200; ++i) trainer.step();
    const train::Loss loss = trainer.evaluate(1000, 0, 2);
    CHECK(first > 4.2);
    CHECK(loss.sum / static_cast<double>(loss.count) < 1.2);  // half of a token is chance: ln 2
  }
}

// Its free memory must not decide what a machine learns, nor the number of processes: dropout goes by example.
TEST_CASE("a GPT with dropout learns the same in any micro-batches", "[gpt]") {
  constexpr std::size_t batch = 4;
  for (const std::size_t width : {24U, 21U}) {  // elements of an example: a multiple of 8, or not
    std::vector<double> expected;
    for (const std::size_t sequences : {4U, 2U, 1U}) {
      INFO(width << " wide, micro-batches of " << sequences);
      GptConfig config = test::small_gpt();
      config.width = width;
      config.dropout = 0.3;
      nn::Engine engine;
      Gpt net(config);
      const LanguageTask::Source one = test::chains(config, batch);
      const auto some = [&](std::uint64_t step, std::uint64_t which, std::span<std::int32_t> x, std::span<std::int32_t> y) {
        const std::size_t tokens = config.context;
        for (std::size_t i = 0; i < sequences; ++i) {
          one(step, which * sequences + i, x.subspan(i * tokens, tokens), y.subspan(i * tokens, tokens));
        }
      };
      LanguageTask task(net, sequences, some);
      train::TrainOptions options;
      options.micro_batches = batch / sequences;
      options.rate.peak = 0.3;
      options.optimizer.rule = "sgd";
      train::Trainer trainer(engine, task, options);
      std::vector<double> losses;
      for (int i = 0; i < 4; ++i) losses.push_back(trainer.step().loss);
      if (expected.empty()) expected = losses;
      CHECK(test::compare(losses, expected, 1e-5) == "");
    }
  }
}

TEST_CASE("what a GPT cannot take is said", "[gpt]") {
  GptConfig config = small_gpt();
  config.heads = 5;
  CHECK(message_of(ErrorKind::usage, [&] { Gpt net(config); }) == "`heads`: 5; expected a divisor of the width, 24");
  config = small_gpt();
  config.activation_bits = 5;
  CHECK(has(message_of(ErrorKind::usage, [&] { Gpt net(config); }), "`activation_bits`: 5"));
  config = small_gpt();
  config.activation = "gelo";
  CHECK(has(message_of(ErrorKind::usage, [&] { Gpt net(config); }), "`activation`"));
  CHECK(has(message_of(ErrorKind::usage, [&] { Gpt net(small_gpt(), 38); }), "38 tokens"));
  CHECK(has(message_of(ErrorKind::usage, [&] { find_gpt("gpt2-125m"); }), "gpt2-124m"));
  nn::Engine engine;
  Gpt net(small_gpt());
  nn::initialise(engine, nn::parameters_of(net), DType::f32, 1);
  const auto refuses = [&](const std::vector<std::int32_t>& prompt, const SampleOptions& options, const char* text) {
    CHECK(has(message_of(ErrorKind::usage, [&] { sample({engine, net}, prompt, options); }), text));
  };
  refuses({}, {}, "`prompt`: no tokens");
  refuses({83}, {}, "token 83");
  refuses({-1}, {}, "token -1");
  SampleOptions options;
  options.temperature = -1;
  refuses({1}, options, "`temperature`: -1");
  options = {};
  options.top_p = 0;
  refuses({1}, options, "`top_p`: 0");
  options = {};
  options.count = 0;
  refuses({1}, options, "`count`: 0");
}

TEST_CASE("a GPT's description survives, and damage to it is found", "[gpt]") {
  GptConfig config = small_gpt();
  config.activation = "gelu";
  config.dropout = 0.25;
  const std::string text = to_json(config).dump();
  CHECK(to_json(parse_gpt_config(text, "it")) == to_json(config));
  CHECK(has(message_of(ErrorKind::data, [&] { parse_gpt_config("[1]", "file.x"); }), "file.x"));
  nlohmann::json json = to_json(config);
  json["heads"] = 7;
  CHECK(has(message_of(ErrorKind::data, [&] { parse_gpt_config(json.dump(), "file.x"); }), "file.x: `heads`: 7"));
  json = to_json(config);
  json.erase("width");
  CHECK(has(message_of(ErrorKind::data, [&] { parse_gpt_config(json.dump(), "file.x"); }), "'width' is missing"));
}
