// The discrete VAE: sizes, pixels, the loss and its gradients, training, files.
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/random.h"
#include "models/dvae/coder.h"
#include "models/dvae/model_file.h"
#include "models/dvae/pixels.h"
#include "models/dvae/task.h"
#include "nn/floats.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;
using test::has;
using test::message_of;

namespace {

DvaeConfig smallest() {
  DvaeConfig config = find_dvae("tiny");
  config.side = 8;
  config.codes = 16;
  config.groups = 2;
  config.hidden = 16;
  return config;
}

// Rectangles of one colour on another.
std::vector<std::uint8_t> drawings(std::size_t images, std::size_t side, std::uint64_t number) {
  std::vector<std::uint8_t> pixels;
  for (std::size_t i = 0; i < images; ++i) {
    Random random(5, Stream::test, number, i);
    std::uint8_t colours[2][3];
    for (auto& colour : colours) {
      for (std::uint8_t& part : colour) part = static_cast<std::uint8_t>(random.below(2) * 200 + 20);
    }
    const std::size_t left = random.below(static_cast<std::uint32_t>(side)),
                      top = random.below(static_cast<std::uint32_t>(side));
    for (std::size_t y = 0; y < side; ++y) {
      for (std::size_t x = 0; x < side; ++x) {
        for (const std::uint8_t part : colours[x >= left && y >= top ? 1 : 0]) pixels.push_back(part);
      }
    }
  }
  return pixels;
}

DvaeSchedule short_schedule(std::uint64_t steps) {
  DvaeSchedule schedule;
  schedule.kl_steps = steps / 10;
  schedule.kl_weight = 0.2;  // tokens of 2 x 2 pixels: sixteen times as heavy as in the paper, but for that
  schedule.temperature_steps = steps / 2;
  schedule.rate_steps = steps;
  schedule.rate = 1e-2;
  return schedule;
}

train::TrainOptions options_of(const DvaeSchedule& schedule, std::size_t micro_batches) {
  train::TrainOptions options;
  options.micro_batches = micro_batches;
  options.optimizer.decay = 1e-4;
  options.rate.peak = schedule.rate;
  options.rate.floor = schedule.last_rate;
  options.rate.decay = schedule.rate_steps;
  return options;
}

}  // namespace

TEST_CASE("the full discrete VAE has the published numbers of parameters", "[dvae]") {
  Dvae net(find_dvae("full"));
  CHECK(net.encoder_parameters() == 53786240);
  CHECK(net.decoder_parameters() == 43829766);
  CHECK(net.tokens(1) == nn::Shape({1, 32, 32, 8192}));
  CHECK(net.layers->output(net.input(2)) == nn::Shape({2, 256, 256, 6}));
  CHECK(net.config.gain() == 1.0 / 64);
  // Standard deviations 1 / sqrt(inputs kernel^2), and biases that begin with 0.
  for (const nn::Parameter* parameter : nn::parameters_of(*net.layers)) {
    INFO(parameter->name);
    if (parameter->name.ends_with(".bias")) {
      CHECK(parameter->deviation == 0);
      CHECK(parameter->constant == 0);
    } else {
      const double inputs = static_cast<double>(parameter->shape[1] * parameter->shape[2] * parameter->shape[3]);
      CHECK(std::abs(parameter->deviation - 1 / std::sqrt(inputs)) < 1e-12);
    }
  }
  double cost = 0;
  std::uint64_t parameters = 0;
  for (const DvaeRow& row : describe(net)) {
    cost += row.cost;
    parameters += row.parameters;
  }
  CHECK(std::abs(cost / net.cost() - 1) < 1e-12);
  CHECK(parameters == net.parameters());
}

TEST_CASE("small discrete VAEs have the grids that they are named for", "[dvae]") {
  CHECK(find_dvae("emoji").grid() == 8);
  CHECK(find_dvae("emoji").codes == 512);
  CHECK(find_dvae("emoji-16").grid() == 16);
  Dvae net(find_dvae("emoji-16"));
  CHECK(net.layers->output(net.input(3)) == nn::Shape({3, 64, 64, 6}));
}

