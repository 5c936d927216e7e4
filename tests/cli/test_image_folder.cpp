// Trainings on a folder of pictures of any size, in memory or not.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/image.h"
#include "data/synthetic.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
namespace fs = std::filesystem;

namespace {

// Three classes, for training and for tests.
void write_pictures(const fs::path& folder, std::size_t train, std::size_t test) {
  const data::Dataset set = data::make_synthetic(4, train + test);
  for (std::size_t i = 0; i < set.size(); ++i) {
    const fs::path place = folder / (i < train ? "train" : "test") / ("class" + std::to_string(i % 3));
    fs::create_directories(place);
    data::write_png(set.image(i), set.shape, place / (std::to_string(i) + ".png"));
  }
}

// At a size whose maps have more pixels than 16 bits can count; the first map is pooled at once.
const char* const large_net = R"({"name": "large", "mirror": false, "encoder": {"kind": "thermometer", "levels": 4},
  "layers": [{"name": "layer1", "inputs": ["input"], "width": 16}],
  "stages": [{"train": ["layer1"], "epochs": 1, "head": {"grid": 4, "hidden": 16}}]})";

Args training(const std::string& out, const Args& more) {
  return with({"train", "binary", "--net", "large.json", "--data", "pictures", "--out", out, "--batch", "8", "--validation",
               "6", "--image-size", "184"},
              more);
}

}  // namespace

// --image-size was at most 181.
TEST_CASE("pictures of 184 pixels train a net, to the same bits in memory and from a file", "[train]") {
  const TempDir folder;
  write_pictures(folder / "pictures", 30, 12);
  write_file(folder / "large.json", large_net);
  const Outcome memory = run_program(folder.path(), training("memory", {"--cache", "none"}));
  INFO(memory.out << memory.err);
  REQUIRE(memory.code == 0);
  const Outcome stored = run_program(folder.path(), training("stored", {"--cache", "cache", "--image-memory", "100KiB"}));
  INFO(stored.out << stored.err);
  REQUIRE(stored.code == 0);
  CHECK(same_tensors(folder / "memory/model.safetensors", folder / "stored/model.safetensors"));
  // One file for training, one for tests.
  std::vector<std::uintmax_t> sizes;
  for (const auto& entry : fs::directory_iterator(folder / "cache/images")) sizes.push_back(entry.file_size());
  std::sort(sizes.begin(), sizes.end());
  constexpr std::uintmax_t record = 8 + 3 * 184 * 184;
  CHECK(sizes == std::vector<std::uintmax_t>{64 + 12 * record, 64 + 30 * record});
  CHECK(has(read_file(folder / "stored/options.ini"), "image-memory = 100KiB\n"));

  const Outcome eval = run_program(folder.path(), {"eval", "stored"});
  CHECK(eval.code == 0);
  CHECK(has(eval.out, "of 12 images"));
  // It read images of the file as if they were in memory, and crashed.
  const auto picture_of = [&](const std::string& run) {
    const Outcome picture = run_program(folder.path(), {"report", run, "--picture", run + ".svg"});
    INFO(picture.out << picture.err);
    REQUIRE(picture.code == 0);
    const std::string svg = read_file(folder / (run + ".svg"));
    REQUIRE(has(svg, ">heads</text>"));
    return svg.substr(0, svg.find(">heads</text>"));  // without the seconds of training, which come below
  };
  const bool is_same_picture = picture_of("stored") == picture_of("memory");
  CHECK(is_same_picture);
  const Outcome info = run_program(folder.path(), {"data", "info", "pictures", "--image-size", "184"});
  CHECK(info.code == 0);
  CHECK(has(info.out, "folder: 184 x 184 pixels, 3 colours, 3 classes"));
  fs::rename(folder / "pictures", folder / "moved");
  const Outcome moved = run_program(folder.path(), {"eval", "stored"});
  CHECK(moved.code == 3);
  CHECK(has(moved.err, "/pictures: there is no such file or folder, which the run stored names; expected --data with its"));
  CHECK(run_program(folder.path(), {"eval", "stored", "--data", "moved"}).code == 0);
  CHECK_FALSE(has(run_program(folder.path(), {"eval", "stored", "--data", "moved"}).err, "drawn at random"));
  // Classes without a folder for tests.
  const Outcome drawn = run_program(folder.path(), {"eval", "stored", "--data", "moved/train"});
  CHECK(drawn.code == 0);
  CHECK(has(drawn.err, "moved/train: a part of its images, drawn at random, are those for tests"));
  CHECK(has(drawn.out, "of 6 images"));
  fs::create_directories(folder / "moved/val");
  fs::rename(folder / "moved/test/class0", folder / "moved/val/class0");
  CHECK(has(run_program(folder.path(), {"data", "info", "moved"}).err, "moved: the images in val/ are not read"));
  const Outcome too_large = run_program(folder.path(), {"data", "info", "moved", "--image-size", "513"});
  CHECK(too_large.code == 2);
}

