// Figures of quality of sets of images, against distances and scores worked out by hand; images that are near; blur.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/random.h"
#include "models/cnn/evaluate.h"
#include "models/cnn/model_file.h"
#include "models/quality/blur.h"
#include "models/quality/distance.h"
#include "models/quality/features.h"
#include "models/quality/near.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::models;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;

TEST_CASE("the Frechet distance of normal distributions is that worked out by hand", "[quality]") {
  // Covariances that are diagonal: (3, 4) between the means, deviations 2 and 1 beside 1 and 3.
  const FeatureStatistics a{{0, 0}, {4, 0, 0, 1}, 9};
  const FeatureStatistics b{{3, 4}, {1, 0, 0, 9}, 9};
  CHECK(frechet_distance(a, b) == Approx(25 + 1 + 4).epsilon(1e-12));
  CHECK(frechet_distance(b, a) == Approx(30).epsilon(1e-12));
  CHECK(std::abs(frechet_distance(a, a)) < 1e-12);
  // That do not commute: tr((C D)^(1/2)) of 2 x 2 matrices is sqrt(tr(C D) + 2 sqrt(det(C D))), here sqrt(8 + 2 sqrt(9)).
  const FeatureStatistics c{{1, 1}, {2, 1, 1, 2}, 9};
  const FeatureStatistics d{{1, 1}, {1, 0, 0, 3}, 9};
  CHECK(frechet_distance(c, d) == Approx(4 + 4 - 2 * std::sqrt(14.0)).epsilon(1e-12));
  // A covariance without full rank: (1,1)/sqrt(2) with variance 2. C D has the eigenvalues 4 and 0.
  const FeatureStatistics e{{1, 1}, {1, 1, 1, 1}, 9};
  CHECK(frechet_distance(e, d) == Approx(2 + 4 - 2 * std::sqrt(4.0)).epsilon(1e-12));
}

TEST_CASE("mean and covariance of features are those of a sample", "[quality]") {
  const std::vector<double> rows{0, 0, 2, 0, 0, 4, 2, 5};
  const FeatureStatistics found = feature_statistics(rows, 2);
  CHECK(found.images == 4);
  CHECK(compare(found.mean, std::vector<double>{1, 2.25}, 1e-12) == "");
  // Sums of squares 4 and 20.75, of products 1, divided by three.
  CHECK(compare(found.covariance, std::vector<double>{4.0 / 3, 1.0 / 3, 1.0 / 3, 20.75 / 3}, 1e-12) == "");
  CHECK(has(message_of(ErrorKind::data, [&] { feature_statistics(std::span(rows).first(2), 2); }),
            "1 images; expected at least 2"));
}

TEST_CASE("the inception score goes from one to the number of classes", "[quality]") {
  const std::vector<double> same{0.2, 0.8, 0.2, 0.8, 0.2, 0.8};
  CHECK(inception_score(same, 2, 1).mean == Approx(1).epsilon(1e-12));
  const std::vector<double> sure{1, 0, 0, 0, 1, 0, 0, 0, 1};
  CHECK(inception_score(sure, 3, 1).mean == Approx(3).epsilon(1e-12));
  // The mean of (0.9, 0.1) and (0.1, 0.9) is (0.5, 0.5).
  const std::vector<double> mixed{0.9, 0.1, 0.1, 0.9, 0.5, 0.5};
  const double divergence = 0.9 * std::log(1.8) + 0.1 * std::log(0.2);
  CHECK(inception_score(std::span(mixed).first(4), 2, 1).mean == Approx(std::exp(divergence)).epsilon(1e-12));
  // Parts of one image each score 1; of three, the first is shorter: one, then two.
  CHECK(inception_score(mixed, 2, 3).mean == Approx(1).epsilon(1e-12));
  CHECK(std::abs(inception_score(mixed, 2, 3).deviation) < 1e-12);
  const double second = (std::exp(
      (0.1 * std::log(0.1 / 0.3) + 0.9 * std::log(0.9 / 0.7) + 0.5 * std::log(0.5 / 0.3) + 0.5 * std::log(0.5 / 0.7)) / 2));
  const InceptionScore halves = inception_score(mixed, 2, 2);
  CHECK(halves.mean == Approx((1 + second) / 2).epsilon(1e-12));
  CHECK(halves.deviation == Approx((second - 1) / 2).epsilon(1e-9));
  CHECK(has(message_of(ErrorKind::usage, [&] { inception_score(mixed, 2, 4); }), "`parts`: 4; expected 1 to the 3 images"));
}

