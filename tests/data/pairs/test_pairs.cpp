#include "data/pairs/pairs.h"

#include <set>

#include "tests/data/pairs/folder.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;
namespace fs = std::filesystem;

namespace {

std::string open_error(const fs::path& path) {
  return message_of(ErrorKind::data, [&] { Pairs::open(path); });
}

std::size_t left_out(const Pairs& pairs, const std::string& reason) {
  for (const LeftOut& each : pairs.left_out()) {
    if (each.reason == reason) return each.count;
  }
  return 0;
}

std::set<std::string> captions(const Pairs& pairs) {
  std::set<std::string> all;
  for (std::size_t i = 0; i < pairs.size(); ++i) all.insert(pairs[i].caption);
  return all;
}

}  // namespace

TEST_CASE("pairs of a caption file have their images beside it or in a sub-folder", "[pairs]") {
  const TempDir folder;
  fs::create_directories(folder / "png");
  fs::create_directories(folder / "images");
  write_noise(folder / "a.png", 4, 5, 1);
  write_noise(folder / "png/b.png", 6, 4, 2);
  write_noise(folder / "images/c.png", 3, 3, 3);
  write_file(folder / "captions.jsonl", pair_line("a.png", " a first one ") + "\n" + pair_line("b.png", "b, the second") +
                                            R"({"caption": "c", "image": "c.png", "keywords": ["x", "y z"], "more": [1]})");
  for (const fs::path& path : {folder.path(), folder / "captions.jsonl"}) {
    const Pairs pairs = Pairs::open(path);
    REQUIRE(pairs.size() == 3);
    CHECK(pairs[0].caption == "a first one");
    CHECK((pairs[0].height == 4 && pairs[0].width == 5));
    CHECK(pairs[0].keywords.empty());
    CHECK(pairs[1].image == "png/b.png");
    CHECK(pairs[2].keywords == std::vector<std::string>{"x", "y z"});
    CHECK(pairs.image(1).pixels == noise_image(6, 4, 2).pixels);
    CHECK(pairs.image(2).shape == ImageShape{3, 3, 3});
    CHECK(pairs.left_out().empty());
  }
}

TEST_CASE("pairs of a folder are images and texts of one name, a pair per line", "[pairs]") {
  const TempDir folder;
  write_noise(folder / "a.png", 4, 4, 1);
  write_file(folder / "a.txt", "one caption\r\n\nanother caption\n");
  write_noise(folder / "a-b.png", 4, 4, 2);
  write_file(folder / "a-b.txt", "of the second");
  write_noise(folder / "lonely.png", 4, 4, 3);
  write_noise(folder / "silent.png", 4, 4, 4);
  write_file(folder / "silent.txt", " \n");
  write_file(folder / "readme.txt", "no image has this");
  const Pairs pairs = Pairs::open(folder.path());
  REQUIRE(pairs.size() == 3);
  CHECK(pairs[0].image == "a-b.png");
  CHECK(pairs[1].caption == "one caption");
  CHECK(pairs[2].caption == "another caption");
  CHECK(pairs[1].content == pairs[2].content);
  CHECK(pairs.left_out().size() == 3);
  CHECK(left_out(pairs, "image without caption") == 1);
  CHECK(left_out(pairs, "caption without image") == 1);
  CHECK(left_out(pairs, "empty caption") == 1);
}

// Captions began with the mark, and pictures beside texts in capitals had none.
TEST_CASE("texts with a byte order mark, or with names in capitals, have captions as others", "[pairs]") {
  const TempDir folder;
  const std::string mark = "\xef\xbb\xbf";
  write_noise(folder / "a.png", 4, 4, 1);
  write_file(folder / "a.txt", mark + "a red ball\nanother ball\n");
  write_noise(folder / "B.PNG", 4, 4, 2);
  write_file(folder / "B.TXT", "a blue ball");
  const Pairs pairs = Pairs::open(folder.path());
  CHECK(captions(pairs) == std::set<std::string>{"a red ball", "another ball", "a blue ball"});
  CHECK(pairs.left_out().empty());
  write_file(folder / "captions.jsonl", mark + pair_line("a.png", "a red ball"));
  CHECK(captions(Pairs::open(folder.path())) == std::set<std::string>{"a red ball"});
}

