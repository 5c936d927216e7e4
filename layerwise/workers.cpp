#include "layerwise/workers.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"

namespace bitloom::layerwise {

void check_workers(std::size_t count, std::size_t batch) {
  if (count != 0 && count <= batch) return;
  fail_field(ErrorKind::usage, "workers", "{} logical workers cannot share minibatches of {} images; expected 1 to {}", count,
             batch, batch);
}

Workers::Workers(std::size_t count, std::size_t images, std::size_t batch, std::uint64_t seed)
    : count_(count), images_(images), batch_(batch), seed_(seed), owned_(images) {
  check_workers(count, batch);
  std::iota(owned_.begin(), owned_.end(), 0U);
  // Images often lie in the order of their classes; every worker should have some of each.
  if (count > 1) shuffle(owned_.data(), owned_.size(), Random(seed, Stream::workers));
}

void Workers::order(std::uint64_t stage, std::size_t epoch, std::vector<std::uint32_t>& images) {
  const std::size_t minibatches = images_ / batch_;
  images.resize(minibatches * batch_);
  for (std::size_t w = 0; w < count_; ++w) {
    own_.assign(owned_.begin() + static_cast<std::ptrdiff_t>(first_image(w)),
                owned_.begin() + static_cast<std::ptrdiff_t>(first_image(w + 1)));
    shuffle(own_.data(), own_.size(), Random(seed_, Stream::shuffle, stage, std::uint64_t{w} << 40U | epoch));
    for (std::size_t m = 0; m < minibatches; ++m) {
      std::copy_n(own_.begin() + static_cast<std::ptrdiff_t>(m * places(w)), places(w),
                  images.begin() + static_cast<std::ptrdiff_t>(m * batch_ + first_place(w)));
    }
  }
}

}  // namespace bitloom::layerwise
