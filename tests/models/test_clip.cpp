// The contrastive model: its loss against one worked out by hand, its gradients, and that it learns which text belongs to which
// image.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/random.h"
#include "models/clip/clip_task.h"
#include "models/clip/scores.h"
#include "nn/floats.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/finite_differences.h"
#include "tests/support/message_of.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

constexpr std::size_t pairs = 6;

ClipConfig small_clip() {
  ClipConfig config = find_clip("tiny", 16);
  config.text_vocabulary = 9;
  config.text = 5;
  return config;
}

// Images of one of six patterns, and texts of one to six tokens that say which; the longest is cut.
ClipBatch small_batch(const ClipConfig& config, std::uint64_t seed) {
  ClipBatch batch;
  std::vector<std::vector<std::int32_t>> texts;
  for (std::size_t p = 0; p < pairs; ++p) {
    Random random(seed, Stream::test, p);
    for (std::size_t i = 0; i < config.image.image.size(); ++i) {
      const double wave = std::sin(static_cast<double>((p + 1) * (i % 48)) / 7 + static_cast<double>(i / 48 * p) / 3);
      batch.images.push_back(static_cast<float>(wave + 0.1 * random.uniform()));
    }
    std::vector<std::int32_t> text(p + 1, static_cast<std::int32_t>(p));
    texts.push_back(text);
  }
  batch.texts = clip_inputs(config, texts);
  return batch;
}

struct Run {
  Run(DType values, const std::string& backend)
      : engine(test::device_of(backend), backend),
        net(std::make_shared<nn::Sequence>()),
        towers(net->emplace<ClipTowers>(small_clip())),
        task(engine, net, towers, pairs, values,
             [this](std::uint64_t step, std::uint64_t) { return small_batch(towers.config(), step); }),
        parameters(nn::parameters_of(*net)) {
    nn::initialise(engine, parameters, values, 3);
  }

  double loss() {
    nn::clear_gradients(engine, parameters);
    nn::Stash stash;
    nn::Pass pass{engine};
    pass.stash = &stash;
    train::LossSum sum(engine);
    sum.add(train::run_micro_batch(task, pass, 1));
    nn::settle_gradients(engine, parameters);
    CHECK(stash.empty());
    return sum.total().sum;
  }

  nn::Engine engine;
  std::shared_ptr<nn::Sequence> net;
  ClipTowers& towers;
  ClipTask task;
  std::vector<nn::Parameter*> parameters;
};

}  // namespace

TEST_CASE("the contrastive loss is the symmetric cross-entropy of cosines", "[clip]") {
  // Two pairs whose images are at right angles: the cosines are 1, 0.6; 0, 0.8.
  const std::vector<double> images{2, 0, 0, 5};
  const std::vector<double> texts{1, 0, 3, 4};
  const double factor = 3;
  const ClipLoss loss = clip_loss(images, texts, 2, std::log(factor), 1, true);
  const auto entropy = [&](double own, double other) { return std::log(1 + std::exp(factor * (other - own))); };
  REQUIRE(loss.losses.size() == 2);
  CHECK(loss.losses[0] == Approx((entropy(1, 0.6) + entropy(1, 0)) / 2));
  CHECK(loss.losses[1] == Approx((entropy(0.8, 0) + entropy(0.8, 0.6)) / 2));
  // Gradients by finite differences, with a scale of the loss.
  const ClipLoss scaled = clip_loss(images, texts, 2, std::log(factor), 2.5, true);
  const auto total = [&](const std::vector<double>& i, const std::vector<double>& t, double log_scale) {
    const ClipLoss each = clip_loss(i, t, 2, log_scale, 0, false);
    return 2.5 * (each.losses[0] + each.losses[1]);
  };
  constexpr double step = 1e-6;
  std::vector<double> found;
  for (const bool of_images : {true, false}) {
    for (std::size_t i = 0; i < 4; ++i) {
      std::vector<double> above = of_images ? images : texts;
      std::vector<double> below = above;
      above[i] += step;
      below[i] -= step;
      const double up = of_images ? total(above, texts, std::log(factor)) : total(images, above, std::log(factor));
      const double down = of_images ? total(below, texts, std::log(factor)) : total(images, below, std::log(factor));
      found.push_back((up - down) / (2 * step));
    }
  }
  std::vector<double> expected = scaled.dimages;
  expected.insert(expected.end(), scaled.dtexts.begin(), scaled.dtexts.end());
  CHECK(compare(found, expected, 1e-6) == "");
  const double by_scale =
      (total(images, texts, std::log(factor) + step) - total(images, texts, std::log(factor) - step)) / (2 * step);
  CHECK(by_scale == Approx(scaled.dlog_scale).epsilon(1e-6));
}

