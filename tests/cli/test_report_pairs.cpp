// `bitloom report` for runs of models of images and captions, and the pictures that trainings leave for it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "data/image.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/report/page.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;
using report::count_of;

namespace fs = std::filesystem;

namespace {

// Pairs, of which few are held back, and a discrete VAE of 4 x 4 tokens of 32 codes for images of 16 x 16 pixels.
struct PagesOfPairs : Workplace {
  PagesOfPairs() {
    run({"data", "synth-pairs", "--count", "60", "--side", "32", "--seed", "3", "--out", "scenes"});
    run(dvae("codes"));
  }
  static Args dvae(const std::string& out, const Args& more = {}) {
    return with({"train", "dvae", "--data", "scenes", "--net", "tiny", "--batch", "12", "--steps", "30", "--sample-every", "10",
                 "--out", out},
                more);
  }
  static Args dalle(const std::string& out, const Args& more = {}) {
    return with({"train",   "dalle", "--data",           "scenes", "--dvae",         "codes",
                 "--net",   "tiny",  "--text-positions", "24",     "--batch",        "12",
                 "--steps", "24",    "--evaluate-every", "8",      "--sample-every", "6",
                 "--out",   out},
                more);
  }
  std::string page_of(const std::string& name) const {
    run({"report", name, "--out", "page.html"});
    const std::string page = read_file(folder / "page.html");
    report::require_self_contained(page);
    return page;
  }
  std::set<std::string> pictures_of(const std::string& name) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder / (name + "/samples"))) names.insert(entry.path().filename());
    return names;
  }
  data::Image picture(const std::string& name, const std::string& file) const {
    return data::read_image(folder / (name + "/samples/" + file));
  }
};

std::vector<std::uint64_t> sampled_steps(const fs::path& run) {
  std::vector<std::uint64_t> steps;
  for (const Json& line : read_metrics(run / "metrics.jsonl")) {
    if (line["event"] == "samples") steps.push_back(line["step"]);
  }
  return steps;
}

// The 16 x 16 pixels of cell `cell` of a row of cells of `images` images, at `place` of it.
std::vector<std::uint8_t> cut(const data::Image& row, std::size_t cell, std::size_t place = 0, std::size_t images = 1) {
  std::vector<std::uint8_t> pixels;
  const std::size_t left = cell * (images * 16 + 4) + 4 + place * 16;
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t y = 4; y < 20; ++y) {
      const auto begin = row.pixels.begin() + static_cast<std::ptrdiff_t>((c * row.shape.height + y) * row.shape.width + left);
      pixels.insert(pixels.end(), begin, begin + 16);
    }
  }
  return pixels;
}

}  // namespace

TEST_CASE("a discrete VAE's training keeps pictures of what it makes of held-out images, and the report shows them", "[dvae]") {
  const PagesOfPairs place;
  CHECK(place.pictures_of("codes") == std::set<std::string>{"originals.png", "step-10.png", "step-20.png", "step-30.png"});
  CHECK(sampled_steps(place.folder / "codes") == std::vector<std::uint64_t>{10, 20, 30});
  // Those of the last step are what the model makes of the originals.
  const Json line = read_metrics(place.folder / "codes/metrics.jsonl").back();
  const std::size_t held_back = read_metrics(place.folder / "codes/metrics.jsonl").front()["validation_images"];
  const std::size_t shown = std::min<std::size_t>(8, held_back);
  REQUIRE(shown >= 2);
  place.run({"reconstruct", "codes", "--count", "100", "--columns", "100", "--out", "all.png"});
  const data::Image all = data::read_image(place.folder / "all.png");
  const data::Image last = place.picture("codes", "step-30.png");
  const data::Image originals = place.picture("codes", "originals.png");
  for (std::size_t i = 0; i < shown; ++i) {
    const std::size_t at = i * held_back / shown;
    CHECK(cut(originals, i) == cut(all, at, 0, 2));
    CHECK(cut(last, i) == cut(all, at, 1, 2));
  }
  CHECK(cut(last, 0) != cut(place.picture("codes", "step-10.png"), 0));

  const std::string page = place.page_of("codes");
  for (const char* text : {"discrete VAE tiny", ">Validation PSNR<", ">Lower bound<", "id=\"samples\"", ">step 10</th>",
                           ">original</th>", "id=\"reconstructions\"", "id=\"codes\"", "tokens of 32 codes"}) {
    INFO(text);
    CHECK(has(page, text));
  }
  CHECK_FALSE(has(page, "Not shown"));
  CHECK(count_of(page, "<img ") == 4 * shown + 2 * held_back);
  // As `eval` measures them.
  const Json measured = Json::parse(place.run({"eval", "codes", "--json"}));
  CHECK(has(page, fmt::format("{} held-out images are {} tokens of 32 codes: {} are used", held_back, 16 * held_back,
                              measured["codes_in_use"].get<int>())));

  // Pictures that are damaged or of other sizes, no images, no model: the page says so.
  write_file(place.folder / "codes/samples/step-10.png", "no picture");
  fs::copy_file(place.folder / "all.png", place.folder / "codes/samples/originals.png", fs::copy_options::overwrite_existing);
  fs::rename(place.folder / "scenes", place.folder / "away");
  const std::string less = place.page_of("codes");
  CHECK(has(less, "Not shown:</b> images by step: a picture cannot be used ("));
  CHECK(has(less, "the original images cannot be used ("));
  CHECK(has(less, "Not shown:</b> reconstructions and the use of codes: "));
  CHECK(has(less, ">step 20</th>"));
  CHECK_FALSE(has(less, ">step 10</th>"));
  CHECK_FALSE(has(less, "id=\"codes\""));
  fs::rename(place.folder / "away", place.folder / "scenes");
  // A last line that is torn; then no metrics at all.
  const std::string metrics = read_file(place.folder / "codes/metrics.jsonl");
  write_file(place.folder / "codes/metrics.jsonl", metrics.substr(0, metrics.size() - 20));
  CHECK(has(place.page_of("codes"), "This run is unfinished"));
  fs::remove(place.folder / "codes/metrics.jsonl");
  const std::string bare = place.page_of("codes");
  CHECK(has(bare, "The run has no metrics."));
  CHECK(has(bare, "id=\"codes\""));
  fs::remove(place.folder / "codes/model.safetensors");
  CHECK(run_program(place.folder.path(), {"report", "codes"}).code == 3);
}

