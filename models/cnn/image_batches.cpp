#include "models/cnn/image_batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "core/suggest.h"

namespace bitloom::models {

PixelScale fit_pixel_scale(const data::Dataset& images) {
  const std::size_t channels = images.shape.channels;
  const std::size_t plane = images.shape.height * images.shape.width;
  // Whole numbers: the same for any order.
  std::vector<std::uint64_t> sums(channels), squares(channels);
  std::vector<std::uint8_t> room;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::span<const std::uint8_t> image = images.image(i, room);
    for (std::size_t c = 0; c < channels; ++c) {
      std::uint64_t sum = 0, square = 0;
      for (const std::uint8_t pixel : image.subspan(c * plane, plane)) {
        sum += pixel;
        square += std::uint64_t{pixel} * pixel;
      }
      sums[c] += sum;
      squares[c] += square;
    }
  }
  images.check_reads();
  PixelScale scale;
  const double count = static_cast<double>(std::max<std::size_t>(1, images.size() * plane));
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = static_cast<double>(sums[c]) / count;
    const double variance = static_cast<double>(squares[c]) / count - mean * mean;
    scale.mean.push_back(static_cast<float>(mean));
    scale.deviation.push_back(variance > 0 ? static_cast<float>(std::sqrt(variance)) : 1.0F);
  }
  return scale;
}

void to_numbers(std::span<const std::uint8_t> image, const data::ImageShape& shape, const PixelScale& scale, bool mirror,
                std::span<float> out) {
  const std::size_t plane = shape.height * shape.width;
  for (std::size_t c = 0; c < shape.channels; ++c) {
    const float factor = 1 / scale.deviation[c];
    const float shift = -scale.mean[c] * factor;
    for (std::size_t y = 0; y < shape.height; ++y) {
      const std::uint8_t* row = image.data() + c * plane + y * shape.width;
      float* to = out.data() + y * shape.width * shape.channels + c;
      for (std::size_t x = 0; x < shape.width; ++x) {
        to[x * shape.channels] = static_cast<float>(row[mirror ? shape.width - 1 - x : x]) * factor + shift;
      }
    }
  }
}

namespace {

struct NamedFlip {
  const char* name;
  Flip flip;
};
constexpr NamedFlip flips[] = {{"none", Flip::none}, {"random", Flip::random}, {"alternating", Flip::alternating}};

}  // namespace

std::vector<std::string> flip_names() { return names_of(flips); }

Flip parse_flip(const std::string& name) { return find_named(flips, name, marked_field("flip")).flip; }

ImageBatches::ImageBatches(const data::Dataset& images, PixelScale scale, const Options& options)
    : images_(images), scale_(std::move(scale)), options_(options) {
  if (options.batch == 0 || options.batch > images.size()) {
    fail_field(ErrorKind::usage, "batch", "{}; expected 1 to the {} images of the training set", options.batch, images.size());
  }
  if (options.micro_batch == 0 || options.batch % options.micro_batch != 0) {
    fail_field(ErrorKind::usage, "micro_batch", "{}; expected a divisor of the batch, {}", options.micro_batch, options.batch);
  }
  data::check_augment(options.augment, images.shape);
}

ImageBatches::~ImageBatches() {
  if (ahead_.valid()) ahead_.wait();
}

ImageBatches::Place ImageBatches::next(const Place& place) const {
  const std::uint64_t following = place.micro_batch + static_cast<std::uint64_t>(options_.ranks);
  if (following < options_.batch / options_.micro_batch) return {place.step, following};
  return {place.step + 1, place.micro_batch % static_cast<std::uint64_t>(options_.ranks)};
}

ImageBatch ImageBatches::get(std::uint64_t step, std::uint64_t micro_batch) {
  const Place place{step, micro_batch};
  ImageBatch batch;
  if (ahead_.valid()) batch = ahead_.get();
  if (batch.labels.empty() || ahead_place_ != place) batch = make(place);
  ahead_place_ = next(place);
  ahead_ = std::async(std::launch::async, [this, wanted = ahead_place_] { return make(wanted); });
  return batch;
}

ImageBatch ImageBatches::make(const Place& place) {
  const std::uint64_t epoch = place.step / steps_per_epoch();
  if (order_.empty() || order_epoch_ != epoch) {
    order_.resize(images_.size());
    std::iota(order_.begin(), order_.end(), 0U);
    shuffle(order_.data(), order_.size(), Random(options_.seed, Stream::shuffle, epoch));
    order_epoch_ = epoch;
  }
  const std::size_t first = place.step % steps_per_epoch() * options_.batch + place.micro_batch * options_.micro_batch;
  ImageBatch batch;
  const std::size_t size = images_.shape.size();
  batch.images.resize(options_.micro_batch * size);
  batch.labels.resize(options_.micro_batch);
  std::vector<std::uint8_t> room, changed(size);
  for (std::size_t i = 0; i < options_.micro_batch; ++i) {
    const std::uint32_t index = order_[first + i];
    const std::span<const std::uint8_t> image = images_.image(index, room);
    data::augment(image, images_.shape, options_.augment, Random(options_.seed, Stream::augment, epoch, index), changed.data());
    const bool mirror = options_.flip == Flip::random ? Random(options_.seed, Stream::image_flip, epoch, index).below(2) == 1
                        : options_.flip == Flip::alternating ? data::is_mirrored(options_.seed, index, epoch)
                                                             : false;
    to_numbers(changed, images_.shape, scale_, mirror, std::span(batch.images).subspan(i * size, size));
    batch.labels[i] = images_.labels[index];
  }
  images_.check_reads();
  return batch;
}

}  // namespace bitloom::models