TEST_CASE("descriptions of discrete VAEs that are wrong are refused, and say why", "[dvae]") {
  const test::TempDir folder;
  const auto complaint = [&](const std::string& text) {
    const auto path = folder.path() / "net.json";
    test::write_file(path, text);
    return message_of(ErrorKind::usage, [&] { find_dvae(path.string()); });
  };
  CHECK(has(message_of(ErrorKind::usage, [] { find_dvae("emojy"); }), "emoji"));
  CHECK(has(complaint("{"), "not JSON"));
  CHECK(has(complaint("[]"), "expected a JSON object"));
  CHECK(has(complaint(R"({"sides": 64})"), "unknown key 'sides'"));
  const std::string rest = R"("codes": 32, "groups": 3, "blocks": 1, "init": 8)";
  CHECK(complaint(R"({"side": 16, "hidden": 8, )" + rest + "}") == "no error");
  CHECK(has(complaint(R"({"side": 18, "hidden": 8, )" + rest + "}"), "\"side\": 18; expected a multiple of 4"));
  CHECK(has(complaint(R"({"side": 16, "hidden": 6, )" + rest + "}"), "\"hidden\": 6; expected a multiple of 4"));
  CHECK(has(complaint(R"({"side": 16, "hidden": -8, )" + rest + "}"), "\"hidden\": -8; expected a whole number from 4"));
  CHECK(has(complaint(R"({"side": 16, )" + rest + "}"), "\"hidden\": null"));
}

TEST_CASE("phi and its inverse are what the paper says", "[dvae]") {
  CHECK(phi(0) == 0.1);
  CHECK(std::abs(phi(255) - 0.9) < 1e-15);
  for (int x = 0; x < 256; ++x) CHECK(std::abs(inverse_phi(phi(x)) - x) < 1e-12);
  // Through f32 and the sigmoid, every byte comes back.
  std::vector<std::uint8_t> bytes(768);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i / 3);
  std::vector<float> numbers(bytes.size()), maps(2 * bytes.size()), found(bytes.size());
  to_unit_interval(bytes, numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double x = static_cast<double>(numbers[i]);
    maps[i / 3 * 6 + i % 3] = static_cast<float>(std::log(x / (1 - x)));
  }
  reconstruct(maps, found);
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::lround(found[i]) == bytes[i]);
}

TEST_CASE("schedules have the paper's points", "[dvae]") {
  const DvaeSchedule schedule;
  CHECK(std::abs(schedule.kl_weight_at(0)) < 1e-8);
  CHECK(std::abs(schedule.kl_weight_at(2500) - 3.3) < 1e-8);
  CHECK(schedule.kl_weight_at(5000) == 6.6);
  CHECK(schedule.kl_weight_at(3000000) == 6.6);
  CHECK(schedule.temperature_at(0) == 1);
  CHECK(std::abs(schedule.temperature_at(75000) - 0.53125) < 1e-8);
  CHECK(schedule.temperature_at(150000) == 0.0625);
  CHECK(schedule.temperature_at(3000000) == 0.0625);
  const RateSchedule rate = options_of(DvaeSchedule(), 1).rate;
  CHECK(rate.at(0) == 1e-4);
  CHECK(std::abs(rate.at(600000) - 5.0625e-5) < 1e-12);
  CHECK(std::abs(rate.at(2000000) - 1.25e-6) < 1e-18);
}

// The task's gradient against differences of its loss, in double precision, of every eleventh number of each parameter.
TEST_CASE("gradients of a discrete VAE are those of its loss, the divergence included", "[dvae]") {
  nn::Engine engine({}, "ref");
  const DvaeConfig config = smallest();
  Dvae net(config, {[](std::uint64_t) { return 0.7; }, [](std::uint64_t) { return 6.6; }});
  const std::vector<std::uint8_t> pixels = drawings(2, config.side, 1);
  DvaeTask task(engine, net, DType::f64, 2, -100, [&](std::uint64_t, std::uint64_t) { return pixels; });
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(*net.layers);
  nn::initialise(engine, parameters, DType::f64, 3);
  // Biases that are 0 would leave some functions at the corner of a ReLU.
  for (nn::Parameter* each : parameters) {
    if (!each->name.ends_with(".bias")) continue;
    Random random(17, Stream::test, each->shape.size());
    std::vector<double> values(each->shape.size());
    for (double& value : values) value = 0.2 * random.normal();
    engine.write(each->value, std::as_bytes(std::span(values)));
  }
  for (nn::Parameter* each : parameters) each->gradient = engine.zeros(each->shape, DType::f64, nn::Use::gradients);
  const double scale = 0.5;
  const auto loss = [&](nn::Stash* stash) {
    nn::Pass pass{engine};
    pass.stash = stash;
    pass.seed = 9;
    double sum = 0;
    const auto add = [&](const nn::Tensor& losses) {
      for (const double each : engine.to_host<double>(losses)) sum += each;
    };
    pass.on_loss = add;
    add(train::run_micro_batch(task, pass, scale).losses);
    return sum;
  };
  nn::Stash stash;
  loss(&stash);
  CHECK(stash.empty());
  std::size_t checked = 0;
  for (nn::Parameter* parameter : parameters) {
    std::vector<double> values = engine.to_host<double>(parameter->value);
    const std::vector<double> gradient = engine.to_host<double>(parameter->gradient);
    for (std::size_t i = 0; i < values.size(); i += 11) {
      const double before = values[i];
      const auto at = [&](double value) {
        values[i] = value;
        engine.write(parameter->value, std::as_bytes(std::span(values)));
        return loss(nullptr);
      };
      const double step = 1e-5;
      const double slope = (at(before + step) - at(before - step)) / (2 * step) * scale;
      at(before);
      INFO(parameter->name << " " << i << ": " << gradient[i] << ", by differences " << slope);
      CHECK(std::abs(gradient[i] - slope) < 1e-5 + 1e-4 * std::abs(slope));
      ++checked;
    }
  }
  CHECK(checked > 100);
}

