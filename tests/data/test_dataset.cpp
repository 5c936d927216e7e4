#include "data/dataset.h"

#include <algorithm>
#include <set>

#include "core/random.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using bitloom::test::message_of;

namespace {

// Image i is 2 x 3 pixels of value i; its label is i % 3.
Dataset numbered(std::size_t count) {
  Dataset dataset{"numbered", {2, 3, 1}, {"a", "b", "c"}, {}, {}};
  for (std::size_t i = 0; i < count; ++i) {
    dataset.pixels.insert(dataset.pixels.end(), 6, static_cast<std::uint8_t>(i));
    dataset.labels.push_back(static_cast<std::uint16_t>(i % 3));
  }
  return dataset;
}

std::vector<int> numbers(const Dataset& dataset) {
  std::vector<int> result;
  for (std::size_t i = 0; i < dataset.size(); ++i) {
    const auto image = dataset.image(i);
    REQUIRE(std::all_of(image.begin(), image.end(), [&](std::uint8_t value) { return value == image[0]; }));
    REQUIRE(dataset.labels[i] == image[0] % 3);
    result.push_back(image[0]);
  }
  return result;
}

}  // namespace

TEST_CASE("a validation split moves every image to exactly one side and keeps the order") {
  for (const std::size_t count : {0, 1, 7, 99}) {
    Dataset train = numbered(100);
    const Dataset validation = split_validation(train, count, 5);
    const std::vector<int> left = numbers(train);
    const std::vector<int> right = numbers(validation);
    REQUIRE(right.size() == count);
    CHECK(std::is_sorted(left.begin(), left.end()));
    CHECK(std::is_sorted(right.begin(), right.end()));
    std::vector<int> all;
    std::merge(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(all));
    REQUIRE(all.size() == 100);
    for (int i = 0; i < 100; ++i) CHECK(all[static_cast<std::size_t>(i)] == i);
    CHECK(validation.class_names == train.class_names);
    CHECK(validation.shape == train.shape);
  }
}

TEST_CASE("a validation split depends on the seed and on nothing else") {
  const auto chosen = [](std::uint64_t seed) {
    Dataset train = numbered(100);
    return numbers(split_validation(train, 20, seed));
  };
  CHECK(chosen(1) == chosen(1));
  CHECK(chosen(1) != chosen(2));
  // The documented rule: the first 20 of a shuffle keyed by the seed.
  std::vector<int> order(100);
  for (int i = 0; i < 100; ++i) order[static_cast<std::size_t>(i)] = i;
  shuffle(order.data(), order.size(), Random(1, Stream::validation_split));
  order.resize(20);
  std::sort(order.begin(), order.end());
  CHECK(chosen(1) == order);
}

TEST_CASE("a validation split leaves at least one training image") {
  Dataset train = numbered(10);
  CHECK(message_of(ErrorKind::usage, [&] { split_validation(train, 10, 1); }) ==
        "validation: 10 images were asked for, but numbered has 10 training images and needs at least one of them");
  CHECK(train.size() == 10);
}

TEST_CASE("truncate keeps the first images") {
  Dataset dataset = numbered(10);
  truncate(dataset, 20);
  CHECK(dataset.size() == 10);
  truncate(dataset, 3);
  CHECK(numbers(dataset) == std::vector<int>{0, 1, 2});
  CHECK(dataset.pixels.size() == 18);
}

// The flips of single weights were studied on the first class of a folder alone.
TEST_CASE("some images are the first ones, or of all classes where they come class by class") {
  Dataset dataset = numbered(40);
  dataset.class_names = {"a", "b", "c", "d"};
  for (std::size_t i = 0; i < 40; ++i) dataset.labels[i] = static_cast<std::uint16_t>(i % 4);
  CHECK(numbers(some_images(dataset, 3)) == std::vector<int>{0, 1, 2});
  std::ranges::sort(dataset.labels);
  CHECK(some_images(dataset, 50).size() == 40);
  const Dataset some = some_images(dataset, 20);
  CHECK(some.size() == 20);
  CHECK(std::set<std::uint16_t>(some.labels.begin(), some.labels.end()).size() == 4);
}

TEST_CASE("the content hash covers pixels, labels, shape and class names but not the name") {
  const Dataset dataset = numbered(10);
  const std::string hash = content_hash(dataset);
  CHECK(hash.size() == 32);
  Dataset other = dataset;
  other.name = "renamed";
  CHECK(content_hash(other) == hash);
  other.pixels[59] ^= 1;
  CHECK(content_hash(other) != hash);
  other = dataset;
  other.labels[9] = 1;
  CHECK(content_hash(other) != hash);
  other = dataset;
  other.class_names[2] = "d";
  CHECK(content_hash(other) != hash);
  other = dataset;
  other.shape = {3, 2, 1};
  CHECK(content_hash(other) != hash);
  other = dataset;
  truncate(other, 9);
  CHECK(content_hash(other) != hash);
}
