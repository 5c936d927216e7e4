// Sums of gradients over data-parallel processes, while the backward pass goes on: gradients lie in buckets of about equal
// size, those of the last layers first, and a bucket is summed as soon as the last micro-batch has added to all of it (Li et
// al. 2020, "PyTorch Distributed", section 3.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "mpi/comm.h"
#include "mpi/pending.h"
#include "nn/parameter.h"

namespace bitloom::train {

class GradientBuckets {
 public:
  // Gradients move into buckets: parameters of one type P, on a CPU, that are made. All outlive this.
  GradientBuckets(nn::Engine& engine, mpi::Comm& comm, std::span<nn::Parameter* const> parameters,
                  std::size_t bucket_bytes = usual_bytes);
  ~GradientBuckets();

  // Before the last micro-batch's gradients are announced.
  void begin_step();
  // Nothing more is added to this gradient in this step. Frozen parameters are passed over.
  void announce(nn::Parameter& parameter);
  // Collective: settles what got no gradient, sums what was not announced, and waits for all sums. The same bits for any size
  // of buckets.
  void finish();

  static constexpr std::size_t usual_bytes = std::size_t{4} << 20U;

 private:
  struct Bucket {
    nn::Tensor memory;
    std::vector<nn::Parameter*> parameters;
    std::size_t announced = 0;
    bool is_started = false;
    mpi::Pending sum;
  };
  void add_bucket(std::vector<nn::Parameter*> parameters);
  void start(Bucket& bucket);

  nn::Engine& engine_;
  mpi::Comm& comm_;
  std::vector<Bucket> buckets_;  // in the order in which they are started
  std::map<const nn::Parameter*, std::size_t> bucket_of_;
  std::size_t next_ = 0;  // sums start in one order on all processes, however gradients are announced
};

}  // namespace bitloom::train