TEST_CASE("the weight of the divergence is beta / 192 where a token stands for 8 x 8 pixels", "[dvae]") {
  for (const auto& [name, divisor] : {std::pair("full", 192.0), {"emoji", 192.0}, {"emoji-16", 48.0}}) {
    const DvaeConfig config = find_dvae(name);
    const double tokens = static_cast<double>(config.grid() * config.grid());
    CHECK(std::abs(tokens / static_cast<double>(config.values()) * divisor - 1) < 1e-12);
  }
}

TEST_CASE("a discrete VAE learns, and its files give the same codes", "[dvae]") {
  constexpr std::uint64_t steps = 300;
  constexpr std::size_t images = 16;
  nn::Engine engine;
  const DvaeConfig config = smallest();
  const DvaeSchedule schedule = short_schedule(steps);
  Dvae net(config, schedule.course());
  DvaeTask task(engine, net, DType::f32, images, -3,
                [&](std::uint64_t step, std::uint64_t) { return drawings(images, config.side, step); });
  train::Trainer trainer(engine, task, options_of(schedule, 1));
  const double first = trainer.step().loss;
  double last = 0;
  while (trainer.steps() < steps) last = trainer.step().loss;
  INFO("loss " << first << ", then " << last);
  CHECK(last < first - 0.5);

  DvaeCoder coder(engine, net, DType::f32, 5);
  const std::vector<std::uint8_t> pixels = drawings(12, config.side, 1000);
  const std::vector<std::int32_t> codes = coder.encode(pixels);
  REQUIRE(codes.size() == 12 * config.grid() * config.grid());
  const std::vector<std::uint8_t> found = coder.decode(codes);
  REQUIRE(found.size() == pixels.size());
  double error = 0, of_grey = 0;
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const int pixel = pixels[i];
    error += std::pow(found[i] - pixel, 2);
    of_grey += std::pow(120 - pixel, 2);
  }
  INFO("squared error " << error << ", that of grey " << of_grey);
  CHECK(error < 0.7 * of_grey);

  const test::TempDir folder;
  const auto path = folder.path() / "model.safetensors";
  save_dvae(engine, net, {config, -3}).save(path);
  nn::Engine other;
  LoadedDvae loaded = load_dvae(other, path);
  CHECK(loaded.description.least_log_b == -3);
  CHECK(architecture_of(loaded.description.config) == architecture_of(config));
  DvaeCoder again(other, *loaded.net, DType::f32);
  CHECK(again.encode(pixels) == codes);
  CHECK(again.decode(codes) == found);
  CHECK(load_dvae(other, path).hash == loaded.hash);

  ImageTokens tokens{config.grid(), config.codes, loaded.hash, "0123", codes};
  const auto token_path = folder.path() / "tokens.safetensors";
  to_file(tokens).save(token_path);
  const ImageTokens read = load_image_tokens(token_path);
  CHECK(read.tokens == codes);
  CHECK(read.images() == 12);
  CHECK(read.model == loaded.hash);
  CHECK(has(message_of(ErrorKind::data, [&] { load_image_tokens(path); }), "not a model of kind 'image-tokens'"));
  tokens.tokens[3] = static_cast<std::int32_t>(config.codes);
  to_file(tokens).save(token_path);
  CHECK(has(message_of(ErrorKind::data, [&] { load_image_tokens(token_path); }), "token 3 is 16; expected 0 to 15"));
  CHECK(has(message_of(ErrorKind::data, [&] { coder.decode(tokens.tokens); }), "token 3 is 16; expected 0 to 15"));

  TensorFile short_file = save_dvae(engine, net, {config, -3});
  short_file.tensors.erase("decoder.blocks.input.weight");
  short_file.save(path);
  CHECK(has(message_of(ErrorKind::data, [&] { load_dvae(other, path); }), "decoder.blocks.input.weight"));
}

