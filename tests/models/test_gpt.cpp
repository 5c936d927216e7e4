// The GPT: its sizes, its gradients, that a cache and a padded vocabulary change nothing, and what is drawn.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "core/random.h"
#include "models/gpt/language_task.h"
#include "models/gpt/memory.h"
#include "models/gpt/sampler.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "train/memory.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::small_gpt;

namespace {

// Sequences in which every token follows from the one before, but for some noise.
LanguageTask::Source chains(const GptConfig& config, std::size_t per_step) {
  return [config, per_step](std::uint64_t step, std::uint64_t micro_batch, std::span<std::int32_t> inputs,
                            std::span<std::int32_t> targets) {
    Random random(5, Stream::test, step * per_step + micro_batch);
    auto token = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(config.vocabulary)));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = token;
      token = static_cast<std::int32_t>((7 * static_cast<std::uint32_t>(token) + 1 + random.below(2)) % config.vocabulary);
      targets[i] = token;
    }
  };
}

std::vector<double> all_gradients(nn::Engine& engine, const std::vector<nn::Parameter*>& parameters) {
  std::vector<double> all;
  for (const nn::Parameter* parameter : parameters) {
    if (parameter->gradient.dtype() == DType::f64) {
      const std::vector<double> each = engine.to_host<double>(parameter->gradient);
      all.insert(all.end(), each.begin(), each.end());
    } else {
      const std::vector<float> each = engine.to_host<float>(parameter->gradient);
      all.insert(all.end(), each.begin(), each.end());
    }
  }
  return all;
}

// A net with initial weights and one pass of its task, forward and backward.
struct Run {
  Run(const GptConfig& config, DType values, const std::string& backend, std::uint64_t logits_bytes = 1 << 27)
      : engine({}, backend), net(config), task(net, 2, chains(config, 1), logits_bytes), parameters(nn::parameters_of(net)) {
    nn::initialise(engine, parameters, values, 3);
  }
  train::Loss pass(bool backward) {
    nn::Stash stash;
    nn::Pass pass{engine};
    pass.seed = 9;
    pass.step = 4;
    if (backward) pass.stash = &stash;
    const train::Loss loss = task.run(pass, 1);
    CHECK(stash.empty());
    kept = stash.peak_bytes();
    return loss;
  }

  nn::Engine engine;
  Gpt net;
  LanguageTask task;
  std::vector<nn::Parameter*> parameters;
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
  // Seed 002, table 1, with the vocabulary padded to 51,200.
  CHECK(static_cast<double>(count("1.2b")) == Approx(1.213e9).epsilon(5e-4));
  CHECK(static_cast<double>(count("2.5b")) == Approx(2.490e9).epsilon(5e-4));
  CHECK(static_cast<double>(count("4.2b")) == Approx(4.199e9).epsilon(5e-4));
  CHECK(static_cast<double>(count("8.3b")) == Approx(8.317e9).epsilon(5e-4));
  GptConfig megatron = config_of(find_gpt("8.3b"));
  megatron.vocabulary = 50257;
  CHECK(megatron.padded_vocabulary() == 51200);
  for (const NamedGpt& named : named_gpts()) CHECK_NOTHROW(check(config_of(named)));
}

