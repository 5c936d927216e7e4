// Trained convolutional nets: as files, and as classifiers of images in several views.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "core/softmax.h"
#include "models/cnn/evaluate.h"
#include "models/cnn/model_file.h"
#include "models/gpt/model_file.h"
#include "models/saved_values.h"
#include "nn/floats.h"
#include "tests/models/cnn_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "train/optimizer.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::small_cnn;
using bitloom::test::SmallCnn;

namespace {

constexpr CnnViews one_view{.mirror = false, .shift = 0};

CnnDescription description_of(const Cnn& net) { return {net.config, {{120, 130}, {50, 60}}, {"a", "b", "c"}}; }

std::vector<std::span<const std::uint8_t>> all_of(const data::Dataset& images) {
  std::vector<std::span<const std::uint8_t>> all;
  for (std::size_t i = 0; i < images.size(); ++i) all.push_back(images.image(i));
  return all;
}

std::vector<float> logits_of(nn::Engine& engine, Cnn& net, const data::Dataset& images, const CnnViews& views = one_view,
                             DType values = DType::f32) {
  return CnnClassifier(engine, net, description_of(net).scale, values, views).logits(all_of(images));
}

data::Dataset changed(data::Dataset images, int moved, bool mirror) {
  const data::Dataset before = images;
  for (std::size_t i = 0; i < images.size(); ++i) {
    data::shift(before.image(i), images.shape, moved, moved, mirror, images.pixels.data() + i * images.shape.size());
  }
  return images;
}

}  // namespace

TEST_CASE("a saved convolutional net gives the same logits, of f32 bit by bit", "[cnn]") {
  const test::TempDir folder;
  const data::Dataset images = test::small_images(5, test::small_image);
  for (std::size_t which = 0; which < test::cnn_descriptions().size(); ++which) {
    SmallCnn cnn(small_cnn(which));
    INFO(cnn.net.config.name);
    const std::vector<float> expected = logits_of(cnn.engine, cnn.net, images);
    save_cnn(cnn.engine, cnn.net, DType::f32, description_of(cnn.net)).save(folder / "model");
    nn::Engine engine;
    LoadedCnn loaded = load_cnn(engine, folder / "model");
    CHECK(loaded.description.class_names == std::vector<std::string>{"a", "b", "c"});
    CHECK(loaded.description.scale.mean == std::vector<float>{120, 130});
    CHECK(loaded.description.scale.deviation == std::vector<float>{50, 60});
    CHECK(architecture_of(loaded.description.config) == architecture_of(cnn.net.config));
    CHECK(logits_of(engine, *loaded.net, images) == expected);
    CHECK(compare(expected, std::vector<float>(expected.size(), expected[0]), 1e-3) != "");  // they say something
    // In 16 bits nearly.
    nn::Engine half;
    LoadedCnn rounded = load_cnn(half, folder / "model", DType::bf16);
    CHECK(compare(logits_of(half, *rounded.net, images, one_view, DType::bf16), expected, 0.1) == "");
  }
}

