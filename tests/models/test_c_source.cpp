// Binary nets as C: compiled as their users would, and their scores compared with ours, to the bit.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "layerwise/model.h"
#include "models/binary/c_source.h"
#include "tests/layerwise/cases.h"
#include "tests/layerwise/random_model.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// Library that a C compiler makes of `source` without printing a word: a warning fails the test.
class Compiled {
 public:
  Compiled(const models::CSource& source, const std::string& flags) {
    write_file(folder_ / "net.c", source.source);
    write_file(folder_ / "net.h", source.header);
    const std::string at = folder_.path().string();
    const std::string command = "'" BITLOOM_COMPILER "' -x c -std=c99 -Wall -Wextra -pedantic -Wconversion -Wshadow " + flags +
                                " -shared -fPIC -o '" + at + "/net.so' '" + at + "/net.c' -lm > '" + at + "/words' 2>&1";
    const int code = std::system(command.c_str());
    INFO(read_file(folder_ / "words"));
    REQUIRE(code == 0);
    REQUIRE(read_file(folder_ / "words").empty());
    library_.reset(dlopen((at + "/net.so").c_str(), RTLD_NOW | RTLD_LOCAL));
    REQUIRE(library_);
  }
  template <typename T>
  T symbol(const char* name) const {
    void* const found = dlsym(library_.get(), name);
    REQUIRE(found != nullptr);
    return reinterpret_cast<T>(found);
  }

 private:
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  TempDir folder_;
  std::unique_ptr<void, Close> library_;
};

using Scores = void (*)(const unsigned char* pixels, float* scores);

// Planes of colours to colours side by side.
std::vector<unsigned char> side_by_side(std::span<const std::uint8_t> image, const data::ImageShape& shape) {
  std::vector<unsigned char> pixels(image.size());
  const std::size_t plane = shape.height * shape.width;
  for (std::size_t k = 0; k < plane; ++k) {
    for (std::size_t c = 0; c < shape.channels; ++c) pixels[k * shape.channels + c] = image[c * plane + k];
  }
  return pixels;
}

// Number of images whose scores differ in any bit.
std::size_t differing(const layerwise::Model& model, const layerwise::Views& views, const data::Dataset& data,
                      const Compiled& compiled) {
  const auto classifier = layerwise::Classifier::of(simd::kernels(), model, model.net.classifier, views);
  const Scores scores = compiled.symbol<Scores>("net_scores");
  layerwise::ForwardWorkspace work = classifier.make_workspace();
  std::vector<float> ours;
  std::vector<float> theirs(data.classes());
  std::size_t count = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    classifier.scores(data.image(i).data(), work, ours);
    scores(side_by_side(data.image(i), data.shape).data(), theirs.data());
    if (std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)) != 0) ++count;
  }
  return count;
}

struct Case {
  std::string what, net;
  layerwise::Views views;
};

std::vector<Case> cases() {
  const std::string flat = R"("encoder": {"kind": "thermometer", "levels": 20}, )";
  const std::string whitened = R"("encoder": {"kind": "whitened", "patch": 5, "filters": 24}, )";
  const std::string head = R"("head": {"kind": "hidden", "grid": 3, "hidden": 16}, )";
  return {{"pooled by or, ternary above binary, a skip connection, two heads",
           "{" + flat + R"("head": {"kind": "hidden", "grid": 2, "hidden": 16}, "classifier": ["a", "b"], "layers": [
             {"name": "a", "width": 40},
             {"name": "b", "inputs": ["a", "input"], "pool": "or", "width": 24, "weights": "ternary"}],
             "stages": [{"train": ["a"]}, {"train": ["b"]}]})",
           {true, 0}},
          {"space to depth, many channels, shifted views",
           "{" + whitened + head + R"("layers": [{"name": "a", "width": 130, "pool": "space_to_depth", "kernel": 1}],
             "stages": [{"train": ["a"]}]})",
           {true, 2}},
          {"pooled by and, a large kernel without padding and with a stride, a layer that no vote needs",
           "{" + whitened + R"("head": {"kind": "linear", "grid": 2}, "classifier": ["a"], "layers": [
             {"name": "a", "width": 65, "pool": "and", "kernel": 3, "padding": 0, "stride": 2},
             {"name": "b", "inputs": ["a"], "width": 32, "kernel": 1}],
             "stages": [{"train": ["a"]}, {"train": ["b"]}]})",
           {false, 1}},
          {"pooled by majority, kernels of a class",
           "{" + flat + R"("head": {"kind": "class_conv", "kernel": 3}, "layers": [
             {"name": "a", "width": 71, "weights": "ternary", "pool": "majority", "kernel": 5}],
             "stages": [{"train": ["a"]}]})",
           {true, 0}},
          {"a map that is four times as large meets a small one",
           "{" + whitened + R"("head": {"kind": "linear", "grid": 1}, "layers": [
             {"name": "a", "width": 64, "pool": "or"}, {"name": "b", "inputs": ["a"], "width": 9, "pool": "or"},
             {"name": "c", "inputs": ["b", "a", "input"], "width": 128}],
             "stages": [{"train": ["a"]}, {"train": ["b"]}, {"train": ["c"]}]})",
           {false, 0}},
          {"an encoder without contrast",
           R"({"encoder": {"kind": "whitened", "patch": 3, "filters": 40, "contrast": 0}, )" + head +
               R"("layers": [{"name": "a", "width": 16}], "stages": [{"train": ["a"]}]})",
           {true, 0}},
          {"several thresholds, of rows that fill blocks of channels and of some that do not",
           "{" + flat + head + R"("layers": [{"name": "a", "width": 24, "thresholds": 3, "weights": "ternary"},
             {"name": "b", "inputs": ["a", "input"], "width": 20, "thresholds": 2, "pool": "or"},
             {"name": "c", "inputs": ["b"], "width": 16, "thresholds": 2}],
             "stages": [{"train": ["a"]}, {"train": ["b"]}, {"train": ["c"]}]})",
           {true, 0}},
          {"planes that take whole words, before others and side by side",
           "{" + flat + head + R"("layers": [{"name": "a", "width": 64, "thresholds": 2},
             {"name": "b", "inputs": ["a", "input"], "width": 128, "thresholds": 3, "weights": "ternary"},
             {"name": "c", "inputs": ["b"], "width": 9, "pool": "space_to_depth", "kernel": 1}],
             "stages": [{"train": ["a"]}, {"train": ["b"]}, {"train": ["c"]}]})",
           {true, 0}}};
}

}  // namespace

