// Labelled images in memory, as bytes: what every reader gives and what trainers, encoders and `bitloom data` take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bitloom::data {

struct ImageShape {
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t channels = 0;

  // Bytes of one image.
  std::size_t size() const noexcept { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

// N images of one shape with one class each.
struct Dataset {
  std::string name;                      // what messages and reports call it, e.g. "cifar10"
  ImageShape shape;                      // of every image
  std::vector<std::string> class_names;  // C entries; their number is the number of classes
  std::vector<std::uint8_t> pixels;      // N x channels x height x width (planar, the order of CIFAR)
  std::vector<std::uint16_t> labels;     // N entries, each below C

  std::size_t size() const noexcept { return labels.size(); }
  std::size_t classes() const noexcept { return class_names.size(); }
  // Image i, channels x height x width; i < size().
  std::span<const std::uint8_t> image(std::size_t i) const { return {pixels.data() + i * shape.size(), shape.size()}; }
};

// Three sets of one shape and one list of classes; `validation` is empty unless it was asked for.
struct DataSplits {
  Dataset train;
  Dataset validation;
  Dataset test;
};

// 32 hexadecimal digits that depend on shape, class names, labels and pixels, and not on `name`: caches are keyed by it.
std::string content_hash(const Dataset& dataset);

// Keeps the first `count` images (all of them if there are fewer).
void truncate(Dataset& dataset, std::size_t count);

// Moves `count` images, chosen by a shuffle keyed by (seed, Stream::validation_split), out of `train` into the set that is
// returned; both keep the order in which the images had stood. Works in place: only the moved images are copied.
// Throws a usage error unless count < train.size().
Dataset split_validation(Dataset& train, std::size_t count, std::uint64_t seed);

}  // namespace bitloom::data
