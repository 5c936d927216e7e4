#include "data/synthetic.h"

#include <algorithm>
#include <set>

#include "tests/support/catch.h"

using namespace bitloom::data;

TEST_CASE("the synthetic set is the same on every machine") {
  // Every documented result on `synth` rests on these bytes.
  CHECK(content_hash(make_synthetic(1, 100)) == "a58a6d3e40715180cfad004b49fa8cb0");
  CHECK(content_hash(make_synthetic(1, 100, synthetic_test_first)) == "987177574fe0210f1516d484ca90ed39");
}

TEST_CASE("a synthetic image depends on seed and index alone") {
  const Dataset whole = make_synthetic(7, 50, 100);
  const Dataset part = make_synthetic(7, 13, 125);
  REQUIRE(part.size() == 13);
  for (std::size_t i = 0; i < part.size(); ++i) {
    CHECK(part.labels[i] == whole.labels[25 + i]);
    CHECK(std::ranges::equal(part.image(i), whole.image(25 + i)));
  }
  CHECK(content_hash(make_synthetic(8, 50, 100)) != content_hash(whole));
}

TEST_CASE("synthetic classes are balanced and shuffled") {
  const Dataset dataset = make_synthetic(1, 200);
  CHECK(dataset.shape == ImageShape{32, 32, 3});
  REQUIRE(dataset.classes() == synthetic_classes);
  std::set<std::vector<std::uint16_t>> orders;
  for (auto block = dataset.labels.begin(); block != dataset.labels.end(); block += 10) {
    CHECK(std::set<std::uint16_t>(block, block + 10).size() == 10);
    orders.emplace(block, block + 10);
  }
  CHECK(orders.size() > 15);
}

TEST_CASE("no two synthetic images are alike and none is flat") {
  const Dataset dataset = make_synthetic(1, 300);
  std::set<std::vector<std::uint8_t>> images;
  for (std::size_t i = 0; i < dataset.size(); ++i) {
    const auto image = dataset.image(i);
    images.emplace(image.begin(), image.end());
    const auto [low, high] = std::minmax_element(image.begin(), image.end());
    CHECK(*high - *low > 60);
  }
  CHECK(images.size() == 300);
}
