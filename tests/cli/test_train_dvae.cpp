// Discrete VAEs as a user trains them: a run, what is done with it, an interrupted one, several processes, what is refused.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/adam_options.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "data/image.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

namespace fs = std::filesystem;

// Rectangles of a colour before one of another, with captions; no two are alike.
void write_pairs(const fs::path& folder, std::size_t count, std::size_t side = 16) {
  fs::create_directories(folder);
  std::string captions;
  for (std::size_t i = 0; i < count; ++i) {
    Random random(7, Stream::test, i);
    std::vector<std::uint8_t> pixels(3 * side * side);
    const std::size_t left = random.below(12), top = random.below(12);
    for (std::size_t c = 0; c < 3; ++c) {
      const auto behind = static_cast<std::uint8_t>(random.below(2) * 180 + random.below(40));
      const auto before = static_cast<std::uint8_t>(random.below(2) * 180 + random.below(40));
      for (std::size_t p = 0; p < side * side; ++p) {
        pixels[c * side * side + p] = p / side >= top && p % side >= left ? before : behind;
      }
    }
    const std::string name = fmt::format("{}.png", i);
    data::write_png(pixels, {side, side, 3}, folder / name);
    captions += Json{{"image", name}, {"caption", fmt::format("rectangle number {}", i)}}.dump() + "\n";
  }
  write_file(folder / "captions.jsonl", captions);
}

Args quick(const std::string& out, int steps = 12) {
  return {"train",
          "dvae",
          "--data",
          "pairs",
          "--net",
          "tiny",
          "--batch",
          "12",
          "--steps",
          fmt::format("{}", steps),
          "--evaluate-every",
          "4",
          "--average",
          "0",
          "--out",
          out};
}

}  // namespace