TEST_CASE("an image that a convolutional net is sure of has no more views", "[cnn]") {
  const data::Dataset images = test::small_images(150, test::small_image);
  SmallCnn cnn(small_cnn(0));
  const CnnViews all{.mirror = true, .shift = 1};
  const auto one = [&](int moved, bool mirror) {
    return logits_of(cnn.engine, cnn.net, changed(changed(images, moved, false), 0, mirror));
  };
  // In the order in which they are taken, with their weights.
  const std::vector<std::pair<std::vector<float>, float>> views = {{one(0, false), 0.25F},   {one(0, true), 0.25F},
                                                                   {one(1, false), 0.125F},  {one(1, true), 0.125F},
                                                                   {one(-1, false), 0.125F}, {one(-1, true), 0.125F}};
  const auto means_until = [&](float sure, std::vector<std::size_t>& taken) {
    std::vector<float> means;
    for (std::size_t i = 0; i < images.size(); ++i) {
      std::vector<float> sum(3), mean(3), probabilities(3);
      float weight = 0;
      std::size_t v = 0;
      for (; v < views.size() && (v == 0 || std::ranges::max(probabilities) < sure); ++v) {
        weight += views[v].second;
        for (std::size_t c = 0; c < 3; ++c) {
          sum[c] += views[v].second * views[v].first[3 * i + c];
          mean[c] = sum[c] / weight;
        }
        softmax(mean, probabilities);
      }
      means.insert(means.end(), mean.begin(), mean.end());
      taken.push_back(v);
    }
    return means;
  };
  std::vector<std::size_t> every;
  CHECK(compare(logits_of(cnn.engine, cnn.net, images, all), means_until(2, every), 1e-5) == "");
  CHECK(every == std::vector<std::size_t>(images.size(), views.size()));
  // The probability that half of the images have in the first view.
  std::vector<float> first;
  for (std::size_t i = 0; i < images.size(); ++i) {
    std::vector<float> probabilities(3);
    softmax(std::span(views[0].first).subspan(3 * i, 3), probabilities);
    first.push_back(std::ranges::max(probabilities));
  }
  std::ranges::sort(first);
  const float sure = (first[74] + first[75]) / 2;
  std::vector<std::size_t> expected, taken;
  const std::vector<float> means = means_until(sure, expected);
  CnnClassifier classifier(cnn.engine, cnn.net, description_of(cnn.net).scale, DType::f32,
                           {.mirror = true, .shift = 1, .sure = static_cast<double>(sure)});
  CHECK(compare(classifier.logits(all_of(images), &taken), means, 1e-5) == "");
  CHECK(taken == expected);
  CHECK(std::ranges::count(taken, 1U) == 75);
  // Processes that have a net together would not make equally many passes.
  CHECK(has(message_of(ErrorKind::internal,
                       [&] {
                         CnnClassifier(cnn.engine, cnn.net, description_of(cnn.net).scale, DType::f32,
                                       {.mirror = true, .shift = 0, .sure = 0.5}, 7,
                                       [](const nn::Tensor&) { return std::vector<float>(); });
                       }),
            "processes have together"));
  mpi::Comm alone;
  CHECK(classifier.evaluate(alone, images).views ==
        Approx(static_cast<double>(std::accumulate(expected.begin(), expected.end(), std::size_t{0})) / 150));
}

TEST_CASE("of a checkpoint a convolutional net takes averages or slow weights", "[cnn]") {
  SmallCnn cnn(small_cnn(1));
  TensorFile file = save_cnn(cnn.engine, cnn.net, DType::f32, description_of(cnn.net));
  const std::string weight = "layers.6.weight";
  const std::string buffer = "layers.1.moving_mean";
  const auto put_twice = [&](TensorFile& to, const std::string& name, const std::string& other) {
    std::vector<float> values(file.get(name).as<float>().begin(), file.get(name).as<float>().end());
    for (float& value : values) value *= 2;
    to.put(other, file.get(name).shape, values);
  };
  TensorFile twice = file;
  put_twice(twice, weight, weight);
  put_twice(twice, buffer, buffer);
  const auto loaded = [&](const TensorFile& from) {
    SmallCnn other(small_cnn(1));
    load_values(other.engine, from, other.net, DType::f32);
    return save_cnn(other.engine, other.net, DType::f32, description_of(other.net)).serialize();
  };
  REQUIRE(loaded(file) == file.serialize());
  TensorFile slow = file;
  put_twice(slow, weight, train::slow_name(weight));
  put_twice(slow, buffer, train::slow_name(buffer));
  CHECK(loaded(slow) == loaded(twice));
  TensorFile average = file;
  put_twice(average, weight, train::average_name(weight));
  put_twice(average, buffer, train::average_name(buffer));
  CHECK(loaded(average) == loaded(twice));
  TensorFile earlier = file;  // averages were those of parameters alone
  put_twice(earlier, weight, train::average_name(weight));
  put_twice(earlier, buffer, buffer);
  CHECK(loaded(earlier) == loaded(twice));
  // Other programs get the same. They were given the parameters themselves.
  for (const TensorFile& checkpoint : {slow, average, earlier}) {
    const TensorFile theirs = to_pytorch_names(checkpoint);
    CHECK(theirs.tensors.size() == file.tensors.size());
    CHECK(std::ranges::equal(theirs.get(weight).as<float>(), twice.get(weight).as<float>()));
    CHECK(std::ranges::equal(theirs.get("layers.1.running_mean").as<float>(), twice.get(buffer).as<float>()));
    CHECK(std::ranges::equal(theirs.get("layers.1.weight").as<float>(), file.get("layers.1.gain").as<float>()));
  }
}