// All pairs of a set against one another had matrices of its size squared, and no sign of life until the end.
TEST_CASE("contrastive losses of a block of pairs after the other are those of all at once", "[clip]") {
  constexpr std::size_t embedding = 7;
  for (const std::size_t count : {1U, 5U, 64U, 150U}) {  // blocks have 64
    INFO(count);
    std::vector<double> images;
    std::vector<double> texts;
    Random random(11, Stream::test, count);
    for (std::size_t i = 0; i < count * embedding; ++i) {
      images.push_back(random.normal());
      texts.push_back(images.back() + random.normal());
    }
    std::size_t signs = 0;
    const std::vector<double> losses = clip_losses(images, texts, embedding, std::log(20.0), [&] { ++signs; });
    const ClipLoss whole = clip_loss(images, texts, embedding, std::log(20.0), 1, false);
    if (count == 1) {
      CHECK(losses == std::vector<double>{0});  // nothing to be told from
    } else {
      CHECK(compare(losses, whole.losses, 1e-12) == "");
    }
    CHECK(signs == 2 * ((count + 63) / 64));
    CHECK(clip_losses(images, texts, embedding, std::log(20.0)) == losses);
  }
}

TEST_CASE("gradients of a contrastive model are those of finite differences", "[clip]") {
  Run run(DType::f64, "ref");
  run.loss();
  const auto [found, expected] = test::differences(run.engine, run.parameters, [&] { return run.loss(); });
  CHECK(compare(found, expected, 1e-5) == "");
}

TEST_CASE("a contrastive model learns which text belongs to which image", "[clip]") {
  Run run(DType::f32, "cpu");
  train::TrainOptions options;
  options.rate.peak = 3e-3;
  train::Trainer trainer(run.engine, run.task, options);
  for (int i = 0; i < 60; ++i) trainer.step();
  const ClipBatch batch = small_batch(run.towers.config(), 1000);
  const nn::Shape shape = run.task.input_shape();
  const nn::Tensor x = nn::from_floats(run.engine, batch.images, shape, DType::f32, nn::Use::data);
  const nn::Tensor ids =
      run.engine.from(std::span<const std::int32_t>(batch.texts), {pairs, run.towers.config().text}, nn::Use::data);
  const auto doubles = [&](const nn::Tensor& tensor) {
    const std::vector<float> floats = nn::to_floats(run.engine, tensor);
    return std::vector<double>(floats.begin(), floats.end());
  };
  const ClipLoss loss =
      clip_loss(doubles(run.towers.embed_images(run.engine, x)), doubles(run.towers.embed_texts(run.engine, ids)),
                run.towers.config().embedding(), std::log(20.0), 1, false);
  for (const double each : loss.losses) CHECK(each < 0.5 * std::log(static_cast<double>(pairs)));
}

// Captions of one image, and images of one caption, counted as one another's rivals.
TEST_CASE("ranks of own captions and images pass over those that are equal or as right", "[clip]") {
  // Images A, A, B, C with captions x, y, y, z: texts y of pairs 1 and 2 are one. Directions in two dimensions.
  const auto direction = [](double degrees) {
    const double angle = degrees * std::acos(-1.0) / 180;
    return std::array{std::cos(angle), std::sin(angle)};
  };
  const auto all = [&](std::initializer_list<double> degrees) {
    std::vector<double> numbers;
    for (const double each : degrees) {
      for (const double number : direction(each)) numbers.push_back(number);
    }
    return numbers;
  };
  const std::vector<double> images = all({0, 0, 40, 90});
  const std::vector<double> texts = all({50, 10, 10, 60});
  std::size_t signs = 0;
  const Ranks found = ranks(images, texts, 2, {{0, 0, 2, 3}, {0, 1, 1, 3}}, [&] { ++signs; });
  CHECK(signs == 4);
  // x, of the first, is farther from A than y, which is A's too, but nearer than z. Both are nearer to B than y.
  CHECK(found.text == std::vector<std::size_t>{1, 1, 3, 1});
  CHECK(found.texts == std::vector<std::size_t>{2, 2, 3, 3});
  // x lies nearer to B, and to C, than to A; y belongs to A and B.
  CHECK(found.image == std::vector<std::size_t>{3, 1, 1, 2});
  CHECK(found.images == std::vector<std::size_t>{3, 2, 2, 3});
  const Retrieval retrieved = retrieval(found);
  CHECK(retrieved.pairs == 4);
  CHECK(retrieved.texts_at_1 == 0.75);
  CHECK(retrieved.images_at_1 == 0.5);
  CHECK(retrieved.images_at_5 == 1);
  CHECK(std::abs(retrieved.texts_by_chance - (0.5 + 0.5 + 1 / 3.0 + 1 / 3.0) / 4) < 1e-12);
}