TEST_CASE("a discrete VAE is trained and learns, and the verbs know what it is", "[dvae]") {
  const TempDir folder;
  write_pairs(folder / "pairs", 120);
  const auto run = [&](const Args& args) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(fmt::format("{}", fmt::join(args, " ")) << "\n" << outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  const std::string out = run(with(quick("run", 200), {"--evaluate-every", "100", "--kl-weight", "0.5"}));
  CHECK(has(out, "16 x 16 pixels become 4 x 4 tokens of 32 codes"));
  CHECK(has(out, "validation PSNR"));
  const std::vector<Json> evaluations = lines_of(folder / "run", "evaluation");
  REQUIRE(evaluations.size() == 2);
  for (const char* key : {"psnr", "relaxed_elb", "hard_elb", "kl", "codes_in_use", "perplexity", "temperature", "kl_weight"}) {
    INFO(key);
    CHECK(std::isfinite(evaluations[0][key].get<double>()));
  }
  CHECK(evaluations[1]["temperature"] == 0.0625);
  CHECK(std::abs(evaluations[1]["loss"].get<double>() + evaluations[1]["hard_elb"].get<double>()) < 1e-12);
  CHECK(evaluations[1]["psnr"].get<double>() > 10);

  const Json measured = Json::parse(run({"eval", "run", "--json"}));
  CHECK(measured["psnr"] == evaluations[1]["psnr"]);
  CHECK(measured["hard_elb"] == evaluations[1]["hard_elb"]);
  CHECK(measured["images"] == evaluations[1]["images"]);
  // The colder the relaxation, the nearer is its bound to that of codes; the same draws make both.
  double gap = 1e9;
  for (const char* temperature : {"2", "0.5", "0.125", "0.001"}) {
    const Json cold = Json::parse(run({"eval", "run", "--json", "--temperature", temperature}));
    CHECK(cold["hard_elb"] == measured["hard_elb"]);
    const double now = std::abs(cold["relaxed_elb"].get<double>() - cold["hard_elb"].get<double>());
    INFO("temperature " << temperature << ": " << now << " after " << gap);
    CHECK(now < gap);
    gap = now;
  }
  CHECK(gap < 1e-3);
  CHECK(Json::parse(run({"eval", "run", "--json", "--split", "train"}))["images"] == 120 - measured["images"].get<int>());
  CHECK(Json::parse(run({"eval", "run", "--json", "--split", "all"}))["images"] == 120);
  CHECK(has(run({"inspect", "run"}), "encoder.group_3"));
  run({"verify", "run"});

  // Not over the model, nor over another file of the run.
  for (const auto& [out, says] : {std::pair("run/model.safetensors", "it is the model itself"),
                                  std::pair("run/checkpoint.safetensors", "it is a file of a run")}) {
    const Outcome over = run_program(folder.path(), {"encode", "run", "--out", out});
    CHECK(over.code == 2);
    CHECK(has(over.err, says));
  }
  CHECK(has(run({"encode", "run", "--out", "tokens"}), "120 images as 4 x 4 tokens of 32 codes"));
  const TensorFile tokens = TensorFile::load(folder / "tokens", Checksum::required);
  CHECK(tokens.get("tokens").shape == std::vector<std::size_t>{120, 4, 4});
  const auto codes = tokens.get("tokens").as<std::int32_t>();
  CHECK(std::ranges::all_of(codes, [](std::int32_t code) { return code >= 0 && code < 32; }));
  CHECK(std::ranges::any_of(codes, [&](std::int32_t code) { return code != codes[0]; }));

  run({"reconstruct", "run", "--out", "grid.png", "--count", "6", "--columns", "3"});
  const data::Image grid = data::read_image(folder / "grid.png");
  CHECK(grid.shape.height == 2 * 20 + 4);
  CHECK(grid.shape.width == 3 * 36 + 4);
}

TEST_CASE("an interrupted training of a discrete VAE goes on to the bit", "[dvae]") {
  const TempDir folder;
  write_pairs(folder / "pairs", 40);
  REQUIRE(run_program(folder.path(), quick("whole")).code == 0);
  const Hold hold(folder.path(), 5);
  Background run(folder.path(), with(quick("parts"), Hold::option()));
  REQUIRE(run.wait_for("step 4/12"));
  run.signal(SIGINT);
  const Outcome stopped = run.wait();
  CHECK(stopped.code == 4);
  CHECK(has(stopped.err, "train dvae --resume --out parts"));
  CHECK(has(run_program(folder.path(), {"eval", "parts"}).err, "parts: not finished; this is its checkpoint after step"));
  REQUIRE(run_program(folder.path(), {"report", "parts"}).code == 0);
  const std::string page = read_file(folder / "parts/report.html");
  CHECK(has(page, "This run is unfinished"));
  CHECK(has(page, "They are those of the checkpoint after step "));
  CHECK_FALSE(has(page, "Not shown"));
  const Outcome rest = run_program(folder.path(), {"train", "dvae", "--resume", "--out", "parts"});
  INFO(rest.out << rest.err);
  REQUIRE(rest.code == 0);
  CHECK(has(rest.out + rest.err, "going on from step"));
  const TensorFile one = TensorFile::load(folder / "whole/model.safetensors", Checksum::required);
  const TensorFile two = TensorFile::load(folder / "parts/model.safetensors", Checksum::required);
  REQUIRE(one.tensors.size() == two.tensors.size());
  for (const auto& [name, tensor] : one.tensors) {
    INFO(name);
    CHECK(std::ranges::equal(tensor.bytes.span(), two.get(name).bytes.span()));
  }
}

// It was chosen by the memory that was free when the run went on: to other bits.
TEST_CASE("a training of a discrete VAE goes on with the micro-batch that it had", "[dvae]") {
  const TempDir folder;
  write_pairs(folder / "pairs", 40);
  const Args four = {"--micro-batch", "4"};
  REQUIRE(run_program(folder.path(), with(quick("whole"), four)).code == 0);
  {
    const Hold hold(folder.path(), 5);
    Background run(folder.path(), with(with(quick("parts"), four), Hold::option()));
    REQUIRE(run.wait_for("step 4/12"));
    run.signal(SIGTERM);
    CHECK(run.wait().code == 4);
    hold.release();
  }
  const Outcome rest = run_program(folder.path(), {"train", "dvae", "--resume", "--out", "parts", "--micro-batch", "auto"});
  INFO(rest.out << rest.err);
  REQUIRE(rest.code == 0);
  CHECK(has(rest.out, "(4 at once)"));
  CHECK(same_tensors(folder / "whole/checkpoint.safetensors", folder / "parts/checkpoint.safetensors"));
}

TEST_CASE("what a training of a discrete VAE cannot use is refused, and why", "[dvae]") {
  const TempDir folder;
  write_pairs(folder / "pairs", 20);
  const auto refused = [&](const Args& args, int code) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(fmt::format("{}", fmt::join(args, " ")) << "\n" << outcome.out << outcome.err);
    CHECK(outcome.code == code);
    return outcome.err;
  };
  CHECK(has(refused({"train", "dvae", "--out", "a"}, 2), "--data: missing"));
  CHECK(has(refused(with(quick("a"), {"--net", "emojy"}), 2), "emoji"));
  CHECK(has(refused(with(quick("a"), {"--batch", "64"}), 2), "--batch: 64; expected at most"));
  CHECK(has(refused(with(quick("a"), {"--last-rate", "1"}), 2), "--last-rate: 1"));
  CHECK(has(refused(with(quick("a"), {"--validation", "0"}), 2), "--evaluate-every: 4 has no effect without validation data"));
  CHECK(has(refused(with(quick("a"), {"--kl-weight", "0", "--kl-steps", "2"}), 2),
            "--kl-steps: 2 has no effect; it needs another --kl-weight than 0"));
  CHECK(has(refused(with(quick("a"), {"--data", "nothing"}), 3), "nothing"));
  fs::remove(folder / "pairs/3.png");
  CHECK(has(refused(quick("a"), 3), "3.png"));
  write_pairs(folder / "pairs", 20);

  REQUIRE(run_program(folder.path(), quick("run", 2)).code == 0);
  CHECK(has(refused(with(quick("run", 3), {"--resume", "--kl-weight", "1"}), 2), "--kl-weight"));
  CHECK(has(refused({"eval", "run", "--split", "test"}, 2), "--split: test"));
  CHECK(has(refused({"eval", "run", "--cloze", "x"}, 2), "--cloze: not for a model of kind dvae"));
  CHECK(has(refused({"encode", "run"}, 2), "--out: missing"));
  CHECK(has(refused({"predict", "run", "pairs/1.png"}, 3), "dvae"));
  CHECK(has(refused({"sample", "run"}, 3), "dvae"));
  CHECK(has(refused({"reconstruct", "pairs/1.png", "--data", "pairs", "--out", "x.png"}, 3), "1.png"));
  CHECK_FALSE(fs::exists(folder / "a"));
}

