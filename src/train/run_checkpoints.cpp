#include "train/run_checkpoints.h"

#include <thread>
#include <utility>

#include "core/hold.h"
#include "run/folder.h"
#include "train/run.h"

namespace bitloom::train {

RunCheckpoints::RunCheckpoints(Trainer& trainer, run::OpenRun& open, std::string identity, std::string hold,
                               std::function<void()> alive)
    : trainer_(trainer), open_(open), identity_(std::move(identity)), hold_(std::move(hold)), alive_(std::move(alive)) {}

RunCheckpoints::~RunCheckpoints() { trainer_.abandon_save(); }

WriteTensors RunCheckpoints::writer(const Describe& describe) {
  WriteTensors write;
  run::on_root(trainer_.comm(), [&] {
    write = [this, described = std::make_shared<const TensorFile>(describe())](std::map<std::string, StreamedTensor> tensors) {
      tensors.merge(described->streamed());
      open_.checkpoints().write(described->metadata, tensors, identity_);
    };
  });
  return write;
}

void RunCheckpoints::mark_with(std::map<std::string, StreamedTensor>& tensors) const {
  for (auto& [name, tensor] : tensors) {
    tensor.bytes = [this, bytes = tensor.bytes](const TakeBytes& take) {
      bytes([&](std::span<const std::byte> part) {
        take(part);
        alive_();
      });
    };
  }
}

void RunCheckpoints::write(const Describe& describe) {
  const WriteTensors write = writer(describe);
  trainer_.comm().together([&] {
    trainer_.save([&](std::map<std::string, StreamedTensor> tensors) {
      mark_with(tensors);
      write(std::move(tensors));
    });
  });
  begun_ = Clock::now();
}

void RunCheckpoints::begin(const Describe& describe) {
  begun_ = Clock::now();
  report_ = {trainer_.steps(), 0, 0};
  const auto save = [this, write = writer(describe),
                     training = std::this_thread::get_id()](std::map<std::string, StreamedTensor> tensors) {
    hold_last(tensors);
    // Without room for copies, or a second thread for MPI, training waits meanwhile.
    if (std::this_thread::get_id() == training) mark_with(tensors);
    write(std::move(tensors));
    report_.writing_seconds = seconds_since(begun_);
  };
  trainer_.comm().together([&] { trainer_.begin_save(save); });
  report_.held_seconds = seconds_since(begun_);
}

// Tests hold it when all but one tensor is written.
void RunCheckpoints::hold_last(std::map<std::string, StreamedTensor>& tensors) const {
  if (hold_.empty()) return;
  StreamedTensor& last = tensors.rbegin()->second;
  last.bytes = [this, bytes = last.bytes](const TakeBytes& take) {
    wait_while_held(hold_ + held_writing, report_.step, [] { return true; });
    bytes(take);
  };
}

bool RunCheckpoints::is_written() const { return trainer_.comm().is_root() && trainer_.is_saved(); }

bool RunCheckpoints::is_due(double seconds) const {
  return trainer_.comm().is_root() && (!is_under_way() || is_written()) && seconds_since(begun_) >= seconds;
}

RunCheckpoints::Report RunCheckpoints::end() {
  const Clock::time_point start = Clock::now();
  trainer_.comm().together([&] { trainer_.end_save(alive_); });
  report_.held_seconds += seconds_since(start);
  return report_;
}

}  // namespace bitloom::train