// They are more than can be sent as one message, and than the other host's memory may hold.
TEST_CASE("a host that cannot read images which exceed the memory limit is named", "[train]") {
  const TempDir folder;
  write_pictures(folder / "pictures", 30, 12);
  write_file(folder / "large.json", large_net);
  const auto options = [&](const std::string& data) {
    Args args = training("run", {"--cache", "cache", "--image-memory", "100KiB"});
    *(std::find(args.begin(), args.end(), "--data") + 1) = data;
    return args;
  };
  const Args args = with(options("pictures"), {":", "-n", "1", BITLOOM_PROGRAM});
  const Outcome outcome = run_ranks(folder.path(), 1, with(args, options("nowhere")));
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "rank 1 on host "));
  CHECK(has(outcome.err, "/pictures, and images that exceed --image-memory, 100.0 KiB, are not sent to other hosts"));
}

// More pictures of before stayed among the new ones, and files of CIFAR-10 hid pictures.
TEST_CASE("a synthetic data set replaces files of its own names, and mixes with no others", "[data]") {
  const TempDir folder;
  const auto synth = [&](const std::string& out, const std::string& options) {
    return run_program(folder.path(), with({"data", "synth", "--out", out}, words_of(options)));
  };
  const auto info_of = [&](const std::string& out, const std::string& options) {
    const Outcome made = synth(out, options);
    INFO(made.out << made.err);
    REQUIRE(made.code == 0);
    const Outcome info = run_program(folder.path(), {"data", "info", out});
    INFO(info.err);
    REQUIRE(info.code == 0);
    return info.out;
  };
  const auto is_refused = [&](const std::string& out, const std::string& options, const std::string& file) {
    const Outcome outcome = synth(out, options);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, "--out: " + out + "/" + file));
    CHECK(has(outcome.err, " would stay among the new files; expected a new folder"));
  };
  CHECK(has(info_of("pictures", "--format pictures --train 40 --test 30"), "\ntrain: 40 images"));
  is_refused("pictures", "--format pictures --train 10 --test 30 --force", "train/");
  is_refused("pictures", "--format pictures --train 40 --test 20 --force", "test/");
  is_refused("pictures", "--format cifar10 --train 50 --test 20 --force", "train/");
  write_file(folder / "pictures/notes.txt", "of one's own");
  CHECK(has(info_of("pictures", "--format pictures --train 60 --test 40 --force"), "\ntrain: 60 images"));
  CHECK(read_file(folder / "pictures/notes.txt") == "of one's own");
  CHECK(has(info_of("batches", "--format cifar10 --train 50 --test 20"), "\ntrain: 50 images"));
  CHECK(has(info_of("batches", "--format cifar10 --train 30 --test 20 --force"), "\ntrain: 30 images"));
  is_refused("batches", "--format pictures --train 60 --test 40 --force", "test_batch.bin");
}

// They had the size that images of folders are trained in, and three colours.
TEST_CASE("pictures of a folder get the shape that a model of grey, oblong images has", "[eval]") {
  const TempDir folder;
  constexpr std::size_t height = 16, width = 24, images = 40;
  const auto number = [](std::size_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> static_cast<unsigned>(shift) & 0xffU);
    return bytes;
  };
  // Dark above, or dark below.
  std::string pixels, labels;
  for (std::size_t i = 0; i < images; ++i) {
    labels += static_cast<char>(i % 2);
    for (std::size_t p = 0; p < height * width; ++p) {
      pixels += static_cast<char>((p / width < height / 2) == (i % 2 == 0) ? 30 + i : 200 - i);
    }
  }
  fs::create_directories(folder / "digits");
  for (const std::string part : {"train", "t10k"}) {
    write_file(folder / "digits" / (part + "-images-idx3-ubyte"),
               number(0x803) + number(images) + number(height) + number(width) + pixels);
    write_file(folder / "digits" / (part + "-labels-idx1-ubyte"), number(0x801) + number(images) + labels);
  }
  for (std::size_t i = 0; i < images; ++i) {
    const fs::path place = folder / "pictures/test" / std::to_string(i % 2);
    fs::create_directories(place);
    const auto* image = reinterpret_cast<const std::uint8_t*>(pixels.data()) + i * height * width;
    data::write_png({image, height * width}, {height, width, 1}, place / (std::to_string(i) + ".png"));
  }
  write_file(folder / "net.json", large_net);
  const Outcome trained = run_program(folder.path(), {"train", "binary", "--net", "net.json", "--data", "digits",
                                                      "--validation", "0", "--batch", "8", "--out", "run"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  const auto accuracy = [&](const Args& data) {
    const Outcome done = run_program(folder.path(), with({"eval", "run", "--json"}, data));
    INFO(done.err);
    REQUIRE(done.code == 0);
    return nlohmann::json::parse(done.out);
  };
  const nlohmann::json expected = accuracy({});
  const nlohmann::json found = accuracy({"--data", "pictures"});
  CHECK(found["images"] == images);
  CHECK(found["loss"] == expected["loss"]);
  // A model that has left its run, too.
  fs::copy(folder / "run/model.safetensors", folder / "net.safetensors");
  const Outcome alone = run_program(folder.path(), {"eval", "net.safetensors", "--data", "pictures", "--json"});
  CHECK(nlohmann::json::parse(alone.out)["loss"] == expected["loss"]);
  const Outcome other = run_program(folder.path(), {"eval", "run", "--data", "pictures", "--image-size", "20"});
  CHECK(other.code == 3);
  CHECK(has(other.err, "20x20x1"));
}
