// The transformer over text and image: its sizes, which tokens see which, its loss, its gradients, and that a cache changes
// nothing.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/random.h"
#include "data/pairs/pair_batches.h"
#include "data/pairs/synth_pairs.h"
#include "models/dalle/dalle_task.h"
#include "models/dalle/pairs.h"
#include "models/dalle/sampler.h"
#include "nn/floats.h"
#include "nn/layers/tokens.h"
#include "tests/models/dalle_nets.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/finite_differences.h"
#include "tests/support/message_of.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::small_dalle;

namespace {

// Texts of 3 and 5 tokens.
DalleBatch small_batch(const DalleConfig& config) {
  DalleBatch batch{{1, 6, 2, -1, -1, 0, 5, 4, 3, 2}, {}};
  Random random(8, Stream::test, 0);
  for (std::size_t i = 0; i < 2 * config.image(); ++i) {
    batch.codes.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(config.codes))));
  }
  return batch;
}

struct DalleRun {
  DalleRun(const DalleConfig& config, DType values, const std::string& backend)
      : engine(test::device_of(backend), backend),
        net(config),
        batch(small_batch(config)),
        task(
            net, 2, [this](std::uint64_t, std::uint64_t) { return batch; },
            [this](std::uint64_t) {
              return DalleTokens{text_tokens_of(net.config(), batch.text), batch.codes.size()};
            }),
        parameters(nn::parameters_of(net.layers())) {
    nn::initialise(engine, parameters, values, 3);
  }

  // Mean loss, as the trainer has it.
  double loss(bool backward) {
    nn::clear_gradients(engine, parameters);
    nn::Stash stash;
    nn::Pass pass{engine};
    pass.seed = 9;
    if (backward) pass.stash = &stash;
    const double scale = 1.0 / static_cast<double>(task.targets(0, 1));
    train::LossSum sum(engine);
    sum.add(train::run_micro_batch(task, pass, scale));
    nn::settle_gradients(engine, parameters);
    CHECK(stash.empty());
    const train::Loss loss = sum.total();
    CHECK(loss.count == task.targets(0, 1));
    return loss.sum / static_cast<double>(loss.count);
  }

  nn::Tensor hidden(std::span<const std::int32_t> ids, std::size_t tokens, nn::KeyValueCache* cache = nullptr) {
    nn::Pass pass{engine};
    pass.training = false;
    pass.cache = cache;
    return net.layers().forward(pass, engine.from(ids, {ids.size() / tokens, tokens}, nn::Use::data));
  }

  nn::Parameter& parameter(const std::string& name) {
    return **std::ranges::find(parameters, name, [](const nn::Parameter* each) { return each->name; });
  }

  nn::Engine engine;
  Dalle net;
  DalleBatch batch;
  DalleTask task;
  std::vector<nn::Parameter*> parameters;
};

}  // namespace

TEST_CASE("the sizes of a text-to-image transformer are the paper's", "[dalle]") {
  DalleConfig config = config_of(find_dalle("12b"));
  config.text_vocabulary = 16384;
  check(config);
  CHECK(config.width / config.heads == 64);
  std::array<std::size_t, 3> counts{};
  for (std::size_t i = 0; i < config.layers; ++i) ++counts[static_cast<std::size_t>(config.attention_of(i))];
  CHECK(counts == std::array<std::size_t, 3>{47, 16, 1});
  // The first four are row, column, row, row.
  CHECK(config.attention_of(0) == ImageAttention::row);
  CHECK(config.attention_of(1) == ImageAttention::column);
  CHECK(config.attention_of(2) == ImageAttention::row);
  CHECK(config.attention_of(3) == ImageAttention::row);
  for (const auto& [name, expected] : {std::pair("2.8b", 2.83e9), std::pair("5.6b", 5.55e9), std::pair("12b", 12.09e9)}) {
    DalleConfig each = config_of(find_dalle(name));
    each.text_vocabulary = 16384;
    const double blocks = 12.0 * static_cast<double>(each.layers * each.width * each.width);
    CHECK(blocks == Approx(expected).epsilon(2e-3));
    CHECK(static_cast<double>(each.parameters()) == Approx(blocks).epsilon(0.04));
  }
  Dalle small(small_dalle());
  std::uint64_t count = 0;
  for (const nn::Parameter* parameter : nn::parameters_of(small.layers())) count += parameter->shape.size();
  CHECK(count == small_dalle().parameters());
  CHECK(to_json(parse_dalle_config(to_json(config).dump(), "it")) == to_json(config));
}

