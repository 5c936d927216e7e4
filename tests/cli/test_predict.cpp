// `bitloom predict` on pictures of any size, good and bad; `bitloom eval` on folders that have test images alone.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "data/image.h"
#include "data/readers.h"
#include "data/synthetic.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

data::Image first_image() {
  const data::Dataset set = data::make_synthetic(5, 1);
  const auto pixels = set.image(0);
  return {set.shape, {pixels.begin(), pixels.end()}};
}

// Every pixel `scale` times as wide and high, with `across` white columns on both sides and `down` white rows above and below.
data::Image enlarged(const data::Image& image, std::size_t scale, std::size_t across, std::size_t down) {
  const std::size_t height = image.shape.height * scale, width = image.shape.width * scale;
  data::Image result{{height + 2 * down, width + 2 * across, 3}, {}};
  result.pixels.assign(result.shape.size(), 255);
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t y = 0; y < height; ++y) {
      for (std::size_t x = 0; x < width; ++x) {
        result.pixels[(c * result.shape.height + y + down) * result.shape.width + x + across] =
            image.pixels[(c * image.shape.height + y / scale) * image.shape.width + x / scale];
      }
    }
  }
  return result;
}

void write_picture(const data::Image& image, const fs::path& file) { data::write_png(image.pixels, image.shape, file); }

void write_pictures_of_all_sizes(const TempDir& folder) {
  const data::Image image = first_image();
  write_picture(image, folder / "image.png");
  write_picture(enlarged(image, 1, 9, 0), folder / "wide.png");
  write_picture(enlarged(image, 2, 0, 20), folder / "tall.png");
  write_picture(enlarged(image, 3, 0, 0), folder / "large.png");
  write_picture({{1, 1, 3}, {200, 10, 10}}, folder / "point.png");
  write_picture({{3, 10000, 3}, std::vector<std::uint8_t>(90000, 77)}, folder / "strip.png");
}

const std::vector<std::string> all_sizes{"image.png", "wide.png", "tall.png", "large.png", "point.png", "strip.png"};

std::vector<Json> objects_in(const std::string& text) {
  std::vector<Json> objects;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) objects.push_back(Json::parse(line));
  return objects;
}

// Number of probabilities in each line, in its order, up to the first that is larger than the one before.
std::vector<std::size_t> descending_probabilities(const std::string& text) {
  std::vector<std::size_t> counts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::ordered_json object = nlohmann::ordered_json::parse(line);
    counts.push_back(0);
    double before = 2;
    for (const nlohmann::ordered_json& each : object["probabilities"]) {
      if (each.get<double>() > before) break;
      before = each.get<double>();
      ++counts.back();
    }
  }
  return counts;
}

Args quick_cnn_training(const std::string& out) {
  return {"train", "cnn",          "--net", "tiny",    "--data", "synth",   "--max-train", "60",    "--max-test",
          "10",    "--validation", "0",     "--batch", "20",     "--steps", "2",           "--out", out};
}

}  // namespace

TEST_CASE("predict takes pictures of any size, and says what it cuts and scales", "[predict]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("binary")).code == 0);
  REQUIRE(run_program(folder.path(), quick_cnn_training("cnn")).code == 0);
  write_pictures_of_all_sizes(folder);
  for (const char* run : {"binary", "cnn"}) {
    INFO(run);
    const Outcome text = run_program(folder.path(), with({"predict", run, "--top", "1"}, all_sizes));
    INFO(text.out << text.err);
    REQUIRE(text.code == 0);
    CHECK(text.err.empty());
    for (const char* line :
         {"image.png: ", "\nwide.png (50 x 32: middle 32 x 32): ", "\ntall.png (64 x 104: middle 64 x 64, scaled to 32 x 32): ",
          "\nlarge.png (96 x 96: scaled to 32 x 32): ", "\npoint.png (1 x 1: scaled to 32 x 32): ",
          "\nstrip.png (10000 x 3: middle 3 x 3, scaled to 32 x 32): "}) {
      INFO(line);
      CHECK(has(text.out, line));
    }
    CHECK(text.out.starts_with("image.png: "));

    const Outcome jsonl = run_program(folder.path(), with({"predict", run, "--jsonl"}, all_sizes));
    REQUIRE(jsonl.code == 0);
    const std::vector<Json> objects = objects_in(jsonl.out);
    REQUIRE(objects.size() == all_sizes.size());
    for (std::size_t i = 0; i < objects.size(); ++i) {
      CHECK(objects[i]["file"] == all_sizes[i]);
      REQUIRE(objects[i]["probabilities"].size() == 10);
      const Json& own = objects[i]["probabilities"][objects[i]["class"].get<std::string>()];
      for (const Json& each : objects[i]["probabilities"]) CHECK(each <= own);
      // Parts that were cut off are white; what is left is the same picture.
      const bool same = i < 4;
      CHECK((objects[i]["probabilities"] == objects[0]["probabilities"]) == same);
    }
    // On their way out they were put in the order of their names.
    const Outcome three = run_program(folder.path(), with({"predict", run, "--jsonl", "--top", "3"}, all_sizes));
    REQUIRE(three.code == 0);
    CHECK(descending_probabilities(jsonl.out) == std::vector<std::size_t>(all_sizes.size(), 10));
    CHECK(descending_probabilities(three.out) == std::vector<std::size_t>(all_sizes.size(), 3));
    CHECK(objects[2]["width"] == 64);
    CHECK(objects[2]["height"] == 104);
    CHECK(objects[2]["crop"] == Json{{"left", 0}, {"top", 20}, {"width", 64}, {"height", 64}});
    CHECK(objects[5]["crop"] == Json{{"left", 4998}, {"top", 0}, {"width", 3}, {"height", 3}});
  }
}

