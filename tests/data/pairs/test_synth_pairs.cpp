#include "data/pairs/synth_pairs.h"

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/pairs/pairs.h"
#include "data/pairs/scene_check.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;
namespace fs = std::filesystem;

TEST_CASE("combinations held out are as many as asked for, and leave every colour and shape to training", "[pairs]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    for (const auto& [share, count] : std::map<double, std::size_t>{{0, 0}, {0.1, 6}, {0.25, 16}, {0.4, 26}}) {
      const std::set<Combination> held_out = held_out_combinations(share, seed);
      REQUIRE(held_out.size() == count);
      std::array<int, 8> of_colour{}, of_shape{};
      for (const auto& [colour, shape] : held_out) {
        REQUIRE(++of_colour[colour] <= 4);
        REQUIRE(++of_shape[shape] <= 4);
      }
    }
  }
  CHECK(held_out_combinations(0.1, 1) == held_out_combinations(0.1, 1));
  CHECK(held_out_combinations(0.1, 1) != held_out_combinations(0.1, 2));
  CHECK(message_of(ErrorKind::usage, [] { held_out_combinations(0.41, 1); }) ==
        "`hold_out`: 0.41; expected a share from 0 to 0.4");
}

TEST_CASE("training scenes have no combination that is held out, the others no other", "[pairs]") {
  SynthPairs options{.hold_out = 0.25};
  const std::set<Combination> held_out = held_out_combinations(options.hold_out, options.seed);
  std::set<Combination> seen[2];
  std::set<std::uint8_t> places, sizes;
  for (const bool part : {false, true}) {
    options.held_out = part;
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const Scene scene = synth_scene(options, held_out, i);
      REQUIRE(held_out.contains({scene.colour, scene.shape}) == part);
      seen[part].emplace(scene.colour, scene.shape);
      places.insert(scene.place);
      sizes.insert(scene.size);
    }
  }
  CHECK(seen[0].size() == 48);
  CHECK(seen[1] == held_out);
  CHECK(places.size() == 9);
  CHECK(sizes.size() == 2);
}

TEST_CASE("a made-up set of pairs is read as it was meant", "[pairs]") {
  const TempDir folder;
  const SynthPairs options{.count = 60, .seed = 3, .hold_out = 0.1};
  write_synth_pairs(options, folder / "set");
  const Pairs pairs = Pairs::open(folder / "set");
  REQUIRE(pairs.size() == 60);
  CHECK(pairs.left_out().empty());
  const std::set<Combination> held_out = held_out_combinations(0.1, 3);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto scene = parse_scene(pairs[i].caption);
    REQUIRE(scene.has_value());
    CHECK(*scene == synth_scene(options, held_out, i));
    CHECK(see_scene(pairs.image(i)).scene == *scene);
  }
  // Prompts for what was held out: 6 combinations in 2 sizes at 9 places.
  std::istringstream lines(read_file(folder / "set/held-out.jsonl"));
  std::set<std::string> captions;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    const auto scene = parse_scene(json["caption"].get<std::string>());
    REQUIRE(scene.has_value());
    CHECK(held_out.contains({scene->colour, scene->shape}));
    CHECK(json["colour"] == name_in(colour_names, scene->colour));
    CHECK(json["place"] == name_in(place_names, scene->place));
    captions.insert(json["caption"]);
  }
  CHECK(captions.size() == 6 * 2 * 9);

  // A larger set of the same seed begins with the same pictures.
  write_synth_pairs({.count = 61, .seed = 3, .hold_out = 0.1}, folder / "larger");
  CHECK(read_file(folder / "larger/png/000059.png") == read_file(folder / "set/png/000059.png"));
  CHECK(read_file(folder / "larger/captions.jsonl").starts_with(read_file(folder / "set/captions.jsonl")));
  write_synth_pairs({.count = 1, .seed = 4, .hold_out = 0}, folder / "other");
  CHECK(read_file(folder / "other/png/000000.png") != read_file(folder / "set/png/000000.png"));
  CHECK_FALSE(fs::exists(folder / "other/held-out.jsonl"));
}

// Its captions were those of the set before, of other pictures.
TEST_CASE("a made-up set that is stopped in the middle has no captions", "[pairs]") {
  const TempDir folder;
  write_synth_pairs({.count = 3, .seed = 1}, folder / "set");
  fs::remove(folder / "set/png/000002.png");
  fs::create_directory(folder / "set/png/000002.png");
  CHECK(has(message_of(ErrorKind::io, [&] { write_synth_pairs({.count = 3, .seed = 2}, folder / "set"); }), "000002.png"));
  CHECK_FALSE(fs::exists(folder / "set/captions.jsonl"));
}

TEST_CASE("impossible made-up sets of pairs are refused", "[pairs]") {
  const TempDir folder;
  const auto message = [&](const SynthPairs& options) {
    return message_of(ErrorKind::usage, [&] { write_synth_pairs(options, folder / "set"); });
  };
  CHECK(message({.count = 0}) == "`count`: 0; expected at least 1");
  CHECK(message({.side = 8}) == "`side`: 8; expected 16 to 512 pixels");
  CHECK(message({.hold_out = 0.5}) == "`hold_out`: 0.5; expected a share from 0 to 0.4");
  CHECK(message({.hold_out = 0, .held_out = true}) == "`hold_out`: 0; no combinations are held out");
  write_file(folder / "file", "");
  CHECK(has(message_of(ErrorKind::io, [&] { write_synth_pairs({}, folder / "file"); }), "file/png: "));
}