// Earlier versions averaged with a constant decay: what they began would have gone on as neither version's run.
TEST_CASE("checkpoints of averages with a constant decay are refused", "[dvae]") {
  const TempDir folder;
  write_pairs(folder / "pairs", 20);
  REQUIRE(run_program(folder.path(), with(quick("run", 4), {"--average", "0.9"})).code == 0);
  const fs::path path = folder / "run/checkpoint.safetensors";
  const TensorFile now = TensorFile::load(path, Checksum::required);
  TensorFile earlier = now;
  Json identity = Json::parse(earlier.get_metadata("bitloom.run.identity"));
  identity["average"] = 0.9;
  earlier.metadata["bitloom.run.identity"] = identity.dump();
  earlier.save(path);
  const Args more{"train", "dvae", "--resume", "--out", "run", "--steps", "6"};
  const Outcome refused = run_program(folder.path(), more);
  CHECK(refused.code == 2);
  CHECK(has(refused.err, "--average: 0.9 stored, 0.9 after a warm-up given"));
  now.save(path);
  CHECK(run_program(folder.path(), more).code == 0);

  cli::AdamSettings settings;
  train::TrainOptions options;
  CHECK_FALSE(settings.identity(options).contains("average"));
  options.optimizer.average = 0.9;
  CHECK(settings.identity(options)["average"] == "0.9 after a warm-up");
}

TEST_CASE("pictures that a diverging discrete VAE cannot make are left out, and the training says what is wrong", "[dvae]") {
  const TempDir folder;
  write_pairs(folder / "pairs", 120);
  const Args diverging = {"--learning-rate", "1e6", "--sample-every", "1", "--evaluate-every", "100"};
  const Outcome outcome = run_program(folder.path(), with(quick("run"), diverging));
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code != 0);
  CHECK(has(outcome.err, "no samples of step 1: logits of an image are infinite or no numbers"));
  CHECK(has(outcome.err, "is not finite"));
  CHECK(has(read_file(folder / "run/metrics.jsonl"), "\"event\":\"samples\",\"step\":1"));
}