TEST_CASE("a text-to-image transformer draws for the same captions as it trains, however often it is stopped", "[dalle]") {
  const PagesOfPairs place;
  place.run(PagesOfPairs::dalle("whole"));
  const std::set<std::string> names{"originals.png", "step-12.png", "step-18.png", "step-24.png", "step-6.png"};
  CHECK(place.pictures_of("whole") == names);
  // Without pictures it is the same training.
  place.run(PagesOfPairs::dalle("plain", {"--sample-every", "0"}));
  CHECK_FALSE(fs::exists(place.folder / "plain/samples"));
  CHECK(read_file(place.folder / "plain/model.safetensors") == read_file(place.folder / "whole/model.safetensors"));
  {
    const Hold hold(place.folder.path(), 9);
    Background background(place.folder.path(), with(PagesOfPairs::dalle("part"), Hold::option()), 0, mpi_settings());
    REQUIRE(background.wait_for("step 8/24"));
    background.signal(SIGTERM);
    CHECK(background.wait().code == 4);
  }
  CHECK(place.pictures_of("part") == std::set<std::string>{"originals.png", "step-6.png"});
  // A picture of a step that no checkpoint has.
  fs::copy_file(place.folder / "part/samples/step-6.png", place.folder / "part/samples/step-11.png");
  place.run({"train", "dalle", "--resume", "--out", "part"});
  CHECK(place.pictures_of("part") == names);
  for (const std::string& name : names) {
    INFO(name);
    CHECK(read_file(place.folder / ("part/samples/" + name)) == read_file(place.folder / ("whole/samples/" + name)));
  }
  CHECK(sampled_steps(place.folder / "part") == std::vector<std::uint64_t>{6, 12, 18, 24});
  CHECK(read_file(place.folder / "part/model.safetensors") == read_file(place.folder / "whole/model.safetensors"));
  CHECK(read_file(place.folder / "whole/samples/step-6.png") != read_file(place.folder / "whole/samples/step-24.png"));

  std::string page = place.page_of("part");
  for (const char* text : {"text-to-image transformer", ">Image loss<", ">Text loss<", "training pairs: ", "id=\"samples\"",
                           ">step 6</th>", ">step 24</th>", ">original as its codes hold it</th>", ">original</th>"}) {
    INFO(text);
    CHECK(has(page, text));
  }
  CHECK_FALSE(has(page, "Not shown"));
  // Without the discrete VAE: what was drawn is there.
  fs::rename(place.folder / "codes", place.folder / "away");
  page = place.page_of("part");
  CHECK(has(page, "Not shown:</b> images of new captions: `bitloom sample` cannot draw them"));
  CHECK(has(page, ">original as its codes hold it</th>"));
}

