// How far sets of images are apart, and which images two sets share, as a user asks it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "data/image.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

namespace fs = std::filesystem;

// Two sets of pairs and a contrastive model.
struct TwoSets : Workplace {
  TwoSets() {
    run({"data", "synth-pairs", "--count", "60", "--side", "32", "--seed", "3", "--out", "scenes"});
    run({"data", "synth-pairs", "--count", "40", "--side", "32", "--seed", "4", "--out", "others"});
    run({"train", "clip", "--data", "scenes", "--net", "tiny", "--side", "16", "--batch", "12", "--steps", "24", "--out",
         "near"});
  }
};

// An image of `data synth-pairs`, in its folder.
std::string picture(std::size_t i) { return fmt::format("png/{:06}.png", i); }

}  // namespace

TEST_CASE("sets of images are compared in features of a contrastive model and of a convolutional net", "[quality]") {
  const TwoSets place;
  const Args by_clip = {"--features", "near", "--json"};
  const auto compared = [&](const Args& sets, const Args& more) {
    return Json::parse(place.run(with(with({"compare"}, sets), more)));
  };
  const Json same = compared({"scenes", "scenes"}, by_clip);
  CHECK(same["kind"] == "clip");
  CHECK(same["columns"] == 16);
  CHECK(same["a"]["images"] == 60);
  CHECK(std::abs(same["frechet_distance"].get<double>()) < 1e-9);
  CHECK_FALSE(same["a"].contains("inception_score"));
  const Json apart = compared({"scenes", "others"}, by_clip);
  CHECK(apart["b"]["images"] == 40);
  CHECK(apart["frechet_distance"].get<double>() > 1e-6);
  CHECK(compared({"others", "scenes"}, by_clip)["frechet_distance"].get<double>() ==
        Approx(apart["frechet_distance"].get<double>()).epsilon(1e-6));
  // The files alone are the same set as the pairs; the first 40 of it are not.
  CHECK(compared({"scenes", "others"}, with(by_clip, {"--count", "20"}))["a"]["images"] == 20);
  // Blurred images are further from sharp ones; two sets that are blurred alike are not the sharp ones.
  const double blurred = compared({"scenes", "others"}, with(by_clip, {"--blur", "3"}))["frechet_distance"].get<double>();
  CHECK(blurred >= 0);
  CHECK(blurred != apart["frechet_distance"].get<double>());

  // A net that classifies.
  place.run({"train", "cnn", "--data", "synth", "--net", "tiny", "--max-train", "200", "--max-test", "20", "--validation", "0",
             "--batch", "40", "--steps", "10", "--out", "classes"});
  const Json by_cnn = compared({"scenes", "others"},
                               {"--features", "classes", "--json", "--parts", "4", "--write-features", "features.safetensors"});
  CHECK(by_cnn["kind"] == "cnn");
  CHECK(by_cnn["classes"] == 10);
  for (const char* set : {"a", "b"}) {
    CHECK(by_cnn[set]["inception_score"].get<double>() >= 1);
    CHECK(by_cnn[set]["inception_score"].get<double>() <= 10);
    CHECK(by_cnn[set]["inception_score_deviation"].get<double>() > 0);
  }
  const TensorFile written = TensorFile::load(place / "features.safetensors", Checksum::required);
  CHECK(written.get("a").shape == std::vector<std::size_t>{60, by_cnn["columns"].get<std::size_t>()});
  CHECK(written.get("probabilities_b").shape == std::vector<std::size_t>{40, 10});

  // A folder of files without captions, and tokens of a discrete VAE.
  fs::create_directories(place / "files/deeper");
  for (std::size_t i = 0; i < 5; ++i) {
    fs::copy_file(place / ("scenes/" + picture(i)), place / fmt::format("files/{}{}.png", i % 2 == 0 ? "deeper/" : "", i));
  }
  CHECK(compared({"files", "scenes"}, by_clip)["a"]["images"] == 5);
  place.run({"train", "dvae", "--data", "scenes", "--net", "tiny", "--batch", "12", "--steps", "20", "--out", "codes"});
  place.run({"encode", "codes", "--out", "tokens.safetensors"});
  const Json drawn = compared({"tokens.safetensors", "scenes"}, with(by_clip, {"--dvae", "codes"}));
  CHECK(drawn["a"]["images"] == 60);
  CHECK(drawn["frechet_distance"].get<double>() > apart["frechet_distance"].get<double>());
  const std::string text = place.run({"compare", "scenes", "others", "--features", "classes"});
  CHECK(has(text, "Frechet distance in "));
  CHECK(has(text, " features of classes: "));
  CHECK(has(text, "inception score by the 10 classes of classes, others: "));

  place.refuses({"compare", "scenes", "others"}, 2, "--features: missing");
  place.refuses({"compare", "scenes", "--features", "near"}, 2, "IMAGES");
  place.refuses({"compare", "scenes", "nothing", "--features", "near"}, 3, "nothing: there is no such file or folder");
  place.refuses({"compare", "scenes", "others", "--features", "codes"}, 3,
                "a model of kind dvae; expected one of kind clip or cnn");
  place.refuses({"compare", "scenes", "tokens.safetensors", "--features", "near"}, 2,
                "--dvae: missing; tokens.safetensors has tokens");
  place.refuses({"compare", "scenes", "others", "--features", "near", "--count", "1"}, 3,
                "scenes: 1 images; expected at least 2");
  place.refuses({"compare", "scenes", "others", "--features", "classes", "--parts", "41"}, 2,
                "--parts: 41; expected 1 to the 40 images");
  fs::create_directories(place / "empty");
  place.refuses({"compare", "empty", "others", "--features", "near"}, 3, "empty: no PNG or JPEG files in the folder");
}

