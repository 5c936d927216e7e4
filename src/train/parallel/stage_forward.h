// Forward passes of a net over the stages of a pipeline, for inputs of any size: evaluation and text that is drawn.
#pragma once

#include "mpi/comm.h"
#include "nn/layer.h"
#include "train/parallel/partition.h"
#include "train/parallel/sharding.h"

namespace bitloom::train {

class StageForward {
 public:
  // comm: one rank for each stage, in their order; parts: of the net, as many for each stage, which has them as PipelineShape
  // says. Both agree on all ranks; comm outlives this. Throws Error(usage), which names the field `partition`.
  StageForward(mpi::Comm& comm, Partition parts);

  bool is_last() const { return comm_->rank() + 1 == comm_->size(); }

  // Collective: x, which the first stage gives, through all layers of a net, of which only this stage's need memory. Gives the
  // result on the last stage, none elsewhere. The first stage may be some calls ahead of the last: their activations are in
  // memory, so that a collective is due after a few of them. sharding, if any: of this stage's parameters, whose other ranks
  // call this as often.
  nn::Tensor run(nn::Pass& pass, nn::Sequence& net, nn::Tensor x, Sharding* sharding = nullptr);

 private:
  // Type and shape go ahead of the elements. Throws Error(internal) for bytes that are no tensor.
  void send(nn::Engine& engine, int to, const nn::Tensor& tensor);
  nn::Tensor receive(nn::Engine& engine, int from);

  mpi::Comm* comm_;
  Partition parts_;
};

}  // namespace bitloom::train
