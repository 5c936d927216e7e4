// libbitloom as a program in C sees it, beside the library inside the program.
#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "core/version.h"
#include "layerwise/model.h"
#include "library/bitloom.h"
#include "tests/layerwise/cases.h"
#include "tests/layerwise/random_model.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

const char* const description = R"({"encoder": {"kind": "whitened", "patch": 5, "filters": 32},
  "head": {"kind": "hidden", "grid": 2, "hidden": 16}, "layers": [{"name": "a", "width": 64, "pool": "or"}],
  "stages": [{"train": ["a"]}]})";

// (N, height, width, colours)
std::vector<unsigned char> pixels_of(const data::Dataset& data) {
  std::vector<unsigned char> pixels;
  const std::size_t plane = data.shape.height * data.shape.width;
  for (std::size_t i = 0; i < data.size(); ++i) {
    for (std::size_t k = 0; k < plane; ++k) {
      for (std::size_t c = 0; c < data.shape.channels; ++c) pixels.push_back(data.image(i)[c * plane + k]);
    }
  }
  return pixels;
}

std::vector<float> scores_of(const layerwise::Model& model, const layerwise::Views& views, const data::Dataset& data) {
  const auto classifier = layerwise::Classifier::of(simd::kernels(), model, model.net.classifier, views);
  layerwise::ForwardWorkspace work = classifier.make_workspace();
  std::vector<float> all;
  std::vector<float> one;
  for (std::size_t i = 0; i < data.size(); ++i) {
    classifier.scores(data.image(i).data(), work, one);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace

TEST_CASE("libbitloom loads a net and gives the program's scores, in any number of threads") {
  const data::Dataset data = small_data(60);
  layerwise::Model model = random_model(data, description);
  model.class_names[3] = "K\xc3\xa4se";
  const TempDir folder;
  model.save(folder / "model.safetensors");
  bitloom_net* net = nullptr;
  REQUIRE(bitloom_load((folder / "model.safetensors").c_str(), &net) == BITLOOM_OK);
  CHECK(std::string(bitloom_error()).empty());
  CHECK(std::string(bitloom_version()) == version);
  CHECK(bitloom_height(net) == 12);
  CHECK(bitloom_width(net) == 12);
  CHECK(bitloom_colours(net) == 3);
  REQUIRE(bitloom_classes(net) == 10);
  CHECK(std::string(bitloom_class_name(net, 3)) == "K\xc3\xa4se");
  CHECK(bitloom_class_name(net, 10) == nullptr);

  const std::vector<unsigned char> pixels = pixels_of(data);
  const std::vector<float> expected = scores_of(model, model.net.views, data);
  std::vector<std::vector<float>> all(4, std::vector<float>(expected.size()));
  std::vector<int> codes(all.size(), -1);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < all.size(); ++t)
      threads.emplace_back([&, t] { codes[t] = bitloom_scores(net, pixels.data(), data.size(), all[t].data()); });
  }
  for (std::size_t t = 0; t < all.size(); ++t) {
    CHECK(codes[t] == BITLOOM_OK);
    CHECK(all[t] == expected);
  }
  REQUIRE(bitloom_set_views(net, 0, 2) == BITLOOM_OK);
  REQUIRE(bitloom_scores(net, pixels.data(), data.size(), all[0].data()) == BITLOOM_OK);
  CHECK(all[0] == scores_of(model, {false, 2}, data));
  CHECK(bitloom_set_views(net, 0, 12) == BITLOOM_BAD_ARGUMENT);
  CHECK(has(bitloom_error(), "`shift`: 12 pixels"));
  // A refused setting changes nothing.
  REQUIRE(bitloom_scores(net, pixels.data(), 1, all[1].data()) == BITLOOM_OK);
  CHECK(std::equal(all[1].begin(), all[1].begin() + 10, all[0].begin()));
  // Until an image is sure: of the views that are set, and of those set later.
  REQUIRE(bitloom_set_sure(net, 0.2) == BITLOOM_OK);
  REQUIRE(bitloom_scores(net, pixels.data(), data.size(), all[1].data()) == BITLOOM_OK);
  CHECK(all[1] == scores_of(model, {false, 2, 0.2}, data));
  CHECK(all[1] != all[0]);
  REQUIRE(bitloom_set_views(net, 1, 1) == BITLOOM_OK);
  REQUIRE(bitloom_scores(net, pixels.data(), data.size(), all[1].data()) == BITLOOM_OK);
  CHECK(all[1] == scores_of(model, {true, 1, 0.2}, data));
  for (const double wrong : {0.0, -1.0, 1.5, std::nan("")}) {
    CHECK(bitloom_set_sure(net, wrong) == BITLOOM_BAD_ARGUMENT);
    CHECK(has(bitloom_error(), "expected above 0, at most 1"));
  }
  bitloom_free(net);
}

TEST_CASE("libbitloom says what is wrong, to each thread its own error") {
  const data::Dataset data = small_data(20);
  const TempDir folder;
  random_model(data, description).save(folder / "model.safetensors");
  const std::string bytes = read_file(folder / "model.safetensors");
  write_file(folder / "short.safetensors", std::string_view(bytes).substr(0, bytes.size() - 1));
  write_file(folder / "none.safetensors", "no model at all, but a text");

  bitloom_net* net = nullptr;
  const auto refused = [&](const char* name) {
    bitloom_net* const before = reinterpret_cast<bitloom_net*>(1);
    net = before;
    const int code = bitloom_load((folder / name).c_str(), &net);
    CHECK(net == nullptr);
    return code;
  };
  CHECK(refused("absent.safetensors") == BITLOOM_BAD_DATA);
  CHECK(has(bitloom_error(), "absent.safetensors"));
  CHECK(refused("short.safetensors") == BITLOOM_BAD_DATA);
  CHECK(has(bitloom_error(), "short.safetensors"));
  CHECK(refused("none.safetensors") == BITLOOM_BAD_DATA);
  CHECK(refused(".") == BITLOOM_BAD_DATA);
  std::jthread([] { CHECK(std::string(bitloom_error()).empty()); }).join();

  CHECK(bitloom_load(nullptr, &net) == BITLOOM_BAD_ARGUMENT);
  CHECK(has(bitloom_error(), "file: a null pointer"));
  CHECK(bitloom_load("model.safetensors", nullptr) == BITLOOM_BAD_ARGUMENT);
  float score = 0;
  const unsigned char pixel = 0;
  CHECK(bitloom_scores(nullptr, &pixel, 1, &score) == BITLOOM_BAD_ARGUMENT);
  REQUIRE(bitloom_load((folder / "model.safetensors").c_str(), &net) == BITLOOM_OK);
  CHECK(bitloom_scores(net, nullptr, 1, &score) == BITLOOM_BAD_ARGUMENT);
  CHECK(has(bitloom_error(), "pixels: a null pointer"));
  CHECK(bitloom_scores(net, &pixel, 1, nullptr) == BITLOOM_BAD_ARGUMENT);
  CHECK(bitloom_scores(net, nullptr, 0, nullptr) == BITLOOM_OK);
  bitloom_free(net);
  bitloom_free(nullptr);
  CHECK(bitloom_classes(nullptr) == 0);
  CHECK(bitloom_class_name(nullptr, 0) == nullptr);
  CHECK(bitloom_set_views(nullptr, 1, 0) == BITLOOM_BAD_ARGUMENT);
  CHECK(bitloom_set_sure(nullptr, 1) == BITLOOM_BAD_ARGUMENT);
}
