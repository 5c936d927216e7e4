// Messages between the stages of a pipeline: an activation after every forward pass, its gradient after every backward
// pass, and nothing else. Messages have no headers: all stages know the schedule, and with it what comes next from where.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "mpi/comm.h"
#include "nn/engine.h"
#include "train/parallel/event_log.h"
#include "train/parallel/schedule.h"

namespace bitloom::train {

class StageMessages {
 public:
  // comm: one rank for each stage. inputs: shapes of the parts' inputs, of type `values`. Engine, comm and log outlive this.
  StageMessages(nn::Engine& engine, mpi::Comm& comm, const PipelineShape& shape, std::vector<nn::Shape> inputs, DType values,
                EventLog* log);

  // Before the passes of a schedule. micro_batches: their numbers, for the log.
  void begin(const Schedule& schedule, std::span<const std::uint64_t> micro_batches);
  // The tensor that an action of this stage takes from the neighbouring part. Waits for it. Throws PeerLost, and Error(data)
  // for a message of another size than this net's.
  nn::Tensor take(const Action& action);
  // Sends the result of an action of this stage to the action that takes it. Returns at once.
  void hand_on(const Action& made, const nn::Tensor& tensor);
  // Lets messages move on and takes in those that have arrived: to be called often while this stage computes.
  void poll();
  // Waits until everything is sent.
  void finish();

 private:
  struct Arrived {
    std::vector<std::byte> bytes;
    nn::Tensor tensor;  // of a part that is on this stage, too
  };
  const nn::Shape& shape_for(const Action& action) const;
  std::uint64_t bytes_for(const Action& action) const { return shape_for(action).size() * dtype_size(values_); }
  void store(std::size_t from, std::vector<std::byte> bytes);
  std::uint64_t number(const Action& action) const { return micro_batches_[action.micro_batch]; }

  nn::Engine& engine_;
  mpi::Comm& comm_;
  PipelineShape shape_;
  std::vector<nn::Shape> inputs_;
  DType values_;
  EventLog* log_;
  std::size_t stage_;
  std::vector<std::uint64_t> micro_batches_;
  std::vector<std::deque<Action>>
      expected_;  // by stage: its messages to this one in their order, as the actions that take them
  std::map<Action, Arrived> arrived_;
};

}  // namespace bitloom::train