TEST_CASE("planted copies of images are found by a contrastive model, in another set and in the same", "[quality]") {
  const TwoSets place;
  // A test set with one of the images as it is and one that differs in a few pixels.
  fs::create_directories(place / "test");
  for (std::size_t i = 0; i < 6; ++i) {
    fs::copy_file(place / ("others/" + picture(i)), place / fmt::format("test/{}.png", i));
  }
  const std::string first = picture(17), second = picture(41);
  fs::copy_file(place / ("scenes/" + first), place / "test/copy.png");
  data::Image changed = data::read_image(place / ("scenes/" + second));
  for (std::size_t i = 0; i < changed.pixels.size(); i += 97) changed.pixels[i] ^= 1U;
  data::write_png(changed.pixels, changed.shape, place / "test/nearly.png");
  const auto found = [&](const Args& more) {
    return Json::parse(place.run(with({"data", "pairs", "scenes", "--clip", "near", "--json"}, more)))["overlap"];
  };
  const Json near = found({"--overlap", "test", "--nearest", "0.99999"});
  std::set<std::pair<std::string, std::string>> pairs;
  for (const Json& each : near["near"]) {
    CHECK(each["similarity"].get<double>() >= 0.99999);
    pairs.emplace(each["image"], each["other"]);
  }
  CHECK(pairs.contains({first, "copy.png"}));
  CHECK(pairs.contains({second, "nearly.png"}));
  CHECK(near["pairs"] == near["near"].size());
  CHECK(near["near"][0]["similarity"].get<double>() == Approx(1).epsilon(1e-6));
  // All are near by any measure, and none is nearer than itself.
  CHECK(found({"--overlap", "test", "--nearest", "-1"})["pairs"] == 60 * 8);

  // Within one set: what it has twice.
  const Json before = found({"--overlap", "scenes", "--nearest", "0.9999999"});
  std::string captions = read_file(place / "scenes/captions.jsonl");
  fs::copy_file(place / ("scenes/" + first), place / "scenes/png/again.png");
  captions += R"({"image": "again.png", "caption": "the same picture of a shape once again"})" + std::string("\n");
  write_file(place / "scenes/captions.jsonl", captions);
  const Json after = found({"--overlap", "scenes", "--nearest", "0.9999999"});
  CHECK(after["pairs"].get<std::size_t>() > before["pairs"].get<std::size_t>());
  CHECK(std::ranges::any_of(after["near"],
                            [&](const Json& each) { return each["image"] == first && each["other"] == "png/again.png"; }));
  // An image with a second caption is not there twice.
  captions +=
      fmt::format(R"({{"image": "{}", "caption": "a second caption of it"}})", fs::path(first).filename().string()) + "\n";
  write_file(place / "scenes/captions.jsonl", captions);
  CHECK(found({"--overlap", "scenes", "--nearest", "0.9999999"})["pairs"] == after["pairs"]);
  const std::string text = place.run({"data", "pairs", "scenes", "--overlap", "test", "--clip", "near", "--nearest", "0.99999",
                                      "--most", "1", "--sheet", "near.png", "--side", "16"});
  CHECK(has(text, "are near one of test"));
  CHECK(has(text, "... and "));
  CHECK(data::read_image(place / "near.png").shape.height >= 16);

  place.refuses({"data", "pairs", "scenes", "--overlap", "test"}, 2, "--clip: missing");
  place.refuses({"data", "pairs", "scenes", "--clip", "near"}, 2, "--clip: near has no effect; it needs --overlap");
  place.refuses({"data", "pairs", "scenes", "--overlap", "none", "--clip", "near"}, 3, "none");
}