TEST_CASE("no token sees a later one, and an image sees all of its text", "[dalle]") {
  for (const std::string backend : {"ref", "cpu"}) {
    DalleRun run(small_dalle(), DType::f32, backend);
    const DalleConfig& config = run.net.config();
    std::vector<std::int32_t> ids = inputs_of(config, run.batch);
    const std::size_t tokens = config.tokens();
    ids.resize(tokens);
    const std::vector<float> before = run.engine.to_host<float>(run.hidden(ids, tokens));
    const auto changed_by = [&](std::size_t changed) {
      std::vector<std::int32_t> other = ids;
      if (changed < config.text) {
        other[changed] = (other[changed] + 1) % static_cast<std::int32_t>(config.text_vocabulary);
      } else {
        const auto codes = static_cast<std::int32_t>(config.code_id(0));
        other[changed] = codes + (other[changed] - codes + 1) % static_cast<std::int32_t>(config.codes);
      }
      const std::vector<float> after = run.engine.to_host<float>(run.hidden(other, tokens));
      std::vector<std::size_t> differing;
      for (std::size_t t = 0; t < tokens; ++t) {
        const auto begin = static_cast<std::ptrdiff_t>(t * config.width);
        const auto end = begin + static_cast<std::ptrdiff_t>(config.width);
        if (!std::equal(before.begin() + begin, before.begin() + end, after.begin() + begin)) differing.push_back(t);
      }
      return differing;
    };
    for (std::size_t changed = 0; changed < tokens; ++changed) {
      const std::vector<std::size_t> differing = changed_by(changed);
      INFO(backend << " " << changed);
      REQUIRE_FALSE(differing.empty());
      CHECK(differing.front() == changed);
      if (changed < config.text) CHECK(differing.size() == tokens - changed);
    }
  }
}

TEST_CASE("64 layers train for a step, and all of them learn", "[dalle]") {
  DalleConfig config = small_dalle();
  config.layers = 64;
  DalleRun run(config, DType::f32, "cpu");
  CHECK(std::isfinite(run.loss(true)));
  std::size_t blocks = 0;
  for (const nn::Parameter* parameter : run.parameters) {
    if (!parameter->name.ends_with("second.weight")) continue;
    const std::vector<float> gradient = nn::to_floats(run.engine, parameter->gradient);
    INFO(parameter->name);
    CHECK(std::ranges::all_of(gradient, [](float each) { return std::isfinite(each); }));
    CHECK(std::ranges::any_of(gradient, [](float each) { return each != 0; }));
    ++blocks;
  }
  CHECK(blocks == 64);
}

TEST_CASE("the loss is an eighth the text's and seven eighths the image's, each by its own tokens", "[dalle]") {
  DalleRun run(small_dalle(), DType::f64, "ref");
  const DalleConfig& config = run.net.config();
  // Texts of 3 and 5 tokens: all but the first of each are asked for.
  CHECK(text_tokens_of(config, run.batch.text) == 2 + 4);
  for (const char* head : {"head.text", "head.codes"}) nn::fill(run.engine, run.parameter(head).value, 0);
  CHECK(run.loss(false) == Approx(std::log(7.0) / 8 + 7 * std::log(6.0) / 8).epsilon(1e-12));
  nn::initialise(run.engine, run.parameters, DType::f64, 4);
  const std::vector<std::int32_t> ids = inputs_of(config, run.batch);
  const nn::Tensor hidden = run.hidden(ids, config.tokens());
  const DallePartLosses parts = dalle_losses(run.engine, run.net, hidden, run.batch, 1, 1, nullptr);
  const auto mean = [&](const nn::Tensor& losses, double count) {
    double sum = 0;
    for (const double loss : run.engine.to_host<double>(losses)) sum += loss;
    return sum / count;
  };
  CHECK(parts.text.size() == 2 * 4);
  CHECK(run.loss(true) == Approx(mean(parts.text, 6) / 8 + 7 * mean(parts.image, 32) / 8).epsilon(1e-12));
}

