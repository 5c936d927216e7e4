// Labelled images as bytes, in memory or, where they are too many, in a file: what every reader gives and what trainers,
// encoders and `bitloom data` take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/pixel_store.h"

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
  std::string name;                           // name in messages and reports, e.g. "cifar10"
  ImageShape shape;                           // shape of every image
  std::vector<std::string> class_names;       // C entries; their number is the number of classes
  std::vector<std::uint8_t> pixels;           // N x channels x height x width (planar, the order of CIFAR); empty with a store
  std::vector<std::uint16_t> labels;          // N entries, each below C
  std::shared_ptr<const PixelStore> store{};  // where the pixels are that are not in memory
  std::vector<std::uint32_t> places{};        // with a store: which of its images each is
  std::vector<std::uint8_t> soft_labels{};    // of a training set: N x V x C, or empty (soft_labels.h)
  int soft_label_step = 0;                    // pixels between the V = 9 places at which an image has soft labels; 0: V = 1

  std::size_t size() const noexcept { return labels.size(); }
  std::size_t classes() const noexcept { return class_names.size(); }
  // Bytes of memory that the pixels take.
  std::size_t pixel_memory() const noexcept { return pixels.size() + places.size() * sizeof(std::uint32_t); }

  // Image i, channels x height x width; i < size(). Of a set in memory.
  std::span<const std::uint8_t> image(std::size_t i) const { return {pixels.data() + i * shape.size(), shape.size()}; }
  // The same of any set; it may be put into `room`, which belongs to one thread. A store's image that cannot be read is 0, and
  // check_reads() says so: to be called after the loop.
  std::span<const std::uint8_t> image(std::size_t i, std::vector<std::uint8_t>& room) const;
  // Throws Error(io) if an image could not be read.
  void check_reads() const;
  // Whether one could not, as far as this thread knows: at least after its own reads.
  bool has_failed_read() const noexcept;
  // Asks for an image that will be wanted soon.
  void prefetch(std::size_t i) const;
};

// Three sets of one shape and one list of classes; `validation` is empty unless it was asked for.
struct DataSplits {
  Dataset train;
  Dataset validation;
  Dataset test;
};

// 32 hexadecimal digits that depend on shape, class names, labels and pixels, not on `name` or soft labels: caches are keyed by
// it.
std::string content_hash(const Dataset& dataset);

// A set like `dataset` without its images.
Dataset without_images(const Dataset& dataset);
// Appends image i of `from`, a set of the same shape and classes, in memory or of the same store. Not its soft labels, which a
// set gets when it is as it will be trained on; so below.
void append_image(Dataset& to, const Dataset& from, std::size_t i);

// Keeps the first `count` images (all of them if there are fewer).
void truncate(Dataset& dataset, std::size_t count);
// That many images: the first ones or, of a set that comes class by class as those of folders do, some of all classes.
Dataset some_images(Dataset dataset, std::size_t count);

// Moves `count` images, chosen by a shuffle keyed by (seed, Stream::validation_split), out of `train` into the set that is
// returned; both keep the order in which the images had stood. Works in place: only the moved images are copied.
// Throws a usage error unless count < train.size().
Dataset split_validation(Dataset& train, std::size_t count, std::uint64_t seed);

}  // namespace bitloom::data