TEST_CASE("a binary net in C gives the scores of the program to the bit", "[c_source]") {
  const data::Dataset data = small_data(250);
  const data::Dataset few = small_data(40);
  for (const Case& one : cases()) {
    const layerwise::Model model = random_model(few, one.net);
    const models::CSource source = models::c_source(model, one.views, "net", "net.h");
    // Instructions of this machine, and only those that all machines have; compilers may join products and sums where they can
    // do that.
    for (const char* flags : {"-O2 -march=native -ffp-contract=fast", "-O1"}) {
      INFO(one.what << ", " << flags);
      CHECK(differing(model, one.views, data, Compiled(source, flags)) == 0);
    }
  }
}

TEST_CASE("views end in C with the same one as in the program", "[c_source]") {
  const data::Dataset data = small_data(250);
  const layerwise::Model model = random_model(small_data(40), cases().front().net);
  // The probability that half of the images have in the first view, by the mean of both heads.
  const auto classifier_of = [&](const layerwise::Views& views) {
    return layerwise::Classifier::of(simd::kernels(), model, model.net.classifier, views);
  };
  const layerwise::Views views{true, 1, static_cast<double>(sorted_probabilities(classifier_of({false, 0}), data)[125])};
  std::set<std::size_t> taken;
  const layerwise::Classifier classifier = classifier_of(views);
  layerwise::ForwardWorkspace work = classifier.make_workspace();
  std::vector<float> scores;
  for (std::size_t i = 0; i < data.size(); ++i) taken.insert(classifier.scores(data.image(i).data(), work, scores));
  CHECK(taken.contains(1));
  CHECK(taken.size() > 2);
  const models::CSource source = models::c_source(model, views, "net", "net.h");
  CHECK(has(source.header,
            fmt::format("up to 10 views of the image and 2 heads, until a class has a probability of {}", views.sure)));
  for (const char* flags : {"-O2 -march=native -ffp-contract=fast", "-O1"}) {
    INFO(flags);
    CHECK(differing(model, views, data, Compiled(source, flags)) == 0);
    CHECK(differing(model, {true, 1}, data, Compiled(source, flags)) > 0);
  }
  // One view alone cannot end early.
  CHECK(has(models::c_source(model, {false, 0, 0.5}, "net", "net.h").header, "over 1 view of the image and 2 heads."));
}

// Sums of more than 24 bits are rounded, and those of more than 32 wrap around, as in the program.
TEST_CASE("large weights, and a head that votes twice, are the same in C", "[c_source]") {
  const data::Dataset data = small_data(60);
  const TempDir folder;
  for (const char* kind : {"linear", "hidden"}) {
    layerwise::Model model =
        random_model(data, std::string(R"({"encoder": {"kind": "thermometer", "levels": 20}, "head": {"kind": ")") + kind +
                               R"(", "grid": 1, "hidden": 16}, "classifier": ["a", "a"], "layers": [
      {"name": "a", "width": 1280, "kernel": 1}], "stages": [{"train": ["a"]}]})");
    model.save(folder / "model.safetensors");
    TensorFile file = TensorFile::load(folder / "model.safetensors");
    for (const char* name : {"a.head.linear", "a.head.output", "a.head.input"}) {
      if (!file.contains(name)) continue;
      const std::vector<std::size_t> shape = file.get(name).shape;
      std::vector<std::int16_t> large(shape[0] * shape[1]);
      for (std::size_t k = 0; k < large.size(); ++k) large[k] = static_cast<std::int16_t>(k % 7 == 0 ? 9000 : 32767 - k % 1000);
      file.put(name, shape, large);
    }
    file.put("a.head.centre", {1280}, std::vector<std::int16_t>(1280, 0));
    file.save(folder / "model.safetensors");
    model = layerwise::Model::load(folder / "model.safetensors");
    const models::CSource source = models::c_source(model, {true, 0}, "net", "net.h");
    for (const char* flags : {"-O2 -march=native", "-O1 -fsanitize=undefined -fno-sanitize-recover=all"}) {
      INFO(kind << ", " << flags);
      CHECK(differing(model, {true, 0}, data, Compiled(source, flags)) == 0);
    }
  }
}

