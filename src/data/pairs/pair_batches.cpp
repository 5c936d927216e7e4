#include "data/pairs/pair_batches.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"

namespace bitloom::data {
namespace {

// Rows of more pixels serve nobody, and sizes stay far from overflow.
constexpr std::size_t side_limit = 4096;

void check_side(std::size_t side) {
  if (side == 0 || side > side_limit) fail_field(ErrorKind::usage, "side", "{}; expected 1 to {} pixels", side, side_limit);
}

// out (side, side, 3) of an image (3, side, side).
void interleave(const Image& image, std::span<std::uint8_t> out) {
  const std::size_t plane = image.shape.height * image.shape.width;
  for (std::size_t i = 0; i < plane; ++i) {
    for (std::size_t c = 0; c < 3; ++c) out[3 * i + c] = image.pixels[c * plane + i];
  }
}

// random_of(index) keys the crop of a pair.
template <typename RandomOf>
PairBatch read_batch(const Pairs& pairs, std::vector<std::size_t> indexes, std::size_t side, CropKind crop,
                     RandomOf&& random_of) {
  PairBatch batch{std::vector<std::uint8_t>(indexes.size() * side * side * 3), std::move(indexes)};
  for (std::size_t i = 0; i < batch.indexes.size(); ++i) {
    const std::size_t index = batch.indexes[i];
    const Image image = pairs.image(index);
    const SquareCrop drawn = draw_crop(crop, image.shape.height, image.shape.width, side, random_of(index));
    interleave(cut(image, drawn, side), std::span(batch.images).subspan(i * side * side * 3, side * side * 3));
  }
  return batch;
}

}  // namespace

std::vector<std::uint8_t> centre_square(const Image& image, std::size_t side) {
  check_side(side);
  const SquareCrop crop = draw_crop(CropKind::centre, image.shape.height, image.shape.width, side, Random(0, Stream::augment));
  std::vector<std::uint8_t> square(side * side * 3);
  interleave(cut(image, crop, side), square);
  return square;
}

Image to_image(std::span<const std::uint8_t> square, std::size_t side) {
  Image image{{side, side, 3}, std::vector<std::uint8_t>(square.size())};
  for (std::size_t i = 0; i < square.size(); ++i) image.pixels[i % 3 * side * side + i / 3] = square[i];
  return image;
}

std::vector<std::size_t> first_indexes(std::size_t count) {
  std::vector<std::size_t> indexes(count);
  std::iota(indexes.begin(), indexes.end(), std::size_t{0});
  return indexes;
}

void for_centre_batches(const Pairs& pairs, std::span<const std::size_t> indexes, std::size_t side, std::size_t at_once,
                        const std::function<void(const PairBatch& batch, std::size_t done)>& visit) {
  for (std::size_t first = 0; first < indexes.size(); first += at_once) {
    const std::span<const std::size_t> some = indexes.subspan(first, std::min(at_once, indexes.size() - first));
    visit(centre_batch(pairs, some, side), first + some.size());
  }
}

PairBatch centre_batch(const Pairs& pairs, std::span<const std::size_t> indexes, std::size_t side) {
  check_side(side);
  return read_batch(pairs, {indexes.begin(), indexes.end()}, side, CropKind::centre,
                    [](std::size_t) { return Random(0, Stream::augment); });
}

PairBatches::PairBatches(const Pairs& pairs, const Options& options) : pairs_(pairs), options_(options) {
  if (pairs.size() > std::numeric_limits<std::uint32_t>::max())
    fail(ErrorKind::usage, "{} pairs: an order is limited to 2^32 - 1", pairs.size());
  if (options.batch == 0 || options.batch > pairs.size())
    fail_field(ErrorKind::usage, "batch", "{}; expected 1 to the {} pairs of the training set", options.batch, pairs.size());
  if (options.micro_batch == 0 || options.batch % options.micro_batch != 0)
    fail_field(ErrorKind::usage, "micro_batch", "{}; expected a divisor of the batch, {}", options.micro_batch, options.batch);
  if (options.ranks < 1) fail_field(ErrorKind::usage, "ranks", "{}; expected at least 1", options.ranks);
  check_side(options.side);
  ahead_.emplace(options.batch / options.micro_batch, options.ranks, [this](const BatchPlace& place) { return make(place); });
}

PairBatch PairBatches::make(const BatchPlace& place) {
  const std::uint64_t epoch = place.step / steps_per_epoch();
  if (order_.empty() || order_epoch_ != epoch) {
    order_.resize(pairs_.size());
    std::iota(order_.begin(), order_.end(), 0U);
    shuffle(order_.data(), order_.size(), Random(options_.seed, Stream::shuffle, epoch));
    order_epoch_ = epoch;
  }
  const std::size_t first = place.step % steps_per_epoch() * options_.batch + place.micro_batch * options_.micro_batch;
  const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(first);
  return read_batch(pairs_, {begin, begin + static_cast<std::ptrdiff_t>(options_.micro_batch)}, options_.side, options_.crop,
                    [&](std::size_t index) { return Random(options_.seed, Stream::augment, epoch, index); });
}

}  // namespace bitloom::data