TEST_CASE("gradients of a text-to-image transformer are those of finite differences", "[dalle]") {
  for (const bool recompute : {false, true}) {
    DalleConfig config = small_dalle();
    config.dropout = 0.2;
    config.recompute = recompute;
    DalleRun run(config, DType::f64, "ref");
    run.loss(true);
    const auto [found, expected] = test::differences(run.engine, run.parameters, [&] { return run.loss(true); });
    CHECK(compare(found, expected, 1e-6) == "");
  }
}

TEST_CASE("a padding token learns only where it stands", "[dalle]") {
  DalleRun run(small_dalle(), DType::f64, "ref");
  const DalleConfig& config = run.net.config();
  run.loss(true);
  const std::vector<double> table = run.engine.to_host<double>(run.parameter("embedding.inputs").gradient);
  const auto learns = [&](std::size_t id) {
    const auto row = table.begin() + static_cast<std::ptrdiff_t>(id * config.width);
    return std::any_of(row, row + static_cast<std::ptrdiff_t>(config.width), [](double g) { return g != 0; });
  };
  for (std::size_t t = 0; t < config.text; ++t) CHECK(learns(config.padding_id(t)) == (t >= 3));
}

TEST_CASE("a cache of keys and values changes no token's state", "[dalle]") {
  for (const std::string backend : {"ref", "cpu"}) {
    DalleRun run(small_dalle(), DType::f32, backend);
    const std::size_t tokens = run.net.config().tokens();
    const std::vector<std::int32_t> ids = inputs_of(run.net.config(), run.batch);
    const std::vector<float> whole = run.engine.to_host<float>(run.hidden(ids, tokens));
    nn::KeyValueCache cache(2, tokens);
    std::vector<float> parts(whole.size());
    std::size_t begin = 0;
    for (const std::size_t count : {std::size_t{5}, std::size_t{1}, std::size_t{7}, std::size_t{1}, std::size_t{7}}) {
      std::vector<std::int32_t> some;
      for (std::size_t b = 0; b < 2; ++b) {
        const auto first = ids.begin() + static_cast<std::ptrdiff_t>(b * tokens + begin);
        some.insert(some.end(), first, first + static_cast<std::ptrdiff_t>(count));
      }
      cache.begin(count);
      const std::vector<float> states = run.engine.to_host<float>(run.hidden(some, count, &cache));
      cache.end();
      const std::size_t size = count * run.net.config().width;
      for (std::size_t b = 0; b < 2; ++b) {
        std::copy_n(states.begin() + static_cast<std::ptrdiff_t>(b * size), size,
                    parts.begin() + static_cast<std::ptrdiff_t>((b * tokens + begin) * run.net.config().width));
      }
      begin += count;
    }
    REQUIRE(begin == tokens);
    CHECK(compare(parts, whole, 1e-5) == "");
  }
}

TEST_CASE("column layers of larger grids are computed column by column, and nothing else changes", "[dalle]") {
  DalleConfig config = small_dalle();
  config.grid = 16;
  DalleRun run(config, DType::f32, "cpu");
  const std::size_t tokens = config.tokens();
  const std::vector<std::int32_t> ids = inputs_of(run.net.config(), run.batch);
  const std::vector<float> whole = run.engine.to_host<float>(run.hidden(ids, tokens));
  nn::KeyValueCache cache(2, tokens);  // with which tokens are computed as they stand
  cache.begin(tokens);
  CHECK(compare(whole, run.engine.to_host<float>(run.hidden(ids, tokens, &cache)), 1e-5) == "");
  cache.end();
}

