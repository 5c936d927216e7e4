// Batches of images: which images a step sees, how they are changed, and that this follows from the step alone.
#include "models/cnn/image_batches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/random.h"
#include "data/soft_labels.h"
#include "tests/models/cnn_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

constexpr data::ImageShape shape{4, 5, 2};

// Image i has the label i, a first pixel of 200 and a last one of i.
data::Dataset numbered(std::size_t count) {
  data::Dataset images{.name = "numbered", .shape = shape, .class_names = {}, .pixels = {}, .labels = {}};
  for (std::size_t i = 0; i < count; ++i) {
    images.class_names.push_back(std::to_string(i));
    images.labels.push_back(static_cast<std::uint16_t>(i));
    std::vector<std::uint8_t> pixels(shape.size(), 10);
    pixels.front() = 200;
    pixels.back() = static_cast<std::uint8_t>(i);
    images.pixels.insert(images.pixels.end(), pixels.begin(), pixels.end());
  }
  return images;
}

PixelScale plain_scale() { return {{0, 0}, {1, 1}}; }

ImageBatches::Options options_of(std::size_t batch, std::size_t micro_batch, Flip flip = Flip::none) {
  ImageBatches::Options options;
  options.batch = batch;
  options.micro_batch = micro_batch;
  options.flip = flip;
  return options;
}

// Whether each image was mirrored in an epoch of whole batches of 8 of 24.
std::vector<bool> mirrored(const data::Dataset& images, Flip flip, std::uint64_t epoch) {
  ImageBatches batches(images, plain_scale(), options_of(8, 8, flip));
  std::vector<bool> result(images.size());
  for (std::uint64_t step = 3 * epoch; step < 3 * epoch + 3; ++step) {
    const ImageBatch batch = batches.get(step, 0);
    for (std::size_t i = 0; i < 8; ++i) {
      const float first = batch.images[i * shape.size()];
      const float right = batch.images[i * shape.size() + 4 * 2];
      REQUIRE(std::max(first, right) == 200);
      REQUIRE(std::min(first, right) == 10);
      result[static_cast<std::size_t>(batch.labels[i])] = right == 200;
    }
  }
  return result;
}

}  // namespace

TEST_CASE("an epoch shows every image at most once, in an order of its own", "[cnn]") {
  const data::Dataset images = numbered(23);
  ImageBatches batches(images, plain_scale(), options_of(5, 5));
  REQUIRE(batches.steps_per_epoch() == 4);
  std::vector<std::vector<std::int32_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int32_t> seen;
    for (std::uint64_t step = 4 * epoch; step < 4 * epoch + 4; ++step) {
      const ImageBatch batch = batches.get(step, 0);
      REQUIRE(batch.labels.size() == 5);
      REQUIRE(batch.images.size() == 5 * shape.size());
      for (std::size_t i = 0; i < 5; ++i) {  // the pixels are those of the label
        CHECK(batch.images[(i + 1) * shape.size() - 1] == static_cast<float>(batch.labels[i]));
      }
      seen.insert(seen.end(), batch.labels.begin(), batch.labels.end());
    }
    CHECK(std::set<std::int32_t>(seen.begin(), seen.end()).size() == 20);
    orders.push_back(seen);
  }
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
  CHECK_FALSE(std::ranges::is_sorted(orders[0]));
  ImageBatches::Options other = options_of(5, 5);
  other.seed = 2;
  CHECK(ImageBatches(images, plain_scale(), other).get(0, 0).labels != batches.get(0, 0).labels);
}

