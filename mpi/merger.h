// Merges the bundles of the workers that one rank carries, until they are sent up together.
#pragma once

#include <cstddef>
#include <vector>

#include "mpi/bundle.h"

namespace bitloom::mpi {

class Merger {
 public:
  Merger() = default;
  Merger(const Merger&) = delete;
  Merger& operator=(const Merger&) = delete;
  virtual ~Merger() = default;

  // In the order of workers. They are merged now and then, so that memory does not grow with the number of workers.
  virtual void add(std::size_t worker, Bundle bundle);
  // The sum of all that were added since the last call.
  virtual Bundle finish();

 private:
  std::vector<Bundle> bundles_;
};

}  // namespace bitloom::mpi