TEST_CASE("names of classes pass into C as they are, but for what steers a terminal", "[c_source]") {
  data::Dataset data = small_data(20);
  for (std::size_t i = 0; i < data.classes(); ++i) data.class_names[i] = "class " + std::to_string(i);
  data.class_names[1] =
      "a \"quoted\" back\\slash, ?"
      "?/ and K\xc3\xa4se 8\n";
  data.class_names[2] = "\x1b[31mred";  // of a file of before such names were refused
  const layerwise::Model model = random_model(data, cases()[5].net);
  const Compiled compiled(models::c_source(model, {false, 0}, "net", "net.h"), "-O0");
  data.class_names[2] = "\\x1b[31mred";
  const auto names = compiled.symbol<const char* const*>("net_classes");
  for (std::size_t i = 0; i < data.classes(); ++i) CHECK(names[i] == data.class_names[i]);
}

TEST_CASE("what cannot be exported to C is refused", "[c_source]") {
  const data::Dataset data = small_data(20);
  const layerwise::Model model = random_model(data, cases()[5].net);
  const auto message = [&](ErrorKind kind, const layerwise::Model& from, layerwise::Views views, const std::string& name) {
    return message_of(kind, [&] { models::c_source(from, views, name, "net.h"); });
  };
  for (const char* name : {"", "2net", "a-b", "k\xc3\xa4se"}) {
    INFO(name);
    CHECK(has(message(ErrorKind::usage, model, {}, name), std::string("name: '") + name + "'"));
  }
  CHECK(has(message(ErrorKind::usage, model, {true, 12}, "net"), "`shift`: 12 pixels"));

  const TempDir folder;
  model.save(folder / "model.safetensors");
  TensorFile file = TensorFile::load(folder / "model.safetensors");
  auto bias = file.get("a.head.linear_bias").as<float>();
  std::vector<float> broken(bias.begin(), bias.end());
  broken[0] = std::numeric_limits<float>::infinity();
  file.put("a.head.linear_bias", {broken.size()}, broken);
  file.save(folder / "broken.safetensors");
  CHECK(
      has(message(ErrorKind::data, layerwise::Model::load(folder / "broken.safetensors"), {}, "net"), "inf; expected finite"));
}

TEST_CASE("heads of few bits are the same in C, and take these bits there", "[c_source]") {
  const data::Dataset data = small_data(40);
  // Matrices of 10 rows, of 256 and of 64 columns, and of 16 rows of 64, in both heads.
  const std::size_t weights = 2 * (10 * 256 + 10 * 64 + 16 * 64);
  std::size_t before = 0, bytes_before = 0;
  for (const std::size_t bits : {16, 15, 5, 4, 2}) {
    INFO(bits << " bits");
    layerwise::Model model = random_model(data, cases()[0].net);
    for (auto& [name, head] : model.heads) head.round_weights(bits);
    const models::CSource source = models::c_source(model, {true, 0}, "net", "net.h");
    CHECK(differing(model, {true, 0}, data, Compiled(source, "-O2 -march=native")) == 0);
    if (before != 0) CHECK(bytes_before - source.constant_bytes == weights * (before - bits) / 8);
    before = bits;
    bytes_before = source.constant_bytes;
  }
}

TEST_CASE("weights that meet several planes of a map are in C once", "[c_source]") {
  const data::Dataset data = small_data(40);
  const auto bytes = [&](const std::string& thresholds) {
    const std::string net = R"({"head": {"kind": "linear", "grid": 1}, "layers": [
        {"name": "a", "width": 128, "thresholds": )" +
                            thresholds + R"(}, {"name": "b", "inputs": ["a"], "width": 64, "pool": "or"}],
        "stages": [{"train": ["a"]}, {"train": ["b"]}]})";
    return models::c_source(random_model(data, net), {}, "net", "net.h").constant_bytes;
  };
  // More thresholds, and places of words in the rows of a patch, are all that there is.
  CHECK(bytes("3") - bytes("1") == 2 * 128 * sizeof(std::int32_t) + 3 * 6 * sizeof(std::uint32_t));
}