TEST_CASE("images are drawn for the captions that are given, by rank 0 of several processes", "[dalle][mpi]") {
  const PagesOfPairs place;
  const Args prompts{"--sample-prompt", "a large red circle at the top", "--sample-prompt", "a small blue ring <&>"};
  place.run(PagesOfPairs::dalle("run", prompts), 2);
  CHECK(place.pictures_of("run") == std::set<std::string>{"step-12.png", "step-18.png", "step-24.png", "step-6.png"});
  const data::Image picture = place.picture("run", "step-24.png");
  CHECK(picture.shape.width == 2 * 20 + 4);
  CHECK(picture.shape.height == 24);
  const std::string page = place.page_of("run");
  CHECK(has(page, ">a small blue ring &lt;&amp;&gt;</th>"));
  CHECK_FALSE(has(page, ">original</th>"));
  CHECK_FALSE(has(page, "Not shown"));
  // The prompts belong to the run.
  place.run({"train", "dalle", "--resume", "--steps", "26", "--out", "run"});
  const std::vector<Json> lines = read_metrics(place.folder / "run/metrics.jsonl");
  const auto sample = std::ranges::find_if(lines.rbegin(), lines.rend(), [](const Json& l) { return l["event"] == "samples"; });
  CHECK((*sample)["step"] == 26);
  CHECK((*sample)["captions"] == Json{prompts[1], prompts[3]});
  // Others take their place in the page, where pictures of the former ones have no captions any more.
  place.run({"train", "dalle", "--resume", "--steps", "28", "--sample-prompt", "a green cross", "--out", "run"});
  const std::string changed = place.page_of("run");
  CHECK(has(changed, ">a green cross</th>"));
  CHECK_FALSE(has(changed, ">step 24</th>"));

  place.refuses(PagesOfPairs::dalle("a", {"--sample-every", "often"}), 2, "--sample-every: 'often'; expected auto or a");
  place.refuses(PagesOfPairs::dalle("a", with(prompts, {"--sample-every", "0"})), 2, "--sample-prompt");
  place.refuses(PagesOfPairs::dalle("a", {"--validation", "0", "--evaluate-every", "0"}), 2, "--sample-every: 6 has no effect");
  place.refuses(PagesOfPairs::dvae("a", {"--validation", "0"}), 2, "--sample-every: 10 has no effect");
  CHECK_FALSE(fs::exists(place.folder / "a"));
}

TEST_CASE("the report of a contrastive model's run shows which captions are near which images", "[clip]") {
  const PagesOfPairs place;
  const Args train{"train", "clip",    "--data", "scenes",           "--net", "tiny",  "--side", "16", "--batch",
                   "12",    "--steps", "24",     "--evaluate-every", "8",     "--out", "run"};
  place.run(train);
  const std::vector<Json> lines = read_metrics(place.folder / "run/metrics.jsonl");
  std::vector<Json> evaluations;
  std::ranges::copy_if(lines, std::back_inserter(evaluations), [](const Json& line) { return line["event"] == "evaluation"; });
  REQUIRE(evaluations.size() == 3);
  for (const Json& line : evaluations) {
    CHECK(line["temperature"].get<double>() > 0.01);
    CHECK(line["temperature"].get<double>() < 0.15);  // it begins with 0.07
  }
  const std::string page = place.page_of("run");
  for (const char* text : {"contrastive model", ">Captions found<", ">chance<", ">Temperature<", "id=\"similarities\""}) {
    INFO(text);
    CHECK(has(page, text));
  }
  CHECK_FALSE(has(page, "Not shown"));
  const std::size_t pairs = lines.front()["validation_pairs"];
  REQUIRE(pairs <= 12);
  CHECK(count_of(page, "<image ") == 2 * pairs);
  CHECK(has(page, fmt::format("among all {} held-out ones", pairs)));
  // All held-out pairs are in the table: ranks of 1 are those that retrieval counts, by the model of the best evaluation.
  const Json best = *std::ranges::min_element(evaluations, {}, [](const Json& line) { return line["loss"].get<double>(); });
  const auto own = [&](const char* key) {
    return static_cast<std::size_t>(std::lround(best[key].get<double>() * static_cast<double>(pairs)));
  };
  CHECK(count_of(page, "caption&#39;s rank\">1<") == own("texts_at_1"));
  CHECK(count_of(page, "image&#39;s rank\">1<") == own("images_at_1"));
  fs::remove_all(place.folder / "scenes");
  const std::string without = place.page_of("run");
  CHECK(has(without, "Not shown:</b> cosines of captions and images: "));
  CHECK(has(without, ">Captions found<"));
}