TEST_CASE("pairs that the rules leave out are counted by reason", "[pairs]") {
  const TempDir folder;
  write_noise(folder / "a.png", 8, 8, 1);
  write_noise(folder / "copy.png", 8, 8, 1);
  write_noise(folder / "wide.png", 8, 17, 2);
  write_noise(folder / "twice.png", 8, 16, 3);
  write_noise(folder / "high.png", 17, 8, 4);
  write_file(folder / "captions.jsonl",
             pair_line("a.png", "a red ball") + pair_line("copy.png", "a red ball") + pair_line("copy.png", "the ball again") +
                 pair_line("wide.png", "too wide a thing") + pair_line("twice.png", "just right then") +
                 pair_line("high.png", "too high a thing") + pair_line("a.png", "short") + pair_line("a.png", "  ") +
                 pair_line("a.png", "photographed on 3 May 2012") + pair_line("a.png", "das Haus und der Garten"));
  PairRules rules;
  rules.captions.min_words = 2;
  const Pairs pairs = Pairs::open(folder.path(), rules);
  CHECK(captions(pairs) == std::set<std::string>{"a red ball", "just right then", "the ball again"});
  CHECK(left_out(pairs, "same image and caption") == 1);
  CHECK(left_out(pairs, "aspect ratio") == 2);
  CHECK(left_out(pairs, "caption too short") == 1);
  CHECK(left_out(pairs, "empty caption") == 1);
  CHECK(left_out(pairs, "boilerplate caption") == 1);
  CHECK(left_out(pairs, "caption not English") == 1);
  for (const LeftOut& each : pairs.left_out()) CHECK(has(each.first, "captions.jsonl', line "));

  rules = {{0, false, false}, 0};
  CHECK(Pairs::open(folder.path(), rules).size() == 8);
  rules.max_aspect = 0.5;
  CHECK(message_of(ErrorKind::usage, [&] { Pairs::open(folder.path(), rules); }) ==
        "`max_aspect`: 0.5; expected at least 1, or 0 for no limit");
}

TEST_CASE("broken sets of pairs are refused with file and line", "[pairs]") {
  const TempDir folder;
  const fs::path file = folder / "captions.jsonl";
  const std::string good = pair_line("a.png", "a caption");
  const auto message = [&](const std::string& lines) {
    write_file(file, lines);
    return open_error(folder.path());
  };
  CHECK(open_error(folder / "nowhere") == (folder / "nowhere").string() + ": no such file or folder of images with captions");
  CHECK(has(open_error(folder.path()), "no pairs; 0 images, 0 .txt files"));
  CHECK(
      has(message(good), "captions.jsonl', line 1: the image 'a.png' is missing; looked for it in " + folder.path().string()));
  write_noise(folder / "a.png", 4, 4, 1);
  REQUIRE(message(good) == "no error");
  CHECK(has(message(good + "\n{\"image\": \n"), "line 3: not valid JSON ("));
  CHECK(has(message(good + "[1]"), "line 2: expected a JSON object"));
  CHECK(has(message("{\"caption\": \"x\"}"), "line 1: the field 'image' is missing"));
  CHECK(has(message("{\"image\": \"a.png\", \"caption\": 3}"), "line 1: the field 'caption' is not a string"));
  CHECK(has(message(R"({"image": "", "caption": "x"})"), "line 1: the field 'image' is empty"));
  CHECK(
      has(message(R"({"image": "a.png", "caption": "x", "keywords": "y"})"), "the field 'keywords' is not a list of strings"));
  CHECK(
      has(message(R"({"image": "a.png", "caption": "x", "keywords": [1]})"), "the field 'keywords' is not a list of strings"));
  CHECK(has(message("\xff\n"), "line 1: not UTF-8"));
  CHECK(has(message("\n\n"), "captions.jsonl': no pairs; expected lines such as {\"image\""));
  CHECK(has(message(pair_line("a.png", " ")), ": no pair is left; empty caption: 1 ("));
  // Images that cannot be read are found before training, not in it.
  const std::string whole = read_file(folder / "a.png");
  write_file(folder / "a.png", whole.substr(0, 20));
  CHECK(has(message(good), "a.png: broken PNG: "));
  write_file(folder / "a.png", "");
  CHECK(has(message(good), "a.png: neither a PNG nor a JPEG file"));
  // All of them in one message.
  write_noise(folder / "b.png", 4, 4, 2);
  write_file(folder / "c.jpg", "no picture");
  const std::string several = message(good + pair_line("b.png", "a caption") + pair_line("c.jpg", "a caption"));
  CHECK(several.starts_with("2 of 3 images cannot be used:\n  "));
  CHECK(has(several, "a.png: neither a PNG nor a JPEG file\n  "));
  CHECK(several.ends_with("c.jpg: neither a PNG nor a JPEG file"));
}

