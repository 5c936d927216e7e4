// Probabilities as bytes, and files of them.
#include "data/soft_labels.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "data/synthetic.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using bitloom::test::message_of;

namespace {

std::vector<int> quantised(const std::vector<float>& probabilities) {
  std::vector<std::uint8_t> bytes(probabilities.size());
  quantise_probabilities(probabilities, bytes);
  return {bytes.begin(), bytes.end()};
}

Dataset taught(std::size_t images) {
  Dataset set = make_synthetic(1, images);
  for (std::size_t i = 0; i < images * set.classes(); ++i) {
    set.soft_labels.push_back(i % set.classes() == 0 ? 165 : 10);
  }
  return set;
}

}  // namespace

TEST_CASE("probabilities become bytes that sum up to 255, none off by a whole step", "[data]") {
  CHECK(quantised({1, 0, 0}) == std::vector<int>{255, 0, 0});
  CHECK(quantised({0.5F, 0.5F}) == std::vector<int>{128, 127});
  CHECK(quantised({0.25F, 0.25F, 0.25F, 0.25F}) == std::vector<int>{64, 64, 64, 63});
  Random random(1, Stream::test);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> probabilities(2 + random.below(400));
    for (float& p : probabilities) p = static_cast<float>(std::pow(random.uniform(), 8));
    const float sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0F);
    for (float& p : probabilities) p /= sum;
    const std::vector<int> bytes = quantised(probabilities);
    CHECK(std::accumulate(bytes.begin(), bytes.end(), 0) == 255);
    for (std::size_t l = 0; l < bytes.size(); ++l) {
      CHECK(std::fabs(static_cast<float>(bytes[l]) - 255 * probabilities[l]) < 1.001F);
    }
  }
}

TEST_CASE("what is no probability is refused", "[data]") {
  std::vector<std::uint8_t> bytes(2);
  for (const float bad : {-0.1F, 1.5F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> probabilities = {0.5F, bad};
    CHECK(message_of(ErrorKind::data, [&] { quantise_probabilities(probabilities, bytes); }).find("expected 0 to 1") !=
          std::string::npos);
  }
}

TEST_CASE("soft labels come back from their file, for the images that they are of", "[data]") {
  const Dataset set = taught(20);
  const std::vector<std::byte> bytes = soft_labels_file(set).serialize();
  const TensorFile file = TensorFile::parse(bytes, "soft", Checksum::required);
  Dataset again = make_synthetic(1, 20);
  take_soft_labels(file, "soft", again);
  CHECK(again.soft_labels == set.soft_labels);
  CHECK(content_hash(again) == content_hash(make_synthetic(1, 20)));

  const auto refused = [](const TensorFile& tensors, Dataset images) {
    const std::string message = message_of(ErrorKind::data, [&] { take_soft_labels(tensors, "soft", images); });
    CHECK(images.soft_labels.empty());
    return message;
  };
  CHECK(refused(file, make_synthetic(2, 20)) == "soft: soft labels of other images than the 20 of the training set");
  CHECK(refused(file, make_synthetic(1, 19)).find("soft_labels") != std::string::npos);
  // Another program's need not say what they are of.
  TensorFile foreign = file;
  foreign.metadata.clear();
  Dataset other = make_synthetic(2, 20);
  take_soft_labels(foreign, "soft", other);
  CHECK(other.soft_labels == set.soft_labels);
  std::vector<std::uint8_t> values = set.soft_labels;
  values[13] += 1;
  foreign.put(soft_labels_tensor, {20, set.classes()}, values);
  CHECK(refused(foreign, make_synthetic(2, 20)) == "soft: the soft labels of image 1 sum up to 256; expected 255");
  foreign.tensors.clear();
  CHECK(refused(foreign, make_synthetic(2, 20)).find("soft_labels") != std::string::npos);
}

TEST_CASE("an image that is moved has the soft label of the nearest of nine places", "[data]") {
  Dataset set = make_synthetic(1, 3);
  const std::size_t classes = set.classes();
  set.soft_label_step = 3;
  // Row r of image i has all its weight in class 0 but for 9 i + r, which class 1 has.
  for (std::size_t row = 0; row < 3 * 9; ++row) {
    for (std::size_t l = 0; l < classes; ++l) {
      set.soft_labels.push_back(static_cast<std::uint8_t>(l == 0 ? 255 - row : l == 1 ? row : 0));
    }
  }
  const auto row_of = [&](std::size_t i, int down, int across) { return int{soft_label(set, i, {down, across})[1]}; };
  CHECK(row_of(0, 0, 0) == 4);
  CHECK(row_of(2, 0, 0) == 22);
  CHECK(row_of(0, 1, -1) == 4);
  CHECK(row_of(0, 2, -2) == 6);
  CHECK(row_of(1, -4, 4) == 11);
  CHECK(row_of(1, -4, 0) == 10);
  const auto shifts = label_shifts(3);
  for (std::size_t place = 0; place < shifts.size(); ++place) {
    CHECK(row_of(0, shifts[place].down, shifts[place].across) == static_cast<int>(place));
  }

  const TensorFile file = soft_labels_file(set);
  CHECK(file.get(soft_labels_tensor).shape == std::vector<std::size_t>{3, 9, classes});
  Dataset again = make_synthetic(1, 3);
  take_soft_labels(file, "soft", again);
  CHECK(again.soft_labels == set.soft_labels);
  CHECK(again.soft_label_step == 3);
  for (const char* bad : {"-1", "32", "three", "2.5"}) {
    TensorFile other = file;
    other.metadata["bitloom.soft_label_step"] = bad;
    const std::string message = message_of(ErrorKind::data, [&] { take_soft_labels(other, "soft", again); });
    CHECK(message.find("expected pixels, 0 to 31") != std::string::npos);
  }
  TensorFile one = file;
  one.metadata.erase("bitloom.soft_label_step");
  CHECK(message_of(ErrorKind::data, [&] { take_soft_labels(one, "soft", again); }).find("soft_labels") != std::string::npos);
}
