// The commands for images with captions.
#include <nlohmann/json.hpp>

#include "data/image.h"
#include "tests/cli/program.h"
#include "tests/data/pairs/folder.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

// A JPEG file as far as its size is told: grey, 16 x 16 pixels, and the beginning of its only scan.
constexpr char jpeg_begin[] =
    "\xff\xd8"
    "\xff\xc0\0\x0b\x08\0\x10\0\x10\x01\x01\x11\0"
    "\xff\xda\0\x08\x01\x01\0\0\x3f\0";

}  // namespace

TEST_CASE("a made-up set of pairs is written, shown and judged", "[pairs]") {
  const TempDir folder;
  const Args make = words_of("data synth-pairs --count 40 --side 32 --hold-out 0.2 --seed 7 --out set");
  const Outcome made = run_program(folder.path(), make);
  INFO(made.err);
  REQUIRE(made.code == 0);
  CHECK(made.out.starts_with("set: 40 pairs of 32 x 32 pixels, seed 7\n  held out: "));
  const std::string lines = read_file(folder / "set/captions.jsonl");
  const Outcome again = run_program(folder.path(), make);
  CHECK(again.code == 2);
  CHECK(has(again.err, "--out: set is there already and not an empty folder; --force replaces the files in it"));
  CHECK(run_program(folder.path(), with(make, {"--force"})).code == 0);
  CHECK(read_file(folder / "set/captions.jsonl") == lines);

  const Outcome shown =
      run_program(folder.path(), words_of("data pairs set --check-scenes --sheet s.png --rows 2 --columns 3 --side 20"));
  INFO(shown.err);
  CHECK(shown.code == 0);
  CHECK(has(shown.out, "set: 40 pairs, 40 different images, hash "));
  CHECK(has(shown.out, "images    32 x 32 pixels\n"));
  CHECK(has(shown.out, "  all               100.00%\n"));
  CHECK(has(shown.out, "  none                0.00%\n"));
  CHECK(has(shown.out, "  row 2, column 3: a "));
  CHECK(data::read_image(folder / "s.png").shape == data::ImageShape{41, 62, 3});

  // The checker sees it where pictures are not as their captions say.
  fs::copy_file(folder / "set/png/000001.png", folder / "set/png/000000.png", fs::copy_options::overwrite_existing);
  const Outcome judged = run_program(folder.path(), words_of("data pairs set --check-scenes --json"));
  REQUIRE(judged.code == 0);
  const Json json = Json::parse(judged.out);
  CHECK(json["pairs"] == 40);
  CHECK(json["images"] == 39);
  CHECK(json["scenes"]["pictures"] == 40);
  CHECK(json["scenes"]["all"] == 39.0 / 40);

  const Outcome others = run_program(folder.path(), with(make, words_of("--part held-out --force --out others")));
  REQUIRE(others.code == 0);
  CHECK(read_file(folder / "others/held-out.jsonl") == read_file(folder / "set/held-out.jsonl"));
  CHECK(read_file(folder / "others/captions.jsonl") != lines);
}

TEST_CASE("what is left out of a set of pairs is shown with its reason", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder / "set", 3);
  write_noise(folder / "set/images/long.png", 8, 20, 9);
  write_file(folder / "set/captions.jsonl", read_file(folder / "set/captions.jsonl") + pair_line("long.png", "a long one") +
                                                pair_line("0.png", "") + pair_line("0.png", "word") +
                                                pair_line("0.png", "красная роза в саду"));
  const Outcome shown = run_program(folder.path(), words_of("data pairs set --min-words 2"));
  REQUIRE(shown.code == 0);
  CHECK(has(shown.out, "set: 3 pairs, 3 different images"));
  CHECK(has(shown.out, "left out: aspect ratio                    1, first 'set/captions.jsonl', line 4: 20 x 8\n"));
  CHECK(has(shown.out, "left out: empty caption                   1, first 'set/captions.jsonl', line 5: ''\n"));
  CHECK(has(shown.out, "left out: caption too short               1, first 'set/captions.jsonl', line 6: 'word'\n"));
  CHECK(has(shown.out, "left out: caption not English             1, "));
  const Outcome all =
      run_program(folder.path(), words_of("data pairs set/captions.jsonl --min-words 0 --max-aspect 0 --any-language --json"));
  REQUIRE(all.code == 0);
  CHECK(Json::parse(all.out)["pairs"] == 6);
  CHECK(Json::parse(all.out)["largest"] == Json{{"width", 16}, {"height", 12}});

  // JSON has no such escape as \x7f, by which DEL is shown in lines.
  write_file(folder / "set/odd.jsonl", pair_line("0.png", "a picture") + pair_line("1.png", "odd\x7f"));
  const Outcome odd = run_program(folder.path(), words_of("data pairs set/odd.jsonl --min-words 2 --json"));
  REQUIRE(odd.code == 0);
  CHECK_FALSE(has(odd.out, "\x7f"));
  CHECK(Json::parse(odd.out)["left_out"][0]["first"] == "'set/odd.jsonl', line 2: 'odd\x7f'");

  const Outcome unknown = run_program(folder.path(), words_of("data pairs set --check-scenes"));
  CHECK(unknown.code == 3);
  CHECK(has(unknown.err,
            "set: no caption is that of a scene, such as 'a small red circle at the top left'; the first is 'picture"));
}

TEST_CASE("sets of pairs that cannot be read end with 3", "[pairs]") {
  const TempDir folder;
  write_file(folder / "captions.jsonl", pair_line("a.png", "a caption"));
  for (const auto& [spec, message] : {std::pair("nowhere", "nowhere: no such file or folder of images with captions"),
                                      std::pair(".", "'./captions.jsonl', line 1: the image 'a.png' is missing")}) {
    const Outcome outcome = run_program(folder.path(), {"data", "pairs", spec});
    CHECK(outcome.code == 3);
    INFO(outcome.err);
    CHECK(has(outcome.err, message));
  }
}

// Half of a picture was found when the training came to it.
TEST_CASE("pictures that are cut off are found before a training", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 1);
  const std::string png = read_file(folder / "images/0.png");
  const std::string jpeg = std::string(jpeg_begin, sizeof jpeg_begin - 1) + std::string(100, 's') + "\xff\xd9";
  fs::create_directory(folder / "cut");
  write_file(folder / "cut/a.txt", "a caption of it");
  for (const auto& [name, whole] : {std::pair{std::string("a.png"), png}, {std::string("a.jpg"), jpeg}}) {
    INFO(name);
    write_file(folder / "cut" / name, whole);
    CHECK(run_program(folder.path(), {"data", "pairs", "cut"}).code == 0);
    write_file(folder / "cut" / name, whole.substr(0, whole.size() / 2));
    const Outcome half = run_program(folder.path(), {"data", "pairs", "cut"});
    CHECK(half.code == 3);
    CHECK(has(half.err, "cut/" + name + ": broken "));
    CHECK(has(half.err, ": it is cut off"));
    fs::remove(folder / "cut" / name);
  }
}