// A net whose numbers were NaN was said to find every text and image.
TEST_CASE("embeddings that are no numbers find nothing", "[clip]") {
  using Places = std::vector<std::size_t>;
  constexpr double no_number = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> images{1, 0, 0, 1, -1, 0};
  const std::vector<double> texts = images;
  const EqualParts different{{0, 1, 2}, {0, 1, 2}};
  const Ranks right = ranks(images, texts, 2, different);
  CHECK(right.text == Places{1, 1, 1});
  CHECK(right.image == Places{1, 1, 1});
  // The second image is near to nothing, and in the way of the others.
  images[2] = no_number;
  const Ranks one = ranks(images, texts, 2, different);
  CHECK(one.text == Places{1, 3, 1});
  CHECK(one.image == Places{2, 3, 2});
  const std::vector<double> broken(6, no_number);
  for (const Ranks& none : {ranks(broken, texts, 2, different), ranks(broken, broken, 2, different)}) {
    CHECK(none.text == none.texts);
    CHECK(none.image == none.images);
    CHECK(none.texts == Places{3, 3, 3});
    CHECK(none.images == Places{3, 3, 3});
    CHECK(retrieval(none).texts_at_1 == 0);
    CHECK(retrieval(none).images_at_1 == 0);
  }
}

// Images of 64 x 64 pixels leave maps of 16 x 16, which a mean was not taken of.
TEST_CASE("the smallest contrastive model takes large images", "[clip]") {
  for (const std::size_t side : {16U, 32U, 64U, 128U}) {
    INFO(side);
    ClipConfig config = find_clip("tiny", side);
    config.text_vocabulary = 9;
    const ClipTowers towers(config);
    CHECK(towers.output({3, side, side, 3}) == nn::Shape{6, config.embedding()});
  }
}

// The error was a layer's, about maps that nobody had asked for.
TEST_CASE("images that are too small for a contrastive model are refused by their side", "[clip]") {
  for (const auto& [name, least] : {std::pair("tiny", 3U), std::pair("emoji", 15U)}) {
    INFO(name);
    ClipConfig config = find_clip(name, least);
    config.text_vocabulary = 9;
    const ClipTowers towers(config);
    CHECK(towers.output({2, least, least, 3}) == nn::Shape{4, config.embedding()});
  }
  CHECK(has(message_of(ErrorKind::usage, [] { find_clip("emoji", 14); }),
            "`side`: 14; expected at least 15 pixels for the net 'emoji'"));
  CHECK(has(message_of(ErrorKind::usage, [] { find_clip("tiny", 2); }), "`side`: 2; expected at least 3"));
}

TEST_CASE("texts of a contrastive model are cut, padded and checked", "[clip]") {
  const ClipConfig config = small_clip();
  const std::vector<std::vector<std::int32_t>> texts{{1, 2}, {3, 4, 5, 6, 7, 8}, {}};
  CHECK(clip_inputs(config, texts) == std::vector<std::int32_t>{9, 1, 2, 10, 10, 9, 3, 4, 5, 6, 9, 10, 10, 10, 10});
  const std::vector<std::vector<std::int32_t>> bad{{9}};
  CHECK(has(message_of(ErrorKind::data, [&] { clip_inputs(config, bad); }), "token 9 of a text; expected 0 to 8"));
  CHECK(has(message_of(ErrorKind::usage, [] { find_clip("emojy", 64); }), "`net`: 'emojy'; did you mean 'emoji'?"));
  CHECK(to_json(parse_clip_config(to_json(config).dump(), "it")) == to_json(config));
  CHECK(has(message_of(ErrorKind::data, [] { parse_clip_config("{}", "it"); }), "it: 'text_positions' is missing"));
  ClipConfig wrong = config;
  wrong.heads = 3;
  CHECK(has(message_of(ErrorKind::usage, [&] { check(wrong); }), "`heads`: 3; expected a divisor of the width, 16"));
}