// Pixels of NaN were unspecified bytes, and images whose logits are NaN had the first code everywhere.
TEST_CASE("a discrete VAE whose results are no numbers makes neither codes nor images", "[dvae]") {
  for (const std::string broken : {"encoder", "decoder"}) {
    INFO(broken);
    nn::Engine engine;
    Dvae net(smallest());
    const std::vector<nn::Parameter*> parameters = nn::parameters_of(*net.layers);
    nn::initialise(engine, parameters, DType::f32, 3);
    for (nn::Parameter* each : parameters) {
      if (each->name != broken + ".blocks.output.conv.bias") continue;
      std::vector<float> values = engine.to_host<float>(each->value);
      values[1] = std::numeric_limits<float>::quiet_NaN();
      engine.write(each->value, std::as_bytes(std::span(values)));
    }
    DvaeCoder coder(engine, net, DType::f32, 2);
    const std::vector<std::uint8_t> pixels = drawings(3, net.config.side, 1);
    const std::vector<std::int32_t> codes(3 * net.config.grid() * net.config.grid());
    const std::string of_images = message_of(ErrorKind::data, [&] { coder.encode(pixels); });
    const std::string of_codes = message_of(ErrorKind::data, [&] { coder.decode(codes); });
    if (broken == "encoder") {
      CHECK(has(of_images, "logits of an image are infinite or no numbers: the training of the discrete VAE has diverged"));
      CHECK(of_codes == "no error");
    } else {
      CHECK(of_images == "no error");
      CHECK(has(of_codes, "pixels of an image are no numbers: the training of the discrete VAE has diverged"));
    }
  }
}

TEST_CASE("as many images are encoded at once as have a gigabyte of maps", "[dvae]") {
  CHECK(images_at_once(find_dvae("full"), DType::f32) == 4);
  CHECK(images_at_once(find_dvae("full"), DType::bf16) == 8);
  DvaeConfig config;
  CHECK(images_at_once(config, DType::f32) == 32);
  config.side = 1U << 14U;
  CHECK(images_at_once(config, DType::f32) == 1);
}

TEST_CASE("a discrete VAE learns the same in any micro-batches", "[dvae]") {
  constexpr std::size_t batch = 4;
  std::vector<double> expected;
  for (const std::size_t images : {4U, 2U, 1U}) {
    INFO(images);
    const DvaeConfig config = smallest();
    nn::Engine engine;
    Dvae net(config, short_schedule(100).course());
    DvaeTask task(engine, net, DType::f32, images, -3, [&](std::uint64_t step, std::uint64_t which) {
      std::vector<std::uint8_t> pixels;
      for (std::size_t i = 0; i < images; ++i) {
        const std::vector<std::uint8_t> one = drawings(1, config.side, step * batch + which * images + i);
        pixels.insert(pixels.end(), one.begin(), one.end());
      }
      return pixels;
    });
    train::TrainOptions options;
    options.micro_batches = batch / images;
    options.rate.peak = 0.01;
    options.optimizer.rule = "sgd";
    train::Trainer trainer(engine, task, options);
    std::vector<double> losses;
    for (int i = 0; i < 4; ++i) losses.push_back(trainer.step().loss);
    if (expected.empty()) expected = losses;
    CHECK(test::compare(losses, expected, 1e-5) == "");
  }
}

TEST_CASE("a training of a discrete VAE goes on from its state to the bit", "[dvae]") {
  const DvaeConfig config = smallest();
  const DvaeSchedule schedule = short_schedule(20);
  const auto state_after = [&](std::uint64_t pause) {
    TensorFile saved;
    std::vector<double> state;
    for (const std::uint64_t end : {pause, std::uint64_t{12}}) {
      nn::Engine engine;
      Dvae net(config, schedule.course());
      DvaeTask task(engine, net, DType::f32, 4, -100,
                    [&](std::uint64_t step, std::uint64_t part) { return drawings(4, config.side, 2 * step + part); });
      train::Trainer trainer(engine, task, options_of(schedule, 2));
      if (!saved.tensors.empty()) test::load(trainer, saved);
      while (trainer.steps() < end) trainer.step();
      saved = test::saved(trainer);
      state = test::all_of(engine, trainer.parameters(), &nn::Parameter::value);
    }
    return state;
  };
  CHECK(state_after(12) == state_after(5));
}

TEST_CASE("a codebook of which little is used has collapsed", "[dvae]") {
  DvaeEvaluation evaluation;
  evaluation.counts.assign(512, 0);
  evaluation.counts[3] = 1000;
  CHECK(evaluation.perplexity() == 1);
  CHECK(evaluation.codes_in_use() == 1);
  CHECK(evaluation.has_collapsed());
  evaluation.counts.assign(512, 7);
  CHECK(std::abs(evaluation.perplexity() - 512) < 1e-6);
  CHECK_FALSE(evaluation.has_collapsed());
}
