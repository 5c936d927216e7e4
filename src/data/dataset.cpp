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
  hasher.update(std::as_bytes(std::span(dataset.pixels)));
  return hasher.finish().hex();
}

void truncate(Dataset& dataset, std::size_t count) {
  if (count >= dataset.size()) return;
  dataset.labels.resize(count);
  dataset.pixels.resize(count * dataset.shape.size());
}

Dataset split_validation(Dataset& train, std::size_t count, std::uint64_t seed) {
  if (train.size() > std::numeric_limits<std::uint32_t>::max())
    fail(ErrorKind::usage, "{} has {} images: a split is limited to 2^32 - 1", train.name, train.size());
  if (!(count < train.size()) && count != 0)
    fail(ErrorKind::usage, "validation: {} images were asked for, but {} has {} training images and needs at least one of them",
         count, train.name, train.size());
  Dataset validation{train.name, train.shape, train.class_names, {}, {}};
  if (count == 0) return validation;

  std::vector<std::uint32_t> chosen(train.size());
  std::iota(chosen.begin(), chosen.end(), 0U);
  shuffle(chosen.data(), chosen.size(), Random(seed, Stream::validation_split));
  chosen.resize(count);
  std::sort(chosen.begin(), chosen.end());

  const std::size_t bytes = train.shape.size();
  validation.labels.reserve(count);
  validation.pixels.reserve(count * bytes);
  std::size_t kept = 0;
  for (std::size_t i = 0, next = 0; i < train.size(); ++i) {
    if (next < count && chosen[next] == i) {
      const auto image = train.image(i);
      validation.labels.push_back(train.labels[i]);
      validation.pixels.insert(validation.pixels.end(), image.begin(), image.end());
      ++next;
      continue;
    }
    if (kept != i) {
      train.labels[kept] = train.labels[i];
      std::memcpy(train.pixels.data() + kept * bytes, train.pixels.data() + i * bytes, bytes);
    }
    ++kept;
  }
  truncate(train, kept);
  return validation;
}

}  // namespace bitloom::data