TEST_CASE("a set of pairs holds no images", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 3);
  const Pairs pairs = Pairs::open(folder.path());
  CHECK(pairs.image(1).pixels == noise_image(12, 16, 101).pixels);
  // An image comes from its file each time: with another one there it is another.
  write_noise(folder / "images/1.png", 12, 16, 7);
  CHECK(pairs.image(1).pixels == noise_image(12, 16, 7).pixels);
  fs::remove(folder / "images/1.png");
  CHECK(has(message_of(ErrorKind::data, [&] { pairs.image(1); }), "1.png"));
}

TEST_CASE("the hash of pairs is that of their contents", "[pairs]") {
  const TempDir one, other;
  write_noise_pairs(one.path(), 4);
  write_noise_pairs(other.path(), 4);
  const std::string hash = content_hash(Pairs::open(one.path()));
  CHECK(hash.size() == 32);
  CHECK(content_hash(Pairs::open(other.path())) == hash);
  fs::rename(other / "images", other / "png");
  CHECK(content_hash(Pairs::open(other.path())) == hash);
  write_noise(other / "png/2.png", 12, 16, 9);
  CHECK(content_hash(Pairs::open(other.path())) != hash);
  write_noise(other / "png/2.png", 12, 16, 102);
  REQUIRE(content_hash(Pairs::open(other.path())) == hash);
  const std::string lines = read_file(other / "captions.jsonl");
  write_file(other / "captions.jsonl", pair_line("0.png", "another caption") + lines.substr(lines.find('\n') + 1));
  CHECK(content_hash(Pairs::open(other.path())) != hash);
}

TEST_CASE("splits of pairs are disjoint, complete, and depend on seed and contents alone", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 200, 2, 2);
  const Pairs pairs = Pairs::open(folder.path());
  const PairSplits split = split_pairs(pairs, 0.1, 5);
  CHECK(split.validation.size() == 20);
  CHECK(split.train.size() == 180);
  std::set<std::string> all = captions(split.train);
  const std::set<std::string> held_back = captions(split.validation);
  for (const std::string& caption : held_back) CHECK(all.insert(caption).second);
  CHECK(all == captions(pairs));
  CHECK(split.train.image(7).pixels.size() == 12);

  CHECK(captions(split_pairs(pairs, 0.1, 6).validation) != held_back);
  // In another order, as another file system might list them.
  std::vector<std::size_t> reversed(pairs.size());
  for (std::size_t i = 0; i < reversed.size(); ++i) reversed[i] = reversed.size() - 1 - i;
  CHECK(captions(split_pairs(pairs.select(reversed), 0.1, 5).validation) == held_back);
  CHECK(split_pairs(pairs, 0, 5).validation.size() == 0);
  CHECK(split_pairs(pairs, 0, 5).train.size() == 200);
  CHECK(message_of(ErrorKind::usage, [&] { split_pairs(pairs, 1, 5); }) ==
        "`validation`: a share of 1; expected 0 to less than 1");
  CHECK(message_of(ErrorKind::usage, [&] { split_pairs(pairs, 0.999, 5); }) ==
        "`validation`: a share of 0.999 of 200 images leaves none to train on");
}

TEST_CASE("all captions of an image and of its copies are on one side of a split", "[pairs]") {
  const TempDir folder;
  std::string lines;
  for (std::size_t i = 0; i < 40; ++i) {
    // Image i % 20 under two names.
    const std::string name = std::to_string(i) + ".png";
    write_noise(folder / name, 2, 2, i % 20);
    lines += pair_line(name, "first of " + std::to_string(i)) + pair_line(name, "second of " + std::to_string(i));
  }
  write_file(folder / "captions.jsonl", lines);
  const PairSplits split = split_pairs(Pairs::open(folder.path()), 0.3, 1);
  CHECK(split.validation.size() == 6 * 4);
  CHECK(split.train.size() == 14 * 4);
  std::set<Hash128> in_training;
  for (std::size_t i = 0; i < split.train.size(); ++i) in_training.insert(split.train[i].content);
  for (std::size_t i = 0; i < split.validation.size(); ++i) CHECK(in_training.count(split.validation[i].content) == 0);
}

TEST_CASE("the rules keep all emoji", "[pairs]") {
  const auto data = data_folder();
  if (!data) return;
  const Pairs pairs = Pairs::open(*data / "fxemoji64");
  CHECK(pairs.size() == 1025);
  CHECK(pairs.left_out().empty());
  CHECK(pairs.image(1024).shape == ImageShape{64, 64, 3});
  const PairSplits split = split_pairs(pairs, 0.1, 1);
  CHECK(split.train.size() + split.validation.size() == 1025);
  CHECK(split.validation.size() >= 100);
}