TEST_CASE("a text-to-image transformer learns pairs by heart", "[dalle]") {
  DalleRun run(small_dalle(), DType::f32, "cpu");
  train::TrainOptions options;
  options.rate.peak = 1e-2;
  train::Trainer trainer(run.engine, run.task, options);
  const double first = trainer.step().loss;
  CHECK(first == Approx(std::log(7.0) / 8 + 7 * std::log(6.0) / 8).epsilon(0.05));
  for (int i = 0; i < 150; ++i) trainer.step();
  CHECK(trainer.step().loss < 0.1 * first);
  // Greedily it draws the image of each text, with the cache and without, and finds it likelier than the other one.
  const DalleConfig& config = run.net.config();
  const std::span<const std::int32_t> texts(run.batch.text);
  const std::span<const std::int32_t> codes(run.batch.codes);
  for (std::size_t b = 0; b < 2; ++b) {
    const auto text = texts.subspan(b * config.text, config.text);
    const auto image = codes.subspan(b * config.image(), config.image());
    const std::vector<std::int32_t> expected(image.begin(), image.end());
    ImageOptions greedy;
    greedy.temperature = 0;
    CHECK(sample_images(run.engine, run.net, text, {}, greedy) == std::vector<std::vector<std::int32_t>>{expected});
    greedy.cache = false;
    CHECK(sample_images(run.engine, run.net, text, image.first(9), greedy) == std::vector<std::vector<std::int32_t>>{expected});
  }
  std::vector<std::int32_t> swapped(texts.begin() + static_cast<std::ptrdiff_t>(config.text), texts.end());
  swapped.insert(swapped.end(), texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(config.text));
  const std::vector<double> own = pair_nats(run.engine, run.net, run.batch).image;
  const std::vector<double> other = pair_nats(run.engine, run.net, {swapped, run.batch.codes}).image;
  REQUIRE(own.size() == 2);
  for (std::size_t b = 0; b < 2; ++b) CHECK(own[b] + 1 < other[b]);
}

TEST_CASE("images that are drawn do not depend on the batch they are drawn in, nor on the cache", "[dalle]") {
  DalleRun run(small_dalle(), DType::f32, "ref");
  const DalleConfig& config = run.net.config();
  const auto text = std::span<const std::int32_t>(run.batch.text).first(config.text);
  ImageOptions options;
  options.count = 5;
  options.seed = 11;
  options.top_k = 4;
  const auto images = sample_images(run.engine, run.net, text, {}, options);
  REQUIRE(images.size() == 5);
  CHECK(images[0] != images[1]);
  for (const auto& image : images) {
    CHECK(image.size() == config.image());
    CHECK(std::ranges::all_of(image, [](std::int32_t code) { return code >= 0 && code < 6; }));
  }
  for (const std::size_t at_once : {std::size_t{1}, std::size_t{2}}) {
    options.at_once = at_once;
    options.cache = at_once == 1;
    CHECK(sample_images(run.engine, run.net, text, {}, options) == images);
  }
  // Several texts: some images of each, with the random numbers of their places.
  ImageOptions two = options;
  two.count = 2;
  two.at_once = 3;
  const auto pairs = sample_images(run.engine, run.net, run.batch.text, {}, two);
  REQUIRE(pairs.size() == 4);
  CHECK(pairs[0] == images[0]);
  CHECK(pairs[1] == images[1]);
  two.first = 2;
  const auto others = std::span<const std::int32_t>(run.batch.text).last(config.text);
  const auto last = sample_images(run.engine, run.net, others, {}, two);
  REQUIRE(last.size() == 2);
  CHECK(pairs[2] == last[0]);
  CHECK(pairs[3] == last[1]);
  // It can be ended between codes, and images that are done are there.
  std::size_t calls = 0;
  const auto some = sample_images(run.engine, run.net, text, {}, options, [&](std::size_t done, std::size_t) {
    ++calls;
    return done < 2;
  });
  CHECK(some.size() == 2);
  CHECK(calls == config.image() + 1);
  CHECK(has(
      message_of(ErrorKind::usage, [&] { sample_images(run.engine, run.net, text, std::vector<std::int32_t>(16), options); }),
      "`rows`: 16 codes are given; expected fewer than an image's 16"));
}

TEST_CASE("a text-to-image transformer whose parameters are damaged draws nothing", "[dalle]") {
  DalleRun run(small_dalle(), DType::f32, "ref");
  const DalleConfig& config = run.net.config();
  const auto text = std::span<const std::int32_t>(run.batch.text).first(config.text);
  nn::Parameter& table = run.net.code_head().table();
  std::vector<float> values = run.engine.to_host<float>(table.value);
  values[3 * config.width] = std::numeric_limits<float>::quiet_NaN();
  run.engine.write(table.value, std::as_bytes(std::span(values)));
  const std::string message =
      message_of(ErrorKind::data, [&] { sample_images(run.engine, run.net, text, {}, ImageOptions()); });
  CHECK(has(message, "no number for token 3:"));
}

