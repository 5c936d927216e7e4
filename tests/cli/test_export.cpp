// `bitloom export` of binary nets, as users call it.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
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

namespace {

// The same picture as PNG and as PPM.
void write_pictures(const TempDir& folder, const data::Dataset& data, std::size_t i) {
  const std::string name = "image" + std::to_string(i);
  data::write_png(data.image(i), data.shape, folder / (name + ".png"));
  std::string ppm = "P6\n# three bytes a pixel\n32 32\n255\n";
  for (std::size_t k = 0; k < 32 * 32; ++k) {
    for (std::size_t c = 0; c < 3; ++c) ppm += static_cast<char>(data.image(i)[c * 32 * 32 + k]);
  }
  write_file(folder / (name + ".ppm"), ppm);
}

// Part of a line between the file's name and the time.
std::string classes_in(const std::string& line) {
  const std::size_t begin = line.find(": ");
  return line.substr(begin, line.find("  (") - begin);
}

}  // namespace

TEST_CASE("an exported binary net classifies pictures as predict does", "[export]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), with(quick_training("run"), {"--cache", "none"})).code == 0);
  const data::Dataset data = data::make_synthetic(1, 4);
  for (std::size_t i = 0; i < data.size(); ++i) write_pictures(folder, data, i);

  const Args sure{"--shift", "1", "--sure", "0.2"};
  for (const Args& views : {Args{}, Args{"--mirror", "off", "--shift", "2"}, sure}) {
    const Outcome exported = run_program(folder.path(), with({"export", "run", "--out", "my-net.c"}, views));
    INFO(exported.out << exported.err);
    REQUIRE(exported.code == 0);
    CHECK(has(exported.out, "my-net.c, my-net.h: my_net_scores(), "));
    const Outcome built = run_shell(folder.path(), "cc -O2 -Wall -Wextra -Werror -DBITLOOM_MAIN my-net.c -lm -o net");
    INFO(built.out << built.err);
    REQUIRE(built.code == 0);
    for (std::size_t i = 0; i < data.size(); ++i) {
      const std::string name = "image" + std::to_string(i);
      const Outcome ours = run_program(folder.path(), with({"predict", "run", name + ".png"}, views));
      const Outcome theirs = run_shell(folder.path(), "./net " + name + ".ppm");
      REQUIRE(ours.code == 0);
      CHECK(theirs.out == name + ".ppm" + classes_in(ours.out) + "\n");
    }
  }
}

TEST_CASE("a net that stops at an image that is sure says so where it is shown, measured and exported", "[export]") {
  const TempDir folder;
  const Outcome trained = run_program(
      folder.path(), with(quick_training("run"), {"--cache", "none", "--set", "net.shift=1", "--set", "net.sure=0.2"}));
  REQUIRE(trained.code == 0);
  CHECK(std::regex_search(trained.out, std::regex("test accuracy .*; [0-9.]+ of 10 views\n")));
  const auto out_of = [&](const Args& args) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out + outcome.err;
  };
  const std::string shown = out_of({"inspect", "run"});
  CHECK(has(shown, "with mirror and shifted images as test-time augmentation, until a class has a probability of 0.2"));
  CHECK(has(shown, "up to 10 images together"));
  const auto measured = [&](const Args& more) { return nlohmann::json::parse(out_of(with({"eval", "run", "--json"}, more))); };
  const double views = measured({})["views"].get<double>();
  CHECK(views > 1);
  CHECK(views < 10);
  CHECK(measured({"--sure", "1"})["views"] == 10);
  CHECK(measured({"--mirror", "off", "--shift", "0"})["views"] == 1);
  CHECK(has(out_of({"export", "run", "--out", "net.onnx"}),
            "a graph gives every image all 10 views; `bitloom predict` stops at a probability of 0.2"));
  CHECK(!has(out_of({"export", "run", "--out", "net.onnx", "--shift", "0", "--mirror", "off"}), "a graph gives"));
  const Outcome refused = run_program(folder.path(), {"eval", "run", "--sure", "1.5"});
  CHECK(refused.code == 2);
  CHECK(has(refused.err, "--sure: '1.5' is out of range; expected a number above 0 and at most 1"));
}

TEST_CASE("what export cannot write is refused, and nothing is left of it", "[export]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), with(quick_training("run"), {"--cache", "none"})).code == 0);
  std::filesystem::create_directory(folder / "folder.c");
  std::filesystem::create_directory(folder / "taken.h");
  struct Refusal {
    Args args;
    int code;
    std::string says;
  };
  const std::vector<Refusal> refusals = {
      {{"export", "run"}, 2, "--out: missing"},
      {{"export", "run", "--out", "net"}, 2, "--out: net; expected a file whose name ends in .c or .onnx or .qonnx, or --to"},
      {{"export", "run", "--out", "folder.c"}, 2, "--out: folder.c; expected a file whose name ends in .c"},
      {{"export", "run", "--out", "a\"b.c"}, 2, "expected a name that #include of C can have"},
      {{"export", "run", "--out", "net.gguf"}, 2, "--out: net.gguf; expected a file whose name ends in .c or .onnx"},
      {{"export", "run", "--out", "net.c", "--to", "pytorch"}, 2, "--to: 'pytorch'; expected c"},
      {{"export", "run", "--out", "net.c", "--shift", "32"}, 2, "shift: 32 pixels; expected less than"},
      {{"export", "run", "--out", "net.c", "--sure", "0"}, 2, "--sure: '0' is out of range; expected a number above 0"},
      {{"export", "run", "--out", "net.onnx", "--sure", "0.5"}, 2, "--sure: 0.5 has no effect on the format 'onnx'"},
      {{"export", "run", "--out", "absent/net.c"}, 5, "absent/net.c"},
      {{"export", "run", "--out", "taken.c"}, 2, "--out: taken.c; taken.h, where its header is to be, is a folder"},
      {{"export", "run", "--to", "onnx", "--out", "run/model.safetensors"}, 2, "it is the model itself"},
      {{"export", "run/model.safetensors", "--to", "c", "--out", "run/net.json"}, 2, "it is a file of a run"},
      {{"report", "run", "--out", "run/model.safetensors"},
       2,
       "--out: run/model.safetensors; expected another name: it is a file"},
      {{"report", "run", "--out", "run"}, 5, "cannot write 'run'"},
      {{"sample", "run", "--prompt", "x"},
       3,
       "a model of kind binary; expected one of kind gpt or dalle. For this one there is"},
      {{"encode", "run", "--out", "tokens"}, 3, "a model of kind binary; expected one of kind dvae"},
      {{"export", "gone", "--out", "net.c"}, 3, "gone"},
  };
  for (const Refusal& one : refusals) {
    const Outcome refused = run_program(folder.path(), one.args);
    INFO(one.says << "\n" << refused.err);
    CHECK(refused.code == one.code);
    CHECK(has(refused.err, one.says));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "taken.c"));
  CHECK_FALSE(std::filesystem::exists(folder / "net.c"));
  CHECK_FALSE(std::filesystem::exists(folder / "net.h"));
}
