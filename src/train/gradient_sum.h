// Sums over data-parallel processes: losses, moving averages, and on GPUs gradients (on CPUs: parallel/gradient_buckets.h).
#pragma once

#include <memory>
#include <span>

#include "mpi/comm.h"
#include "nn/engine.h"
#include "train/task.h"

namespace bitloom::train {

class GpuComm;

class GradientSum {
 public:
  // Collective. Both outlive this.
  GradientSum(nn::Engine& engine, mpi::Comm& comm);
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // Collective, in place: tensors of type P become their sums over ranks, on all ranks the same bits. On CPUs in the order of
  // ranks (mpi/float_collectives.h), on GPUs by NCCL.
  void sum(std::span<nn::Tensor> tensors);
  void sum(Loss& loss);

 private:
  nn::Engine& engine_;
  mpi::Comm& comm_;
  std::unique_ptr<GpuComm> gpus_;
};

}  // namespace bitloom::train
