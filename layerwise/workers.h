// Logical workers: who owns which training images and which places in a minibatch. A run has a fixed number of them, however
// many ranks carry them, so that its result depends on their number and the seed alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace bitloom::layerwise {

// Throws a usage error if a worker would have no place in a minibatch.
void check_workers(std::size_t count, std::size_t batch);

class Workers {
 public:
  // `count` workers share `images` training images in minibatches of `batch` <= images. Throws what check_workers() does.
  Workers(std::size_t count, std::size_t images, std::size_t batch, std::uint64_t seed);

  std::size_t count() const { return count_; }
  // Places first .. last of the minibatch are worker w's.
  std::size_t first_place(std::size_t w) const { return w * batch_ / count_; }
  std::size_t places(std::size_t w) const { return first_place(w + 1) - first_place(w); }
  std::size_t most_places() const { return (batch_ + count_ - 1) / count_; }
  // Workers first .. last are carried by `rank` of `ranks`.
  std::pair<std::size_t, std::size_t> on_rank(std::size_t rank, std::size_t ranks) const {
    return {rank * count_ / ranks, (rank + 1) * count_ / ranks};
  }
  // The images (batch x minibatches of the epoch) of an epoch, minibatch by minibatch: each worker's own, in an order that is
  // random for every epoch of every stage. What does not fill a minibatch is left out.
  void order(std::uint64_t stage, std::size_t epoch, std::vector<std::uint32_t>& images);
  // The images of workers first .. last.
  std::span<const std::uint32_t> images(std::size_t first, std::size_t last) const {
    return std::span(owned_).subspan(first_image(first), first_image(last) - first_image(first));
  }

 private:
  std::size_t first_image(std::size_t w) const { return first_place(w) * images_ / batch_; }

  std::size_t count_, images_, batch_;
  std::uint64_t seed_;
  std::vector<std::uint32_t> owned_;  // images, worker by worker
  std::vector<std::uint32_t> own_;    // scratch of order()
};

}  // namespace bitloom::layerwise
