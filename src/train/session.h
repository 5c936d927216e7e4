// A float training from a task to a trained net: how the batch of a step is divided among processes and micro-batches, which
// values it begins with, how it is evaluated and run. What all commands that train float models share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "nn/pool.h"
#include "train/run.h"

namespace bitloom::train {

class Session {
 public:
  struct Options {
    TrainOptions train;       // micro_batches follows from the others
    std::size_t batch = 128;  // examples of a step, a multiple of the data ranks
    // The micro-batch for a data rank with a share of the batch's examples: a divisor of it. Hosts may differ; all take the
    // smallest.
    std::function<std::size_t(std::size_t share)> choose_micro_batch;
    // Addition to an error about memory: how much was to be expected, and which fields take less.
    std::function<std::string(std::size_t micro_batch)> memory_hint;
    // For micro-batches of a size.
    std::function<std::unique_ptr<Task>(std::size_t micro_batch)> make_task;
    Layout layout;  // with a grid
  };

  // Collective. The engine outlives this. Throws Error(usage) for a batch that the data ranks cannot share.
  Session(nn::Engine& engine, Options options);

  std::size_t micro_batch() const { return micro_batch_; }
  Trainer& trainer() { return *trainer_; }
  const TrainOptions& train_options() const { return options_.train; }
  const Layout& layout() const { return options_.layout; }
  std::string memory_hint() const { return options_.memory_hint(micro_batch_); }

  // Collective: whether the run in `folder` goes on from a checkpoint, which has the parameters' values.
  bool goes_on(const std::filesystem::path& folder, bool resume) const;

  // The loss of `examples` examples in as many micro-batches as they take, of "step" 0; the task is to give those of the
  // validation set while evaluates() says so.
  Loss evaluate(std::uint64_t examples);
  bool evaluates() const { return evaluates_; }

  // train::run().
  RunResult run(const RunOptions& options, const RunHooks& hooks, ProgressSink& progress);

 private:
  // Runs f; its errors about memory get the hint.
  template <typename F>
  std::invoke_result_t<F> with_memory_hint(F&& f) const {
    try {
      return f();
    } catch (const nn::OutOfMemory& error) {
      throw nn::OutOfMemory(error.kind(), fmt::format("{}; {}", error.what(), memory_hint()));
    }
  }
  std::size_t divide_batch() const;
  mpi::Comm& comm() const { return options_.layout.grid->world(); }

  nn::Engine& engine_;
  Options options_;
  std::size_t micro_batch_;
  bool evaluates_ = false;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace bitloom::train
