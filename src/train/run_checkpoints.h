// When and how a float run writes its checkpoints: while all wait, or beside training.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/clock.h"
#include "run/open_run.h"
#include "train/trainer.h"

namespace bitloom::train {

class RunCheckpoints {
 public:
  // open: for the writer at rank 0, from when the run has its folder. identity: of that writer. hold: that of RunOptions.
  // alive: a sign of life, called while training waits. The references outlive this.
  RunCheckpoints(Trainer& trainer, run::OpenRun& open, std::string identity, std::string hold, std::function<void()> alive);
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;
  // Waits for one that is under way, whatever comes of it.
  ~RunCheckpoints();

  // Metadata and tensors beside the state, at rank 0.
  using Describe = std::function<TensorFile()>;
  // Collective, as is what is below. The state of now, while all wait.
  void write(const Describe& describe);
  // The state of now, beside training; one at a time.
  void begin(const Describe& describe);

  // Whether rank 0 is done with the one under way, which end() is then to be called for; false elsewhere.
  bool is_written() const;
  // Whether, at rank 0, the last one began that long ago and there is none under way, but for one that is written.
  bool is_due(double seconds) const;
  bool is_under_way() const { return trainer_.is_saving(); }
  struct Report {
    std::uint64_t step = 0;
    double held_seconds = 0;     // that training waited for it
    double writing_seconds = 0;  // that it took, at rank 0
  };
  // Waits for the one under way. Throws what writing it threw: SharedError(io), for a full disk say.
  Report end();

  // Adds signs of life to the streams of what is written while all wait.
  void mark_with(std::map<std::string, StreamedTensor>& tensors) const;

 private:
  WriteTensors writer(const Describe& describe);
  void hold_last(std::map<std::string, StreamedTensor>& tensors) const;

  Trainer& trainer_;
  run::OpenRun& open_;
  const std::string identity_, hold_;
  const std::function<void()> alive_;
  Clock::time_point begun_ = Clock::now();
  Report report_;  // writing_seconds by the thread that writes
};

}  // namespace bitloom::train