TEST_CASE("a net has as many parameters as its description says, with the deviations of seed 002", "[gpt]") {
  GptConfig config = config_of(find_gpt("tiny"));
  config.vocabulary = 257;
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
    const double expected = last ? 0.02 / std::sqrt(2.0 * 4) : 0.02;
    INFO(parameter->name);
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
      Run run(config, DType::f64, "ref");
      run.pass(true);
      std::vector<std::vector<double>> gradients;  // further passes would add to them
      for (const nn::Parameter* each : run.parameters) gradients.push_back(run.engine.to_host<double>(each->gradient));
      std::vector<double> expected;
      std::vector<double> found;
      for (std::size_t p = 0; p < gradients.size(); ++p) {
        nn::Parameter* parameter = run.parameters[p];
        std::vector<double> values = run.engine.to_host<double>(parameter->value);
        const std::vector<double>& gradient = gradients[p];
        // The steepest element, and one at random.
        const auto steepest =
            std::max_element(gradient.begin(), gradient.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
        const std::size_t other = Random(1, Stream::test, values.size()).below(static_cast<std::uint32_t>(values.size()));
        for (const std::size_t i : {static_cast<std::size_t>(steepest - gradient.begin()), other}) {
          const double middle = values[i];
          const auto loss_at = [&](double value) {
            values[i] = value;
            run.engine.write(parameter->value, std::as_bytes(std::span(values)));
            // A stash makes it a pass of training, with dropout.
            return run.pass(true).sum;
          };
          const double step = 1e-5;
          const double above = loss_at(middle + step);
          const double below = loss_at(middle - step);
          loss_at(middle);
          found.push_back((above - below) / (2 * step));
          expected.push_back(gradient[i]);
        }
      }
      CHECK(compare(found, expected, 1e-6) == "");
    }
  }
}

TEST_CASE("logits in parts and padding change nothing", "[gpt]") {
  const GptConfig config = small_gpt();
  Run whole(config, DType::f64, "ref");
  Run parts(config, DType::f64, "ref", 1);  // 64 rows of 74
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
  Run exact(unpadded, DType::f64, "ref");
  CHECK(exact.pass(false).sum == Approx(loss.sum).epsilon(1e-12));
}

TEST_CASE("recomputing blocks keeps less and gives the same bits, dropout and few bits included", "[gpt]") {
  for (const unsigned bits : {0U, 3U}) {
    GptConfig config = small_gpt();
    config.dropout = 0.2;
    config.activation_bits = bits;
    Run kept(config, DType::f32, "cpu");
    config.recompute = true;
    Run again(config, DType::f32, "cpu");
    CHECK(kept.pass(true).sum == again.pass(true).sum);
    CHECK(all_gradients(kept.engine, kept.parameters) == all_gradients(again.engine, again.parameters));
    CHECK(again.kept < kept.kept / 3);
    CHECK(kept.kept == kept.net.peak_stash_bytes({2, 37}, DType::f32));
  }
}

TEST_CASE("what is kept of activations takes the bits asked for", "[gpt]") {
  GptConfig config = small_gpt();
  Run all(config, DType::f32, "cpu");
  all.pass(true);
  for (const unsigned bits : {1U, 2U, 3U, 4U}) {
    config.activation_bits = bits;
    Run few(config, DType::f32, "cpu");
    few.pass(true);
    const std::uint64_t elements = 2 * 37 * 4 * 24;
    CHECK(all.kept - few.kept == 2 * (elements * 4 - (elements * bits + 7) / 8));
  }
}

