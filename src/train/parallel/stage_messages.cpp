#include "train/parallel/stage_messages.h"

#include <utility>

#include "core/error.h"

namespace bitloom::train {

StageMessages::StageMessages(nn::Engine& engine, mpi::Comm& comm, const PipelineShape& shape, std::vector<nn::Shape> inputs,
                             DType values, EventLog* log)
    : engine_(engine),
      comm_(comm),
      shape_(shape),
      inputs_(std::move(inputs)),
      values_(values),
      log_(log),
      stage_(static_cast<std::size_t>(comm.rank())) {}

void StageMessages::begin(const Schedule& schedule, std::span<const std::uint64_t> micro_batches) {
  micro_batches_.assign(micro_batches.begin(), micro_batches.end());
  arrived_.clear();
  expected_.assign(schedule.size(), {});
  for (std::size_t from = 0; from < schedule.size(); ++from) {
    if (from == stage_) continue;
    for (const Action& action : schedule[from]) {
      const std::optional<StageAction> next = next_action(shape_, {from, action});
      if (next && next->stage == stage_) expected_[from].push_back(next->action);
    }
  }
}

const nn::Shape& StageMessages::shape_for(const Action& action) const {
  const std::size_t part = shape_.part(stage_, action.chunk);
  return inputs_[action.work == Work::forward ? part : part + 1];
}

void StageMessages::store(std::size_t from, std::vector<std::byte> bytes) {
  const Action action = expected_[from].front();
  if (bytes.size() != bytes_for(action)) {
    fail(ErrorKind::data, "pipeline: stage {} sends {} bytes between layers where stage {} expects {}; expected the same net",
         from, bytes.size(), stage_, bytes_for(action));
  }
  expected_[from].pop_front();
  arrived_[action].bytes = std::move(bytes);
}

nn::Tensor StageMessages::take(const Action& action) {
  const std::size_t part = shape_.part(stage_, action.chunk);
  const std::size_t from = (action.work == Work::forward ? part - 1 : part + 1) % shape_.stages;
  auto found = arrived_.find(action);
  if (found == arrived_.end()) {
    const EventSpan span(log_, EventKind::receive, number(action), action.chunk);
    for (; found == arrived_.end(); found = arrived_.find(action)) {
      if (from == stage_ || expected_[from].empty()) {
        fail(ErrorKind::internal, "pipeline: stage {} waits for micro-batch {} from stage {}, which sends none", stage_,
             number(action), from);
      }
      store(from, comm_.receive(static_cast<int>(from), bytes_for(expected_[from].front())));
    }
  }
  Arrived arrived = std::move(found->second);
  arrived_.erase(found);
  if (arrived.tensor) return arrived.tensor;
  nn::Tensor tensor = engine_.empty(shape_for(action), values_, nn::Use::activations);
  engine_.write(tensor, arrived.bytes);
  return tensor;
}

void StageMessages::hand_on(const Action& made, const nn::Tensor& tensor) {
  const std::optional<StageAction> next = next_action(shape_, {stage_, made});
  if (!next) return;
  const std::size_t part = shape_.part(stage_, made.chunk);
  const nn::Shape& expected = inputs_[made.work == Work::forward ? part + 1 : part];
  if (!tensor || tensor.shape() != expected || tensor.dtype() != values_) {
    fail(ErrorKind::internal, "pipeline: part {} makes {} in its {} pass; expected {} {}", part, nn::to_text(tensor),
         name_of(made.work == Work::forward ? EventKind::forward : EventKind::backward), nn::to_text(values_),
         nn::to_text(expected));
  }
  if (next->stage == stage_) {
    arrived_[next->action].tensor = tensor;
    return;
  }
  const EventSpan span(log_, EventKind::send, number(made), made.chunk);
  std::vector<std::byte> bytes(tensor.bytes());
  engine_.read(tensor, values_, bytes);
  comm_.send(static_cast<int>(next->stage), std::move(bytes));
}

void StageMessages::poll() {
  for (std::size_t from = 0; from < expected_.size(); ++from) {
    while (!expected_[from].empty()) {
      auto bytes = comm_.try_receive(static_cast<int>(from), bytes_for(expected_[from].front()));
      if (!bytes) break;
      store(from, *std::move(bytes));
    }
  }
  if (shape_.stages > 1) static_cast<void>(comm_.sends_finished());
}

void StageMessages::finish() {
  if (shape_.stages == 1) return;
  const EventSpan span(log_, EventKind::send);
  comm_.wait_until([&] { return comm_.sends_finished(); }, "a pipeline's messages");
}

}  // namespace bitloom::train
