// OpenMP's threads in a test.
#pragma once

#include <omp.h>

namespace bitloom::test {

// Sets the number of threads until the end of the scope.
class Threads {
 public:
  explicit Threads(int n) : before_(omp_get_max_threads()) { omp_set_num_threads(n); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace bitloom::test