// They were refused by the type of their matrices.
TEST_CASE("a checkpoint without masters gives a net in f32 the same numbers", "[cnn]") {
  nn::Engine engine;
  Cnn net(small_cnn(1));
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(*net.layers);
  nn::initialise(engine, parameters, DType::bf16, 5, nn::MasterWeights::none);
  TensorFile file;
  add_values(engine, file, *net.layers, DType::bf16);
  const std::string matrix = "layers.3.conv1.weight";
  REQUIRE(file.get(matrix).dtype == DType::bf16);
  SmallCnn other(small_cnn(1));
  load_values(other.engine, file, other.net, DType::f32);
  REQUIRE(other.parameters.size() == parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    INFO(parameters[i]->name);
    const std::vector<float> expected = nn::to_floats(engine, parameters[i]->value);
    CHECK(nn::to_floats(other.engine, other.parameters[i]->value) == expected);
    CHECK(nn::to_floats(other.engine, other.parameters[i]->read()) == expected);
  }
  // With masters, from which copies in bf16 are made.
  nn::Engine half;
  Cnn rounded(small_cnn(1));
  const std::vector<nn::Parameter*> copies = nn::parameters_of(*rounded.layers);
  nn::make_parameters(half, copies, DType::bf16);
  load_values(half, file, rounded, DType::bf16);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    INFO(parameters[i]->name);
    CHECK(nn::to_floats(half, copies[i]->value) == nn::to_floats(engine, parameters[i]->value));
    CHECK(nn::to_floats(half, copies[i]->read()) == nn::to_floats(engine, parameters[i]->read()));
  }
  file.put(matrix, {4, 4, 9}, std::vector<bf16>(4 * 4 * 9));
  CHECK(has(message_of(ErrorKind::data, [&] { load_values(other.engine, file, other.net, DType::f32); }), matrix));
}

TEST_CASE("files that are no convolutional net are refused by what is wrong", "[cnn]") {
  const test::TempDir folder;
  SmallCnn cnn(small_cnn(1));
  const TensorFile whole = save_cnn(cnn.engine, cnn.net, DType::f32, description_of(cnn.net));
  const auto refusal = [&](const std::function<void(TensorFile&)>& change) {
    TensorFile file = whole;
    change(file);
    file.save(folder / "model");
    nn::Engine engine;
    return message_of(ErrorKind::data, [&] { load_cnn(engine, folder / "model"); });
  };
  CHECK(refusal([](TensorFile&) {}) == "no error");
  CHECK(has(refusal([](TensorFile& file) { file.metadata[kind_key] = gpt_kind; }),
            "not a model of kind 'cnn' but of kind 'gpt'"));
  CHECK(has(refusal([](TensorFile& file) { file.metadata.erase(kind_key); }), "not a model of kind 'cnn'"));
  CHECK(has(refusal([](TensorFile& file) { file.metadata.erase("bitloom.config"); }), "bitloom.config"));
  CHECK(has(refusal([](TensorFile& file) { file.metadata["bitloom.config"] = "{}"; }), "\"layers\""));
  CHECK(has(refusal([](TensorFile& file) { file.metadata["bitloom.classes"] = R"(["a", "b"])"; }),
            "2 names of classes; expected 3"));
  CHECK(has(refusal([](TensorFile& file) { file.metadata["bitloom.classes"] = "{"; }), "0 names of classes; expected 3"));
  CHECK(has(refusal([](TensorFile& file) { file.metadata["bitloom.pixels"] = R"({"mean": [1], "deviation": [1, 2]})"; }),
            "'mean': [1]; expected 2 numbers"));
  CHECK(has(refusal([](TensorFile& file) { file.metadata["bitloom.pixels"] = R"({"mean": [1, 2], "deviation": [1, 0]})"; }),
            "a deviation of pixels of 0; expected more than 0"));
  CHECK(has(refusal([](TensorFile& file) { file.tensors.erase("layers.6.bias"); }), "layers.6.bias"));
  CHECK(has(refusal([](TensorFile& file) { file.put("layers.1.moving_mean", {5}, std::vector<float>(5)); }),
            "layers.1.moving_mean"));
  CHECK(has(refusal([](TensorFile& file) {
              auto config = nlohmann::json::parse(file.metadata["bitloom.config"]);
              config["classes"] = 4;
              file.metadata["bitloom.config"] = config.dump();
              file.metadata["bitloom.classes"] = R"(["a", "b", "c", "d"])";
            }),
            "layers.6."));
  // A net that its own images do not fit into.
  CHECK(has(refusal([](TensorFile& file) {
              auto config = nlohmann::json::parse(file.metadata["bitloom.config"]);
              config["layers"][1] = {{"kind", "max_pool"}, {"kernel", 12}};
              file.metadata["bitloom.config"] = config.dump();
            }),
            "max_pool"));
  whole.save(folder / "model");
  std::filesystem::resize_file(folder / "model", std::filesystem::file_size(folder / "model") - 10);
  nn::Engine engine;
  CHECK(has(message_of(ErrorKind::data, [&] { load_cnn(engine, folder / "model"); }), "model"));
  CHECK(has(message_of(ErrorKind::io, [&] { load_cnn(engine, folder / "none"); }), "none"));
}