TEST_CASE("a batch does not depend on its parts, on what was asked before, or on who else takes some", "[cnn]") {
  const data::Dataset images = test::small_images(26, {8, 8, 2});
  const PixelScale scale = fit_pixel_scale(images);
  const auto options = [](std::size_t micro_batch, int ranks) {
    ImageBatches::Options all = options_of(12, micro_batch, Flip::random);
    all.augment = data::parse_augment("crop2,cutout3,brightness20");
    all.ranks = ranks;
    return all;
  };
  constexpr std::uint64_t steps = 6;  // two per epoch
  ImageBatches whole(images, scale, options(12, 1));
  std::vector<ImageBatch> expected;
  for (std::uint64_t step = 0; step < steps; ++step) expected.push_back(whole.get(step, 0));
  CHECK(expected[0].images != expected[2].images);
  const auto check_part = [&](const ImageBatch& part, std::uint64_t step, std::size_t at) {
    INFO("step " << step << ", from image " << at);
    const std::size_t size = images.shape.size();
    const ImageBatch& all = expected[step];
    CHECK(std::ranges::equal(part.labels, std::span(all.labels).subspan(at, part.labels.size())));
    CHECK(std::ranges::equal(part.images, std::span(all.images).subspan(at * size, part.images.size())));
  };
  for (const int ranks : {1, 2, 3}) {
    for (int rank = 0; rank < ranks; ++rank) {
      ImageBatches parts(images, scale, options(2, ranks));
      for (std::uint64_t step = 0; step < steps; ++step) {
        for (auto m = static_cast<std::uint64_t>(rank); m < 6; m += static_cast<std::uint64_t>(ranks)) {
          check_part(parts.get(step, m), step, 2 * m);
        }
      }
    }
  }
  ImageBatches parts(images, scale, options(4, 1));
  for (const auto& [step, m] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{5, 2}, {0, 0}, {0, 0}, {3, 1}, {2, 2}, {3, 0}}) {
    check_part(parts.get(step, m), step, 4 * m);
  }
}

TEST_CASE("alternating flips mirror every image in every second epoch, random ones by chance", "[cnn]") {
  const data::Dataset images = numbered(24);
  const std::vector<bool> first = mirrored(images, Flip::alternating, 0);
  const std::vector<bool> second = mirrored(images, Flip::alternating, 1);
  for (std::size_t i = 0; i < 24; ++i) CHECK(first[i] != second[i]);
  CHECK(mirrored(images, Flip::alternating, 2) == first);
  CHECK(mirrored(images, Flip::alternating, 7) == second);
  const auto count = std::ranges::count(first, true);
  CHECK(count > 4);
  CHECK(count < 20);

  const std::vector<bool> drawn = mirrored(images, Flip::random, 0);
  const std::vector<bool> again = mirrored(images, Flip::random, 1);
  std::size_t same = 0;
  for (std::size_t i = 0; i < 24; ++i) same += drawn[i] == again[i] ? 1U : 0U;
  CHECK(same > 3);
  CHECK(same < 21);
  CHECK(std::ranges::count(mirrored(images, Flip::none, 0), true) == 0);
  CHECK(has(message_of(ErrorKind::usage, [&] { parse_flip("sometimes"); }), "`flip`: 'sometimes'; known: none, random"));
  CHECK(parse_flip("alternating") == Flip::alternating);
}

TEST_CASE("batches that a set cannot give are refused by the field", "[cnn]") {
  const data::Dataset images = numbered(10);
  const auto refused = [&](const ImageBatches::Options& options) {
    return message_of(ErrorKind::usage, [&] { ImageBatches(images, plain_scale(), options); });
  };
  CHECK(refused(options_of(10, 10)) == "no error");
  CHECK(has(refused(options_of(11, 11)), "`batch`: 11; expected 1 to the 10 images of the training set"));
  CHECK(has(refused(options_of(0, 1)), "`batch`: 0"));
  CHECK(has(refused(options_of(10, 4)), "`micro_batch`: 4; expected a divisor of the batch, 10"));
  CHECK(has(refused(options_of(10, 0)), "`micro_batch`: 0"));
  ImageBatches::Options cropped = options_of(5, 5);
  cropped.augment.crop_padding = 4;
  CHECK(has(refused(cropped), "'crop4' needs images of more than 4 x 4 pixels"));
  ImageBatches::Options shared = options_of(5, 5);
  shared.ranks = 0;
  CHECK(refused(shared) == "`ranks`: 0; expected at least 1");
  // Images of the next step were given, or memory behind the last one's.
  ImageBatches batches(images, plain_scale(), options_of(4, 2));
  CHECK(message_of(ErrorKind::usage, [&] { batches.get(0, 2); }) == "micro-batch 2: expected less than the 2 of a step");
}