TEST_CASE("near images are found, planted ones at any place, the nearest first", "[quality]") {
  constexpr std::size_t columns = 5;
  constexpr std::size_t count = 1100;  // more than are looked at together
  const auto rows = [&](std::uint64_t seed) {
    std::vector<double> all(count * columns);
    for (std::size_t i = 0; i < count; ++i) {
      Random random(seed, Stream::test, i);
      double squares = 0;
      for (std::size_t c = 0; c < columns; ++c) {
        double& x = all[i * columns + c];
        x = random.uniform() - 0.5;
        squares += x * x;
      }
      for (std::size_t c = 0; c < columns; ++c) all[i * columns + c] /= std::sqrt(squares);
    }
    return all;
  };
  const std::vector<double> a = rows(1);
  std::vector<double> b = rows(2);
  const auto plant = [&](std::size_t from, std::size_t to) {
    std::copy_n(a.begin() + static_cast<std::ptrdiff_t>(from * columns), columns,
                b.begin() + static_cast<std::ptrdiff_t>(to * columns));
  };
  plant(0, 1099);
  plant(1099, 0);
  plant(511, 512);
  const auto cosine = [&](const std::vector<double>& x, std::size_t i, const std::vector<double>& y, std::size_t j) {
    return std::inner_product(x.begin() + static_cast<std::ptrdiff_t>(i * columns),
                              x.begin() + static_cast<std::ptrdiff_t>((i + 1) * columns),
                              y.begin() + static_cast<std::ptrdiff_t>(j * columns), 0.0);
  };
  for (const double least : {0.99, 1 - 1e-9}) {
    const std::vector<NearPair> found = near_pairs(a, b, columns, least);
    std::size_t expected = 0;
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < count; ++j) expected += cosine(a, i, b, j) >= least ? 1 : 0;
    }
    REQUIRE(found.size() == expected);
    for (std::size_t k = 0; k < found.size(); ++k) {
      CHECK(found[k].similarity == Approx(cosine(a, found[k].a, b, found[k].b)).epsilon(1e-12));
      if (k > 0) CHECK(found[k - 1].similarity >= found[k].similarity);
    }
    if (least < 0.999) {
      CHECK(expected > 3);
      continue;
    }
    std::vector<std::pair<std::size_t, std::size_t>> places;
    for (const NearPair& each : found) places.emplace_back(each.a, each.b);
    std::ranges::sort(places);
    CHECK(places == std::vector<std::pair<std::size_t, std::size_t>>{{0, 1099}, {511, 512}, {1099, 0}});
  }
  // Within one set each pair once, and no image with itself.
  std::vector<double> twice = a;
  std::copy_n(a.begin(), columns, twice.begin() + static_cast<std::ptrdiff_t>(700 * columns));
  const std::vector<NearPair> own = near_pairs(twice, columns, 1 - 1e-9);
  REQUIRE(own.size() == 1);
  CHECK(own[0].a == 0);
  CHECK(own[0].b == 700);
}

