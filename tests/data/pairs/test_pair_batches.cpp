#include "data/pairs/pair_batches.h"

#include <algorithm>
#include <set>

#include "tests/data/pairs/folder.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

PairBatches::Options options(std::size_t batch, std::size_t micro_batch, CropKind crop = CropKind::dvae) {
  return {.batch = batch, .micro_batch = micro_batch, .side = 8, .crop = crop, .seed = 4};
}

}  // namespace

TEST_CASE("an epoch of batches has every pair once, and each epoch an order of its own", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 26);
  const Pairs pairs = Pairs::open(folder.path());
  PairBatches batches(pairs, options(8, 4));
  REQUIRE(batches.steps_per_epoch() == 3);
  std::vector<std::vector<std::size_t>> orders(2);
  for (std::uint64_t step = 0; step < 6; ++step) {
    for (std::uint64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const PairBatch batch = batches.get(step, micro_batch);
      REQUIRE(batch.images.size() == 4 * 8 * 8 * 3);
      REQUIRE(batch.indexes.size() == 4);
      auto& order = orders[step / 3];
      order.insert(order.end(), batch.indexes.begin(), batch.indexes.end());
    }
  }
  for (const auto& order : orders) CHECK(std::set<std::size_t>(order.begin(), order.end()).size() == 24);
  CHECK(orders[0] != orders[1]);
}

TEST_CASE("batches are the same in whatever order they are asked for, and by any number of processes", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 20);
  const Pairs pairs = Pairs::open(folder.path());
  PairBatches alone(pairs, options(8, 2));
  std::vector<PairBatch> expected;
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::uint64_t micro_batch = 0; micro_batch < 4; ++micro_batch) expected.push_back(alone.get(step, micro_batch));
  }
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    PairBatches::Options two = options(8, 2);
    two.ranks = 2;
    PairBatches batches(pairs, two);
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (std::uint64_t micro_batch = rank; micro_batch < 4; micro_batch += 2) {
        const PairBatch batch = batches.get(step, micro_batch);
        CHECK(batch.indexes == expected[step * 4 + micro_batch].indexes);
        CHECK(batch.images == expected[step * 4 + micro_batch].images);
      }
    }
  }
  PairBatches backwards(pairs, options(8, 2));
  for (std::size_t i = expected.size(); i-- > 0;) {
    const PairBatch batch = backwards.get(i / 4, i % 4);
    CHECK(batch.indexes == expected[i].indexes);
    CHECK(batch.images == expected[i].images);
  }
}

TEST_CASE("a batch holds the crops that seed, epoch and example give", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 5);
  const Pairs pairs = Pairs::open(folder.path());
  for (const CropKind kind : {CropKind::dvae, CropKind::transformer}) {
    PairBatches batches(pairs, options(5, 5, kind));
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      const PairBatch batch = batches.get(epoch, 0);
      for (std::size_t i = 0; i < 5; ++i) {
        const std::size_t index = batch.indexes[i];
        const Image image = cut(pairs.image(index), draw_crop(kind, 12, 16, 8, Random(4, Stream::augment, epoch, index)), 8);
        for (std::size_t k = 0; k < 64; ++k) {
          for (std::size_t c = 0; c < 3; ++c) REQUIRE(batch.images[i * 192 + k * 3 + c] == image.pixels[c * 64 + k]);
        }
      }
    }
  }
}

TEST_CASE("batches for evaluation are cut in the centre, in the order asked for", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 4, 8, 12);
  const Pairs pairs = Pairs::open(folder.path());
  const std::vector<std::size_t> wanted{2, 0};
  const PairBatch batch = centre_batch(pairs, wanted, 8);
  CHECK(batch.indexes == wanted);
  const Image second = pairs.image(0);
  for (std::size_t y = 0; y < 8; ++y) {
    for (std::size_t x = 0; x < 8; ++x) {
      for (std::size_t c = 0; c < 3; ++c)
        REQUIRE(batch.images[192 + (y * 8 + x) * 3 + c] == second.pixels[(c * 8 + y) * 12 + x + 2]);
    }
  }
  CHECK(centre_batch(pairs, {}, 8).images.empty());
  CHECK(message_of(ErrorKind::usage, [&] { centre_batch(pairs, wanted, 0); }) == "`side`: 0; expected 1 to 4096 pixels");
}

TEST_CASE("an image that vanishes while training runs is an error, also where it was read ahead", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 4);
  const Pairs pairs = Pairs::open(folder.path());
  PairBatches batches(pairs, options(2, 2));
  std::filesystem::remove_all(folder / "images");
  CHECK(has(message_of(ErrorKind::data,
                       [&] {
                         for (std::uint64_t step = 0; step < 3; ++step) batches.get(step, 0);
                       }),
            ".png"));
}

TEST_CASE("impossible batches of pairs are refused", "[pairs]") {
  const TempDir folder;
  write_noise_pairs(folder.path(), 6);
  const Pairs pairs = Pairs::open(folder.path());
  const auto message = [&](const PairBatches::Options& wanted) {
    return message_of(ErrorKind::usage, [&] { PairBatches batches(pairs, wanted); });
  };
  CHECK(message(options(7, 7)) == "`batch`: 7; expected 1 to the 6 pairs of the training set");
  CHECK(message(options(0, 1)) == "`batch`: 0; expected 1 to the 6 pairs of the training set");
  CHECK(message(options(6, 4)) == "`micro_batch`: 4; expected a divisor of the batch, 6");
  CHECK(message({.batch = 2, .micro_batch = 2, .side = 5000}) == "`side`: 5000; expected 1 to 4096 pixels");
  CHECK(message({.batch = 2, .micro_batch = 2, .ranks = 0}) == "`ranks`: 0; expected at least 1");
  PairBatches batches(pairs, options(6, 2));
  CHECK(message_of(ErrorKind::usage, [&] { batches.get(0, 3); }) == "micro-batch 3: expected less than the 3 of a step");
}