TEST_CASE("codes of images that are cut anew in every epoch stand beside their captions", "[dalle]") {
  const test::TempDir folder;
  data::SynthPairs scenes;
  scenes.count = 10;
  data::write_synth_pairs(scenes, folder.path());
  const data::Pairs images = data::Pairs::open(folder.path());
  data::PairBatches::Options cuts;
  cuts.batch = 4;
  cuts.micro_batch = 2;
  cuts.side = 16;
  cuts.seed = 7;
  data::PairBatches batches(images, cuts);
  DalleConfig config = small_dalle();
  config.text_vocabulary = 256;
  config.codes = 10;
  const auto tokenizer = data::load_tokenizer("bytes");
  std::vector<std::string> captions;
  for (std::size_t i = 0; i < images.size(); ++i) captions.emplace_back(1, static_cast<char>('a' + i));
  DallePairs::Options options;
  options.batch = 4;
  options.micro_batch = 2;
  options.seed = 7;
  // The number of its image stands for each code.
  options.codes_of = [&](std::uint64_t step, std::uint64_t micro_batch) {
    std::vector<std::int32_t> codes;
    for (const std::size_t i : batches.get(step, micro_batch).indexes) {
      codes.insert(codes.end(), config.image(), static_cast<std::int32_t>(i));
    }
    return codes;
  };
  DallePairs pairs(config, *tokenizer, captions, {}, options);
  for (const std::uint64_t step : {0, 1, 2, 7, 3}) {
    for (const std::uint64_t micro_batch : {0, 1}) {
      const DalleBatch batch = pairs.batch(step, micro_batch);
      REQUIRE(batch.codes.size() == 2 * config.image());
      for (std::size_t i = 0; i < 2; ++i) CHECK(batch.text[i * config.text] == 'a' + batch.codes[i * config.image()]);
    }
  }
}

TEST_CASE("what a text-to-image transformer cannot take is named", "[dalle]") {
  const auto refused = [](const std::function<void(DalleConfig&)>& change) {
    DalleConfig config = small_dalle();
    change(config);
    return message_of(ErrorKind::usage, [&] { check(config); });
  };
  CHECK(refused([](DalleConfig&) {}) == "no error");
  CHECK(has(refused([](DalleConfig& c) { c.heads = 5; }), "`heads`: 5; expected a divisor of the width, 12"));
  CHECK(has(refused([](DalleConfig& c) { c.codes = 0; }), "`codes`: 0; expected 1 to"));
  CHECK(has(refused([](DalleConfig& c) { c.extent = 4; }), "extent: 4; expected an odd number"));
  CHECK(has(refused([](DalleConfig& c) { c.text = 1; }), "`text_positions`: 1; expected at least 2"));
  CHECK(has(message_of(ErrorKind::usage, [] { find_dalle("emojy"); }), "`net`: 'emojy'; did you mean 'emoji'?"));
  const DalleConfig config = small_dalle();
  const auto bad = [&](const std::function<void(DalleBatch&)>& change) {
    DalleBatch batch = small_batch(config);
    change(batch);
    return message_of(ErrorKind::data, [&] { inputs_of(config, batch); });
  };
  CHECK(has(bad([](DalleBatch& b) { b.codes[3] = 6; }), "code 6 of an image; expected 0 to 5"));
  CHECK(has(bad([](DalleBatch& b) { b.text[0] = 7; }), "token 7 at position 0 of a text; expected less than 7"));
  CHECK(has(bad([](DalleBatch& b) { b.text[4] = 1; }), "token 1 at position 4 of a text; expected none after its end"));
  CHECK(has(message_of(ErrorKind::data, [] { parse_dalle_config("[]", "net.json"); }), "net.json: the net's description"));
  CHECK(has(message_of(ErrorKind::data, [] { parse_dalle_config("{}", "net.json"); }), "net.json: 'layers' is missing"));
}