TEST_CASE("the cpu backend agrees with plain loops, in both types", "[gpt]") {
  for (const unsigned bits : {0U, 4U}) {
    GptConfig config = small_gpt();
    config.activation_bits = bits;
    Run exact(config, DType::f64, "ref");
    const double loss = exact.pass(true).sum;
    const std::vector<double> gradients = all_gradients(exact.engine, exact.parameters);
    Run single(config, DType::f32, "cpu");
    CHECK(single.pass(true).sum == Approx(loss).epsilon(1e-6));
    CHECK(compare(all_gradients(single.engine, single.parameters), gradients, bits == 0 ? 1e-4 : 0.05) == "");
    Run half(config, DType::bf16, "cpu");
    CHECK(half.pass(true).sum == Approx(loss).epsilon(1e-3));
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

TEST_CASE("tokens drawn with a cache are those drawn without", "[gpt]") {
  for (const DType values : {DType::f32, DType::bf16}) {
    bitloom::test::SharpGpt gpt(small_gpt(), values);
    nn::Engine& engine = gpt.engine;
    Gpt& net = gpt.net;
    SampleOptions options;
    options.tokens = 90;  // more than two contexts
    options.count = 3;
    options.seed = 5;
    const std::vector<std::int32_t> prompt = {3, 1, 4, 1, 5};
    const auto cached = sample(engine, net, prompt, options);
    options.cache = false;
    const auto plain = sample(engine, net, prompt, options);
    REQUIRE(cached.size() == 3);
    CHECK(cached[0].size() == 90);
    CHECK(cached[0] != cached[1]);
    if (values == DType::f32) CHECK(cached == plain);
    // In bf16 a tie may fall differently: compare what comes before the first that does.
    if (values == DType::bf16) CHECK(std::equal(cached[0].begin(), cached[0].begin() + 10, plain[0].begin()));
    // One sample alone is the first of many.
    options.cache = true;
    options.count = 1;
    CHECK(sample(engine, net, prompt, options)[0] == cached[0]);
    // It ends behind the token that ends it.
    options.end = cached[0][20];
    const auto place = std::find(cached[0].begin(), cached[0].end(), options.end);
    const auto ended = sample(engine, net, prompt, options);
    CHECK(ended[0] == std::vector<std::int32_t>(cached[0].begin(), place));
  }
}

TEST_CASE("draws have the probabilities of the logits, the likeliest alone where that is asked for", "[gpt]") {
  const std::vector<float> logits = {0.5F, 2.0F, -1.0F, 2.0F, 0.0F};
  const auto shares = [&](const SampleOptions& options) {
    std::vector<double> counts(logits.size());
    constexpr int draws = 10000;
    for (int i = 0; i < draws; ++i) {
      counts[static_cast<std::size_t>(draw(logits, options, (i + 0.5) / draws))] += 1.0 / draws;
    }
    return counts;
  };
  const auto softmax = [&](const std::vector<std::size_t>& kept, double temperature) {
    std::vector<double> p(logits.size());
    double sum = 0;
    for (const std::size_t i : kept) sum += p[i] = std::exp(static_cast<double>(logits[i]) / temperature);
    for (double& each : p) each /= sum;
    return p;
  };
  SampleOptions options;
  CHECK(compare(shares(options), softmax({0, 1, 2, 3, 4}, 1), 2e-3) == "");
  options.temperature = 0.5;
  CHECK(compare(shares(options), softmax({0, 1, 2, 3, 4}, 0.5), 2e-3) == "");
  options.top_k = 3;
  CHECK(compare(shares(options), softmax({0, 1, 3}, 0.5), 2e-3) == "");
  options = {};
  options.top_p = 0.85;  // the two at 2.0 have 0.83
  CHECK(compare(shares(options), softmax({0, 1, 3}, 1), 2e-3) == "");
  options.top_k = 1;
  CHECK(compare(shares(options), softmax({1}, 1), 2e-3) == "");
  options = {};
  options.temperature = 0;
  CHECK(draw(logits, options, 0.99) == 1);
}

TEST_CASE("what a GPT cannot take is said", "[gpt]") {
  GptConfig config = small_gpt();
  config.heads = 5;
  CHECK(message_of(ErrorKind::usage, [&] { Gpt net(config); }) == "--heads: 5; expected a divisor of the width, 24");
  config = small_gpt();
  config.activation_bits = 5;
  CHECK(has(message_of(ErrorKind::usage, [&] { Gpt net(config); }), "--activation-bits: 5"));
  config = small_gpt();
  config.activation = "gelo";
  CHECK(has(message_of(ErrorKind::usage, [&] { Gpt net(config); }), "--activation"));
  CHECK(has(message_of(ErrorKind::usage, [&] { Gpt net(small_gpt(), 38); }), "38 tokens"));
  CHECK(has(message_of(ErrorKind::usage, [&] { find_gpt("gpt2-125m"); }), "gpt2-124m"));
  nn::Engine engine;
  Gpt net(small_gpt());
  nn::initialise(engine, nn::parameters_of(net), DType::f32, 1);
  const auto refuses = [&](const std::vector<std::int32_t>& prompt, const SampleOptions& options, const char* text) {
    CHECK(has(message_of(ErrorKind::usage, [&] { sample(engine, net, prompt, options); }), text));
  };
  refuses({}, {}, "--prompt: no tokens");
  refuses(std::vector<std::int32_t>(37, 1), {}, "--prompt: 37 tokens; expected fewer than the context, 37");
  refuses({83}, {}, "token 83");
  refuses({-1}, {}, "token -1");
  SampleOptions options;
  options.temperature = -1;
  refuses({1}, options, "--temperature: -1");
  options = {};
  options.top_p = 0;
  refuses({1}, options, "--top-p: 0");
  options = {};
  options.count = 0;
  refuses({1}, options, "--count: 0");
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
  CHECK(has(message_of(ErrorKind::data, [&] { parse_gpt_config(json.dump(), "file.x"); }), "file.x: --heads: 7"));
  json = to_json(config);
  json.erase("width");
  CHECK(has(message_of(ErrorKind::data, [&] { parse_gpt_config(json.dump(), "file.x"); }), "'width' is missing"));
}

TEST_CASE("memory is predicted within 2%, with everything kept, few bits and blocks computed again", "[gpt]") {
  for (const DType values : {DType::f32, DType::bf16}) {
    for (const unsigned bits : {0U, 3U}) {
      for (const bool recompute : {false, true}) {
        INFO(dtype_name(values) << ", bits " << bits << ", recompute " << recompute);
        GptConfig config = small_gpt();
        config.dropout = 0.1;
        config.activation_bits = bits;
        config.recompute = recompute;
        nn::Engine engine;
        Gpt net(config);
        LanguageTask task(net, 4, chains(config, 2));
        train::TrainOptions options;
        options.values = values;
        options.micro_batches = 2;
        options.optimizer.average = 0.9;
        train::Trainer trainer(engine, task, options);
        trainer.step();
        const GptMemory needs = predict_memory(config, 4, options);
        const auto near = [&](nn::Use use, std::uint64_t predicted) {
          INFO(nn::name_of(use));
          CHECK(static_cast<double>(engine.pool().count(use).peak) == Approx(static_cast<double>(predicted)).epsilon(0.02));
        };
        near(nn::Use::parameters, needs.parameters);
        near(nn::Use::gradients, needs.gradients);
        near(nn::Use::optimizer, needs.optimizer);
        near(nn::Use::stash, needs.stash);
        CHECK(engine.pool().total().peak < 1.1 * static_cast<double>(needs.total()));
        CHECK(engine.pool().total().peak > 0.6 * static_cast<double>(needs.total()));
      }
    }
  }
}

TEST_CASE("savings are counted as the paper counts them", "[gpt]") {
  GptConfig config = config_of(find_gpt("gpt2-124m"));
  config.context = 256;
  const auto check_printed = [&](const std::vector<double>& per_cent) {
    for (unsigned bits = 1; bits <= 4; ++bits) {
      // As printed, in whole per cent.
      CHECK(std::abs(100 * paper_saving(config, bits) - per_cent[bits - 1]) < 0.51);
    }
  };
  check_printed({42, 41, 39, 38});
  config.activation = "gelu";  // RoBERTa-base has the same sizes
  check_printed({16, 15, 15, 14});
}

TEST_CASE("a micro-batch is chosen that fits", "[gpt]") {
  GptConfig config = config_of(find_gpt("small"));
  config.vocabulary = 257;
  const train::TrainOptions options;
  const std::uint64_t one = predict_memory(config, 1, options).total();
  CHECK(choose_micro_batch(config, 24, options, one) == 1);
  CHECK(has(message_of(ErrorKind::usage, [&] { choose_micro_batch(config, 24, options, one - 1); }),
            "--micro-batch: one sequence"));
  CHECK(choose_micro_batch(config, 24, options, predict_memory(config, 7, options).total()) == 6);
  // 16 sequences have 4096 tokens; 24 are the next divisor.
  CHECK(choose_micro_batch(config, 48, options, 1ULL << 40) == 16);
  CHECK(choose_micro_batch(config, 24, options, 1ULL << 40) == 24);
  CHECK(largest_micro_batch(config, options, one - 1) == 0);
  const std::size_t most = largest_micro_batch(config, options, 1ULL << 30);
  CHECK(predict_memory(config, most, options).total() <= 1ULL << 30);
  CHECK(predict_memory(config, most + 1, options).total() > 1ULL << 30);
}