TEST_CASE("views of an image are averaged by their weights", "[cnn]") {
  const data::Dataset images = test::small_images(4, test::small_image);
  SmallCnn cnn(small_cnn(1));
  const auto plain = [&](int moved, bool mirror) { return logits_of(cnn.engine, cnn.net, changed(images, moved, mirror)); };
  REQUIRE(plain(0, false) == logits_of(cnn.engine, cnn.net, images));
  const auto average = [](const std::vector<std::pair<float, std::vector<float>>>& parts) {
    std::vector<float> sum(parts[0].second.size());
    for (const auto& [weight, values] : parts) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += weight * values[i];
    }
    return sum;
  };
  CHECK(compare(logits_of(cnn.engine, cnn.net, images, {.mirror = true, .shift = 0}),
                average({{0.5F, plain(0, false)}, {0.5F, plain(0, true)}}), 1e-5) == "");
  // The mirrored place of a moved image is moved the other way across.
  const auto mirror_of_moved = [&](int moved) {
    return logits_of(cnn.engine, cnn.net, changed(changed(images, moved, false), 0, true));
  };
  const std::vector<float> moved = average({{0.5F, plain(0, false)}, {0.25F, plain(2, false)}, {0.25F, plain(-2, false)}});
  CHECK(compare(logits_of(cnn.engine, cnn.net, images, {.mirror = false, .shift = 2}), moved, 1e-5) == "");
  const std::vector<float> mirrored =
      average({{0.5F, plain(0, true)}, {0.25F, mirror_of_moved(2)}, {0.25F, mirror_of_moved(-2)}});
  CHECK(compare(logits_of(cnn.engine, cnn.net, images, {.mirror = true, .shift = 2}),
                average({{0.5F, moved}, {0.5F, mirrored}}), 1e-5) == "");
  CHECK(compare(plain(0, true), plain(0, false), 1e-2) != "");
  CHECK(compare(plain(2, false), plain(0, false), 1e-2) != "");
  // With mirror images an image and its mirror image are the same.
  CHECK(logits_of(cnn.engine, cnn.net, changed(images, 0, true), {.mirror = true, .shift = 0}) ==
        logits_of(cnn.engine, cnn.net, images, {.mirror = true, .shift = 0}));
  CHECK(has(message_of(ErrorKind::usage, [&] { logits_of(cnn.engine, cnn.net, images, {.mirror = true, .shift = 16}); }),
            "`shift`: 16; expected less than the 16 pixels"));
}

TEST_CASE("logits are those of the net written on pixels, on every backend", "[cnn][backends]") {
  const data::Dataset images = test::small_images(3, test::small_image);
  for (std::size_t which = 0; which < test::cnn_descriptions().size(); ++which) {
    SmallCnn exact(small_cnn(which), DType::f64, "ref");
    const std::vector<float> expected = logits_of(exact.engine, exact.net, images, one_view, DType::f64);
    std::vector<double> numbers;
    for (std::size_t i = 0; i < images.size(); ++i) {
      for (std::size_t p = 0; p < 256; ++p) {
        for (std::size_t c = 0; c < 2; ++c) {
          numbers.push_back((images.image(i)[c * 256 + p] - (c == 0 ? 120.0 : 130.0)) / (c == 0 ? 50 : 60));
        }
      }
    }
    nn::Pass pass{exact.engine};
    pass.training = false;
    const std::vector<double> direct = exact.engine.to_host<double>(exact.net.layers->forward(
        pass, exact.engine.from(std::span<const double>(numbers), exact.net.input(3), nn::Use::data)));
    CHECK(compare(std::vector<double>(expected.begin(), expected.end()), direct, 1e-5) == "");
    for (const std::string& backend : test::tested_backends()) {
      INFO(exact.net.config.name << " " << backend);
      SmallCnn cnn(small_cnn(which), DType::f32, backend);
      CHECK(compare(logits_of(cnn.engine, cnn.net, images), expected, 1e-4) == "");
    }
  }
}