TEST_CASE("pictures that cannot be read are named, and the others are classified", "[predict]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("run")).code == 0);
  write_picture(first_image(), folder / "image.png");
  const std::string png = read_file(folder / "image.png");
  write_file(folder / "half.png", png.substr(0, png.size() / 2));
  write_file(folder / "empty.jpg", "");
  write_file(folder / "head.jpg", std::string("\xff\xd8\xff\xe0\0\x10JFIF", 10));
  fs::create_directory(folder / "folder");
  const std::vector<std::string> pictures{"image.png", "half.png", "empty.jpg", "head.jpg", "folder", "none.png", "image.png"};
  const std::vector<std::string> problems{"",
                                          "half.png: broken PNG",
                                          "empty.jpg: neither a PNG nor a JPEG",
                                          "head.jpg: broken JPEG",
                                          "cannot read 'folder': Is a directory",
                                          "cannot read 'none.png': No such file or directory",
                                          ""};
  const Outcome jsonl = run_program(folder.path(), with({"predict", "run", "--jsonl"}, pictures));
  CHECK(jsonl.code == 3);
  const std::vector<Json> objects = objects_in(jsonl.out);
  REQUIRE(objects.size() == pictures.size());
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    INFO(objects[i]);
    CHECK(objects[i]["file"] == pictures[i]);
    CHECK(objects[i].contains("error") == !problems[i].empty());
    CHECK(objects[i].contains("class") == problems[i].empty());
    if (problems[i].empty()) continue;
    CHECK(has(objects[i]["error"].get<std::string>(), problems[i]));
    CHECK(has(jsonl.err, "bitloom: " + problems[i]));
  }
  const Outcome text = run_program(folder.path(), with({"predict", "run"}, pictures));
  CHECK(text.code == 3);
  CHECK(text.err == jsonl.err);
  CHECK(std::count(text.out.begin(), text.out.end(), '\n') == 2);

  const Outcome unreadable = run_shell(folder.path(), "\"$BITLOOM\" predict run - --jsonl < .");
  CHECK(unreadable.code == 5);
  CHECK(has(unreadable.err, "the standard input cannot be read"));
  const Outcome twice = run_program(folder.path(), {"predict", "run", "-", "-"});
  CHECK(twice.code == 2);
  CHECK(has(twice.err, "PICTURE: '-' is there twice"));
  // Lines that end as on Windows, and a list that begins with a byte order mark.
  for (const char* list : {"image.png\\r\\n", "\\xef\\xbb\\xbfimage.png\\n"}) {
    INFO(list);
    const Outcome listed = run_shell(folder.path(), fmt::format("printf '{}' | \"$BITLOOM\" predict run - --jsonl", list));
    CHECK(listed.code == 0);
    CHECK(has(listed.out, "\"file\":\"image.png\""));
  }
  const Outcome missing = run_program(folder.path(), {"predict", "nowhere", "image.png", "--jsonl"});
  CHECK(missing.code == 3);
  CHECK(missing.out.empty());
  CHECK(has(missing.err, "nowhere"));

  // Output that goes nowhere is told before pictures that are bad, and nothing is classified for nobody.
  const Outcome full = run_program_into(folder.path(), "/dev/full", {"predict", "run", "none.png", "image.png", "half.png"});
  CHECK(full.code == 5);
  CHECK(has(full.err, "the standard output cannot be written: No space left on device"));
  CHECK_FALSE(has(full.err, "half.png"));
  const Outcome closed = run_shell(folder.path(), "\"$BITLOOM\" predict run image.png --jsonl >&-");
  CHECK(closed.code == 5);
  CHECK(has(closed.err, "the standard output cannot be written: Bad file descriptor"));
}

