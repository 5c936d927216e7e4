#include "data/dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/bits.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/random.h"

namespace bitloom::data {

std::string content_hash(const Dataset& dataset) {
  Hasher hasher;
  hasher.update("bitloom dataset");
  hasher.update(dataset.shape.height).update(dataset.shape.width).update(dataset.shape.channels);
  hasher.update(dataset.classes());
  for (const std::string& name : dataset.class_names) hasher.update(name);
  hasher.update(dataset.size());
  hasher.update(std::as_bytes(std::span(dataset.labels)));  // little-endian, see core/bits.h
  // The hash of bytes does not depend on how they are divided.
  std::vector<std::uint8_t> room;
  for (std::size_t i = 0; i < dataset.size(); ++i) hasher.update(std::as_bytes(dataset.image(i, room)));
  dataset.check_reads();
  return hasher.finish().hex();
}

std::span<const std::uint8_t> Dataset::image(std::size_t i, std::vector<std::uint8_t>& room) const {
  if (store == nullptr) return image(i);
  room.resize(shape.size());
  store->read(places[i], room);
  return room;
}

void Dataset::check_reads() const {
  if (store != nullptr) store->check();
}

bool Dataset::has_failed_read() const noexcept { return store != nullptr && store->has_failed(); }

void Dataset::prefetch(std::size_t i) const {
  if (store != nullptr) store->prefetch(places[i]);
}

Dataset without_images(const Dataset& dataset) {
  return {dataset.name, dataset.shape, dataset.class_names, {}, {}, dataset.store, {}};
}

void append_image(Dataset& to, const Dataset& from, std::size_t i) {
  to.labels.push_back(from.labels[i]);
  if (from.store != nullptr) {
    to.places.push_back(from.places[i]);
  } else {
    const auto image = from.image(i);
    to.pixels.insert(to.pixels.end(), image.begin(), image.end());
  }
}

void truncate(Dataset& dataset, std::size_t count) {
  if (count >= dataset.size()) return;
  dataset.labels.resize(count);
  if (dataset.store != nullptr) {
    dataset.places.resize(count);
  } else {
    dataset.pixels.resize(count * dataset.shape.size());
  }
}

Dataset some_images(Dataset dataset, std::size_t count) {
  if (count < dataset.size() && std::ranges::is_sorted(dataset.labels)) return split_validation(dataset, count, 1);
  truncate(dataset, count);
  return dataset;
}

Dataset split_validation(Dataset& train, std::size_t count, std::uint64_t seed) {
  if (train.size() > std::numeric_limits<std::uint32_t>::max())
    fail(ErrorKind::usage, "{} has {} images: a split is limited to 2^32 - 1", train.name, train.size());
  if (!(count < train.size()) && count != 0)
    fail(ErrorKind::usage, "validation: {} images were asked for, but {} has {} training images and needs at least one of them",
         count, train.name, train.size());
  Dataset validation = without_images(train);
  if (count == 0) return validation;

  std::vector<std::uint32_t> chosen(train.size());
  std::iota(chosen.begin(), chosen.end(), 0U);
  shuffle(chosen.data(), chosen.size(), Random(seed, Stream::validation_split));
  chosen.resize(count);
  std::sort(chosen.begin(), chosen.end());

  const std::size_t bytes = train.shape.size();
  validation.labels.reserve(count);
  if (train.store == nullptr) validation.pixels.reserve(count * bytes);
  std::size_t kept = 0;
  for (std::size_t i = 0, next = 0; i < train.size(); ++i) {
    if (next < count && chosen[next] == i) {
      append_image(validation, train, i);
      ++next;
      continue;
    }
    if (kept != i) {
      train.labels[kept] = train.labels[i];
      if (train.store != nullptr) {
        train.places[kept] = train.places[i];
      } else {
        std::memcpy(train.pixels.data() + kept * bytes, train.pixels.data() + i * bytes, bytes);
      }
    }
    ++kept;
  }
  truncate(train, kept);
  return validation;
}

}  // namespace bitloom::data