TEST_CASE("accuracy, confusion, loss and mistakes are those of plain code", "[cnn]") {
  const data::Dataset images = test::small_images(300, test::small_image);  // more than are classified at once
  SmallCnn cnn(small_cnn(1));
  // No class is the likeliest everywhere.
  nn::Parameter& bias = *cnn.parameters.back();
  REQUIRE(bias.name == "layers.6.bias");
  std::vector<float> centred = cnn.engine.to_host<float>(bias.value);
  const std::vector<float> before = logits_of(cnn.engine, cnn.net, images);
  for (std::size_t i = 0; i < before.size(); ++i) centred[i % 3] -= before[i] / 300;
  cnn.engine.write(bias.value, std::as_bytes(std::span(centred)));
  const std::vector<float> logits = logits_of(cnn.engine, cnn.net, images);
  std::vector<std::int64_t> confusion(9);
  double loss = 0;
  std::vector<layerwise::Mistake> mistakes;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const float* row = logits.data() + 3 * i;
    double sum = 0;
    for (std::size_t c = 0; c < 3; ++c) sum += std::exp(static_cast<double>(row[c]));
    const auto found = static_cast<std::size_t>(std::max_element(row, row + 3) - row);
    ++confusion[3U * images.labels[i] + found];
    loss += std::log(sum) - static_cast<double>(row[images.labels[i]]);
    if (found != images.labels[i]) {
      mistakes.push_back({i, found, static_cast<float>(std::exp(static_cast<double>(row[found])) / sum)});
    }
  }
  std::ranges::stable_sort(mistakes, [](const auto& a, const auto& b) { return a.probability > b.probability; });
  mpi::Comm alone;
  std::vector<std::size_t> watched;
  CnnClassifier classifier(cnn.engine, cnn.net, description_of(cnn.net).scale, DType::f32, one_view);
  const auto result = classifier.evaluate(alone, images, [&](std::size_t done) {
    watched.push_back(done);
    return true;
  });
  const std::vector<layerwise::Mistake>& wrong = result.mistakes;
  CHECK(result.confusion == confusion);
  CHECK(std::ranges::count_if(confusion, [](auto n) { return n > 0; }) > 3);
  CHECK(result.images == 300);
  CHECK(result.correct == static_cast<std::size_t>(confusion[0] + confusion[4] + confusion[8]));
  CHECK(result.loss == Approx(loss / 300).epsilon(1e-5));
  CHECK(watched == std::vector<std::size_t>{256, 300});
  const auto in_parts =
      CnnClassifier(cnn.engine, cnn.net, description_of(cnn.net).scale, DType::f32, one_view, 7).evaluate(alone, images);
  CHECK(in_parts.confusion == confusion);
  CHECK(in_parts.loss == Approx(result.loss).epsilon(1e-5));
  REQUIRE(mistakes.size() > layerwise::Evaluation::most_mistakes);
  REQUIRE(wrong.size() == layerwise::Evaluation::most_mistakes);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    CHECK(static_cast<double>(wrong[i].probability) == Approx(mistakes[i].probability).epsilon(1e-4));
    if (i > 0) CHECK(wrong[i].probability <= wrong[i - 1].probability);
    CHECK(wrong[i].label != images.labels[wrong[i].image]);
  }
  CHECK(result.views == 1);
  CHECK(has(message_of(ErrorKind::interrupted, [&] { classifier.evaluate(alone, images, [](std::size_t) { return false; }); }),
            "stopped"));
  // The sum of such losses overflowed and was negative: the best of all.
  nn::scale_add(cnn.engine, 1e15, cnn.parameters.back()->value, 0, cnn.parameters.back()->value);
  CHECK(has(message_of(ErrorKind::data, [&] { classifier.evaluate(alone, images); }), "beyond 1,000,000"));
  // A net of NaN does not classify.
  nn::fill(cnn.engine, cnn.parameters.back()->value, std::numeric_limits<double>::quiet_NaN());
  CHECK(has(message_of(ErrorKind::data, [&] { classifier.evaluate(alone, images); }),
            "loss of image 0 of 'small' is infinite or beyond 1,000,000: its training has diverged"));
}
