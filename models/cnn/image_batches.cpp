#include "models/cnn/image_batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "core/suggest.h"
#include "data/soft_labels.h"

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
  if (options.ranks < 1) fail_field(ErrorKind::usage, "ranks", "{}; expected at least 1", options.ranks);
  data::check_augment(options.augment, images.shape);
  ahead_.emplace(options.batch / options.micro_batch, options.ranks,
                 [this](const data::BatchPlace& place) { return make(place); });
}

ImageBatch ImageBatches::make(const data::BatchPlace& place) {
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
    const Random random(options_.seed, Stream::augment, epoch, index);
    data::augment(image, images_.shape, options_.augment, random, changed.data());
    const bool mirror = options_.flip == Flip::random ? Random(options_.seed, Stream::image_flip, epoch, index).below(2) == 1
                        : options_.flip == Flip::alternating ? data::is_mirrored(options_.seed, index, epoch)
                                                             : false;
    to_numbers(changed, images_.shape, scale_, mirror, std::span(batch.images).subspan(i * size, size));
    batch.labels[i] = images_.labels[index];
    if (options_.teacher_share > 0) {
      add_target_changes(index, data::drawn_shift(options_.augment, random), batch.target_changes);
    }
  }
  images_.check_reads();
  return batch;
}

// The teacher's share of the distance between its label of the image as it is moved, whichever way it faces, and the image's.
void ImageBatches::add_target_changes(std::size_t image, const data::Shift& shift, std::vector<float>& changes) const {
  const std::span<const std::uint8_t> soft = data::soft_label(images_, image, shift);
  const double rest = options_.label_smoothing / static_cast<double>(soft.size());
  for (std::size_t c = 0; c < soft.size(); ++c) {
    const double own = rest + (images_.labels[image] == c ? 1 - options_.label_smoothing : 0);
    changes.push_back(static_cast<float>(options_.teacher_share * (static_cast<double>(soft[c]) / data::soft_label_sum - own)));
  }
}

}  // namespace bitloom::models
