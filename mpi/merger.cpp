#include "mpi/merger.h"

#include <utility>

namespace bitloom::mpi {
namespace {

constexpr std::size_t most_bundles = 64;

}  // namespace

void Merger::add(std::size_t /*worker*/, Bundle bundle) {
  bundles_.push_back(std::move(bundle));
  if (bundles_.size() < most_bundles) return;
  Bundle sum = merge(std::exchange(bundles_, {}));
  bundles_.push_back(std::move(sum));
}

Bundle Merger::finish() { return merge(std::exchange(bundles_, {})); }

}  // namespace bitloom::mpi
