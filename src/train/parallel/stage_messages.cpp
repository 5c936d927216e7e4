#include "train/parallel/stage_messages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/progress.h"

namespace bitloom::train {
namespace {

// Evaluation sends an activation's type and shape ahead of it, in the same message (StageForward).
constexpr std::uint64_t most_message_bytes = INT_MAX - 1024;

// Throws on all stages unless all have the same.
void require_same(mpi::Comm& comm, std::span<const nn::Shape> inputs, DType values) {
  std::vector<std::string> shapes;
  for (const nn::Shape& shape : inputs) shapes.push_back(nn::to_text(shape));
  const std::string own = fmt::format("{} {}", nn::to_text(values), fmt::join(shapes, " "));
  const std::string first = comm.broadcast_text(own);
  comm.check(own == first ? ""
                          : fmt::format("pipeline: stage {} has {} between layers where stage 0 has {}; expected the same net",
                                        comm.rank(), own, first),
             ErrorKind::data);
}

void require_short_messages(std::size_t stages, std::span<const nn::Shape> inputs, DType values) {
  std::uint64_t largest = 0;
  for (std::size_t part = 1; part + 1 < inputs.size(); ++part) {
    largest = std::max<std::uint64_t>(largest, inputs[part].size() * dtype_size(values));
  }
  const std::size_t examples = std::max<std::size_t>(1, inputs.front()[0]);
  const std::string reason = reason_against_messages(stages, examples, (largest + examples - 1) / examples);
  if (!reason.empty()) fail(ErrorKind::usage, "{}", reason);
}

}  // namespace

std::string reason_against_messages(std::size_t stages, std::size_t examples, std::uint64_t bytes) {
  if (examples * bytes <= most_message_bytes) return "";
  const auto handed_on = fmt::format("stages hand on {} of an example, and at most {} at once", format_bytes(bytes),
                                     format_bytes(most_message_bytes));
  const std::uint64_t most = most_message_bytes / bytes;
  if (most == 0) return fmt::format("{}: {}; expected 1, since {}", marked_field("pipeline"), stages, handed_on);
  return fmt::format("{}: {}; expected at most {}, since {}", marked_field("micro_batch"), examples, most, handed_on);
}

StageMessages::StageMessages(nn::Engine& engine, mpi::Comm& comm, const PipelineShape& shape, std::vector<nn::Shape> inputs,
                             DType values, EventLog* log)
    : engine_(engine),
      comm_(comm),
      shape_(shape),
      inputs_(std::move(inputs)),
      values_(values),
      log_(log),
      stage_(static_cast<std::size_t>(comm.rank())) {
  require_same(comm, inputs_, values);
  if (shape_.stages > 1) require_short_messages(shape_.stages, inputs_, values);
}

void StageMessages::begin(const Schedule& schedule, std::span<const std::uint64_t> micro_batches) {
  micro_batches_.assign(micro_batches.begin(), micro_batches.end());
  incoming_.clear();
  senders_.assign(schedule.size(), {});
  for (std::size_t from = 0; from < schedule.size(); ++from) {
    if (from == stage_) continue;
    Sender& sender = senders_[from];
    for (const Action& action : schedule[from]) {
      const std::optional<StageAction> next = next_action(shape_, {from, action});
      if (next && next->stage == stage_) sender.expected.push_back(next->action);
    }
    if (!sender.expected.empty()) receive(from);
  }
}

std::span<std::byte> StageMessages::memory_of(Message& message) const {
  if (!is_on_gpu()) return {static_cast<std::byte*>(message.tensor.data()), message.tensor.bytes()};
  message.copy.resize(message.tensor.bytes());
  return message.copy;
}

const nn::Shape& StageMessages::shape_for(const Action& action) const {
  const std::size_t part = shape_.part(stage_, action.chunk);
  return inputs_[action.work == Work::forward ? part : part + 1];
}

void StageMessages::receive(std::size_t from) {
  Sender& sender = senders_[from];
  const Action action = sender.expected.front();
  sender.expected.pop_front();
  ++sender.received;
  Message& message = incoming_[action];
  message.tensor = engine_.empty(shape_for(action), values_, nn::Use::activations);
  message.pending = mpi::start_receive(comm_, static_cast<int>(from), memory_of(message));
}

nn::Tensor StageMessages::take(const Action& action) {
  const std::size_t part = shape_.part(stage_, action.chunk);
  const std::size_t from = (action.work == Work::forward ? part - 1 : part + 1) % shape_.stages;
  Sender& sender = senders_[from];
  while (!incoming_.contains(action)) {
    if (sender.expected.empty()) {
      fail(ErrorKind::internal, "pipeline: stage {} waits for micro-batch {} from stage {}, which sends none", stage_,
           number(action), from);
    }
    receive(from);
  }
  Message message = std::move(incoming_.extract(action).mapped());
  if (from == stage_) return message.tensor;
  if (!message.pending.done()) {
    const EventSpan span(log_, EventKind::receive, number(action), action.chunk);
    message.pending.wait();
  }
  message.pending.wait();  // for errors of what was over
  if (is_on_gpu()) engine_.write(message.tensor, message.copy);
  // The next comes while this one is worked on.
  if (--sender.received == 0 && !sender.expected.empty()) receive(from);
  return message.tensor;
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
    incoming_[next->action].tensor = tensor;
    return;
  }
  const EventSpan span(log_, EventKind::send, number(made), made.chunk);
  Message& message = outgoing_.emplace_back();
  message.tensor = tensor;
  const std::span<std::byte> memory = memory_of(message);
  if (is_on_gpu()) engine_.read(tensor, values_, memory);
  message.pending = mpi::start_send(comm_, static_cast<int>(next->stage), memory);
}

void StageMessages::poll() {
  while (!outgoing_.empty() && outgoing_.front().pending.done()) {
    outgoing_.front().pending.wait();
    outgoing_.pop_front();
  }
}

void StageMessages::hold_back(std::size_t most) {
  while (outgoing_.size() > most) {
    outgoing_.front().pending.wait();
    outgoing_.pop_front();
  }
}

void StageMessages::finish() {
  if (shape_.stages == 1) return;
  const EventSpan span(log_, EventKind::send);
  for (Message& message : outgoing_) message.pending.wait();
  outgoing_.clear();
}

}  // namespace bitloom::train