TEST_CASE("a point is blurred to a normal density, and an image of one colour is not changed", "[quality]") {
  constexpr std::size_t side = 9;
  std::vector<std::uint8_t> point(2 * side * side * 3, 0);
  std::fill_n(point.begin() + side * side * 3, side * side * 3, std::uint8_t{77});  // the second image
  point[(4 * side + 4) * 3 + 1] = 255;
  std::vector<std::uint8_t> same = point;
  blur(same, side, 0);
  CHECK(same == point);
  blur(point, side, 0.5);  // weights of the pixels up to two away
  const double near = std::exp(-2.0), far = std::exp(-8.0);
  const double sum = 1 + 2 * near + 2 * far;
  const double weights[] = {1 / sum, near / sum, far / sum, 0, 0};
  for (std::size_t y = 0; y < side; ++y) {
    for (std::size_t x = 0; x < side; ++x) {
      INFO(x << ", " << y);
      const std::size_t dx = x > 4 ? x - 4 : 4 - x;
      const std::size_t dy = y > 4 ? y - 4 : 4 - y;
      const std::size_t at = (y * side + x) * 3;
      CHECK(point[at + 1] == std::lround(255 * weights[dx] * weights[dy]));
      CHECK(point[at] == 0);
    }
  }
  CHECK(std::all_of(point.begin() + side * side * 3, point.end(), [](std::uint8_t pixel) { return pixel == 77; }));
  // Beyond the border stands the mirror: the pixel itself one away, the other one two away.
  std::vector<std::uint8_t> corner(2 * 2 * 3, 0);
  corner[0] = 200;
  blur(corner, 2, 0.5);
  const double own = weights[0] + weights[1];
  CHECK(corner[0] == std::lround(200 * own * own));
}

TEST_CASE("features of a convolutional net are what its last layer gets", "[quality]") {
  const test::TempDir folder;
  nn::Engine engine;
  CnnConfig config = find_cnn("tiny");
  config.image = {32, 32, 3};
  config.classes = 3;
  Cnn net(config);
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(*net.layers);
  nn::initialise(engine, parameters, DType::f32, 3);
  const CnnDescription description{config, {{120, 110, 100}, {60, 50, 40}}, {"a", "b", "c"}};
  save_cnn(engine, net, DType::f32, description).save(folder / "net.safetensors");
  const auto features = load_image_features(engine, folder / "net.safetensors");
  CHECK(features->side() == 32);
  CHECK(features->classes() == 3);
  std::vector<std::uint8_t> images(70 * 32 * 32 * 3);  // more than are passed at once
  for (std::size_t i = 0; i < images.size(); ++i) {
    images[i] = static_cast<std::uint8_t>(Random(4, Stream::test, i).below(256));
  }
  const ImageFeatures::Found found = features->of(images);
  REQUIRE(found.features.size() == 70 * features->columns());
  REQUIRE(found.probabilities.size() == 70 * 3);
  // The last layer by hand: logits are those of the classifier, one view each.
  const nn::Parameter& weight = *parameters[parameters.size() - 2];  // (classes, features)
  REQUIRE(weight.shape == nn::Shape{3, features->columns()});
  const std::vector<float> matrix = engine.to_host<float>(weight.value);
  const std::vector<float> bias = engine.to_host<float>(parameters.back()->value);
  CnnClassifier classifier(engine, net, description.scale, DType::f32, {.mirror = false, .shift = 0});
  for (const std::size_t i : {0U, 69U}) {
    std::vector<std::uint8_t> planar(32 * 32 * 3);
    for (std::size_t p = 0; p < planar.size(); ++p) planar[p % 3 * 1024 + p / 3] = images[i * planar.size() + p];
    const std::vector<std::span<const std::uint8_t>> one{planar};
    const std::vector<float> logits = classifier.logits(one);
    std::vector<float> by_hand(3);
    double sum = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      double logit = static_cast<double>(bias[k]);
      for (std::size_t f = 0; f < features->columns(); ++f) {
        logit += static_cast<double>(matrix[k * features->columns() + f]) * found.features[i * features->columns() + f];
      }
      by_hand[k] = static_cast<float>(logit);
      sum += std::exp(logit);
    }
    CHECK(compare(by_hand, logits, 1e-4) == "");
    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(found.probabilities[i * 3 + k] == Approx(std::exp(static_cast<double>(by_hand[k])) / sum).epsilon(1e-3));
    }
  }
  CHECK(has(message_of(ErrorKind::io, [&] { load_image_features(engine, folder / "none"); }), "none"));
}
