// Messages between the stages of a pipeline: an activation after every forward pass, its gradient after every backward
// pass, and nothing else. Messages have no headers: all stages know the schedule, and with it what comes next from where. They
// go from tensor to tensor while stages compute (mpi/pending.h); those of GPUs through this machine's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "mpi/comm.h"
#include "mpi/pending.h"
#include "nn/engine.h"
#include "train/parallel/event_log.h"
#include "train/parallel/schedule.h"

namespace bitloom::train {

// "" or why stages cannot hand on that many examples at once, each of `bytes` bytes between two parts, with the fields' names:
// a message has no more bytes than MPI's ints count.
std::string reason_against_messages(std::size_t stages, std::size_t examples, std::uint64_t bytes);

class StageMessages {
 public:
  // Collective. comm: one rank for each stage. inputs: shapes of the parts' inputs, then that of the net's output, of type
  // `values`; the first axis of the first input is that of examples. Engine, comm and log outlive this. Throws
  // SharedError(data), or GroupError, if a stage has other shapes or another type than the first, and Error(usage), on all of
  // them, for reason_against_messages().
  StageMessages(nn::Engine& engine, mpi::Comm& comm, const PipelineShape& shape, std::vector<nn::Shape> inputs, DType values,
                EventLog* log);

  // Before the passes of a schedule. micro_batches: their numbers, for the log.
  void begin(const Schedule& schedule, std::span<const std::uint64_t> micro_batches);
  // The tensor that an action of this stage takes from the neighbouring part. Waits for it. Throws PeerLost.
  nn::Tensor take(const Action& action);
  // Sends the result of an action of this stage, which nobody changes any more, to the action that takes it. Returns at once.
  void hand_on(const Action& made, const nn::Tensor& tensor);
  // Lets go of what has been sent: to be called often while this stage computes.
  void poll();
  // Waits until at most so many messages are on their way, so that a stage that is faster than those behind it does not fill
  // its memory. For forward passes through one part of each stage: else those behind may wait for this one.
  void hold_back(std::size_t most);
  // Waits until everything is sent.
  void finish();

 private:
  struct Message {
    nn::Tensor tensor;
    std::vector<std::byte> copy;  // in this machine's memory, of a GPU's tensor
    mpi::Pending pending;         // over, or nothing, of a part that is on this stage, too
  };
  bool is_on_gpu() const { return engine_.device().kind == nn::Device::Kind::cuda; }
  // Memory that a message is sent from or received into.
  std::span<std::byte> memory_of(Message& message) const;
  const nn::Shape& shape_for(const Action& action) const;
  // Receives the next message of a stage.
  void receive(std::size_t from);
  std::uint64_t number(const Action& action) const { return micro_batches_[action.micro_batch]; }

  nn::Engine& engine_;
  mpi::Comm& comm_;
  PipelineShape shape_;
  std::vector<nn::Shape> inputs_;
  DType values_;
  EventLog* log_;
  std::size_t stage_;
  std::vector<std::uint64_t> micro_batches_;
  // By stage: its messages to this one in their order, as the actions that take them.
  struct Sender {
    std::deque<Action> expected;
    std::size_t received = 0;  // or being received, and not taken
  };
  std::vector<Sender> senders_;
  std::map<Action, Message> incoming_;  // by the action that takes it
  std::deque<Message> outgoing_;
};

}  // namespace bitloom::train