TEST_CASE("pixels become numbers of mean 0 and deviation 1 by channel", "[cnn]") {
  data::Dataset images = test::small_images(40, {6, 7, 3});
  const std::size_t plane = std::size_t{6} * 7;
  for (std::size_t i = 0; i < images.size(); ++i) std::fill_n(images.pixels.data() + (3 * i + 2) * plane, plane, 77);
  const PixelScale scale = fit_pixel_scale(images);
  REQUIRE(scale.mean.size() == 3);
  REQUIRE(scale.deviation.size() == 3);
  for (std::size_t c = 0; c < 2; ++c) {
    double mean = 0;
    double variance = 0;
    const auto each = [&](const auto& f) {
      for (std::size_t i = 0; i < images.size(); ++i) {
        for (std::size_t p = 0; p < plane; ++p) f(static_cast<double>(images.pixels[(3 * i + c) * plane + p]));
      }
    };
    each([&](double pixel) { mean += pixel / static_cast<double>(images.size() * plane); });
    each([&](double pixel) { variance += (pixel - mean) * (pixel - mean) / static_cast<double>(images.size() * plane); });
    CHECK(static_cast<double>(scale.mean[c]) == Approx(mean).epsilon(1e-6));
    CHECK(static_cast<double>(scale.deviation[c]) == Approx(std::sqrt(variance)).epsilon(1e-6));
    CHECK(variance > 100);
  }
  CHECK(scale.mean[2] == 77);
  CHECK(scale.deviation[2] == 1);

  for (const bool mirror : {false, true}) {
    std::vector<float> found(images.shape.size(), -1e9F);
    to_numbers(images.image(3), images.shape, scale, mirror, found);
    std::vector<float> expected;
    for (std::size_t y = 0; y < 6; ++y) {
      for (std::size_t x = 0; x < 7; ++x) {
        for (std::size_t c = 0; c < 3; ++c) {
          const auto pixel = static_cast<float>(images.image(3)[c * plane + y * 7 + (mirror ? 6 - x : x)]);
          expected.push_back((pixel - scale.mean[c]) / scale.deviation[c]);
        }
      }
    }
    CHECK(compare(found, expected, 1e-5) == "");
  }
}

TEST_CASE("targets have the teacher's share of the soft label where the image is moved to", "[cnn]") {
  data::Dataset images = numbered(4);
  images.soft_label_step = 2;
  constexpr std::size_t classes = 4, places = 9;
  // At place p of an image everything is for class p modulo 4.
  for (std::size_t row = 0; row < images.size() * places; ++row) {
    for (std::size_t c = 0; c < classes; ++c) images.soft_labels.push_back(row % places % classes == c ? 255 : 0);
  }
  ImageBatches::Options options = options_of(4, 2);
  options.augment.crop_padding = 2;
  CHECK(ImageBatches(images, plain_scale(), options).get(0, 0).target_changes.empty());
  options.teacher_share = 0.75;
  options.label_smoothing = 0.2;
  ImageBatches batches(images, plain_scale(), options);
  std::set<std::size_t> seen;
  for (std::uint64_t epoch = 0; epoch < 8; ++epoch) {
    for (std::uint64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const ImageBatch batch = batches.get(epoch, micro_batch);
      REQUIRE(batch.target_changes.size() == 2 * classes);
      for (std::size_t i = 0; i < 2; ++i) {
        const auto label = static_cast<std::size_t>(batch.labels[i]);
        const data::Shift shift = data::drawn_shift(options.augment, Random(options.seed, Stream::augment, epoch, label));
        const auto third = [](int moved) { return moved == -2 ? 0U : moved == 2 ? 2U : 1U; };
        const std::size_t taught = (3 * third(shift.down) + third(shift.across)) % classes;
        seen.insert(taught);
        for (std::size_t c = 0; c < classes; ++c) {
          const double target = 0.05 + (c == label ? 0.8 : 0) + static_cast<double>(batch.target_changes[i * classes + c]);
          const double expected = (c == taught ? 0.75 : 0) + 0.25 * (0.05 + (c == label ? 0.8 : 0));
          CHECK(target == Approx(expected).margin(1e-6));
        }
      }
    }
  }
  CHECK(seen.size() == classes);
}