// Each line is there before the next name is read: another program may ask for one picture after the other.
TEST_CASE("predict reads names from a pipe and answers each at once", "[predict]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("run")).code == 0);
  write_picture(first_image(), folder / "image.png");
  write_picture(enlarged(first_image(), 1, 9, 0), folder / "a name with spaces.png");
  const Outcome outcome = run_shell(folder.path(), R"(
coproc bitloom { exec "$BITLOOM" predict run image.png - --jsonl; }
child=$bitloom_PID
exec 3<&"${bitloom[0]}" 4>&"${bitloom[1]}"
eval "exec ${bitloom[1]}>&-"
read -r -t 100 line <&3 && echo "$line"
for name in "a name with spaces.png" none.png; do
  printf '%s\n\n' "$name" >&4
  read -r -t 100 line <&3 && echo "$line"
done
exec 4>&-
wait "$child")");
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 3);
  const std::vector<Json> objects = objects_in(outcome.out);
  REQUIRE(objects.size() == 3);
  CHECK(objects[0]["file"] == "image.png");
  CHECK(objects[1]["file"] == "a name with spaces.png");
  CHECK(objects[1]["crop"]["left"] == 9);
  CHECK(objects[1]["probabilities"] == objects[0]["probabilities"]);
  CHECK(objects[2].contains("error"));
}

TEST_CASE("a net is measured on test images alone, and not trained there", "[eval]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), {"data", "synth", "--out", "set", "--train", "100", "--test", "60"}).code == 0);
  REQUIRE(run_program(folder.path(), quick_training("run")).code == 0);
  REQUIRE(run_program(folder.path(), quick_cnn_training("cnn")).code == 0);
  fs::create_directory(folder / "alone");
  fs::copy_file(folder / "set/test_batch.bin", folder / "alone/test_batch.bin");  // without the names of classes
  REQUIRE(run_program(folder.path(),
                      {"data", "synth", "--format", "pictures", "--out", "pictures", "--train", "10", "--test", "60"})
              .code == 0);
  fs::remove_all(folder / "pictures/train");
  fs::remove_all(folder / "pictures/test/disc");  // pictures of one's own need not be of every class

  for (const char* run : {"run", "cnn"}) {
    INFO(run);
    const auto measured = [&](const char* data) {
      const Outcome eval = run_program(folder.path(), {"eval", run, "--data", data, "--max-test", "0", "--json"});
      INFO(eval.err);
      REQUIRE(eval.code == 0);
      const bool alone = std::string(data) != "set";
      const auto json = Json::parse(eval.out);
      const std::string note = fmt::format("bitloom: {} has no training images; what is measured are its {} test images.", data,
                                           json["images"].dump());
      CHECK(has(eval.err, note) == alone);
      return json;
    };
    const Json whole = measured("set");
    CHECK(whole["images"] == 60);
    CHECK(measured("alone")["confusion"] == whole["confusion"]);
    const Json pictures = measured("pictures");
    CHECK(pictures["images"] == 54);
    std::vector<std::int64_t> others = whole["confusion"];
    std::fill_n(others.begin(), 10, 0);
    CHECK(pictures["confusion"] == others);
  }

  const std::string needs = "set needs data_batch_1.bin";
  const std::string no_train = "pictures: no training images there: test/ has sub-folders of images, but there is no train/";
  for (const auto& [data, message] : {std::pair{std::string("alone"), needs}, {std::string("pictures"), no_train}}) {
    for (const Args& args : {Args{"train", "binary", "--out", "new"},
                             {"train", "cnn", "--out", "new"},
                             {"eval", "run", "--split", "train"},
                             {"eval", "run", "--split", "validation"}}) {
      INFO(args.front() << " " << args[1] << " " << data);
      const Outcome refused = run_program(folder.path(), with(args, {"--data", data}));
      CHECK(refused.code == 3);
      CHECK(has(refused.err, message));
    }
    const Outcome info = run_program(folder.path(), {"data", "info", data});
    CHECK(info.code == 0);
    CHECK(has(info.out, "train: no images"));
    CHECK(has(info.out, "\ntest: "));
    CHECK(run_program(folder.path(), {"data", "sheet", data, "--split", "test", "--out", "sheet.png"}).code == 0);
    CHECK(run_program(folder.path(), {"data", "sheet", data, "--out", "sheet.png"}).code == 3);
  }
  // A part of the training images is a damaged copy, not a set for tests.
  fs::copy_file(folder / "set/data_batch_2.bin", folder / "alone/data_batch_2.bin");
  const Outcome part = run_program(folder.path(), {"eval", "run", "--data", "alone"});
  CHECK(part.code == 3);
  CHECK(has(part.err, "data_batch_1.bin is missing"));
}
