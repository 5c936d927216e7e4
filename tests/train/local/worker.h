// Workers of local steps for tests: each trains the same net on other examples. Who waits for whom is not left to time, but for
// deadlines that are over at once.
#pragma once

#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/lines.h"
#include "tests/train/spirals.h"
#include "train/local/folder_exchange.h"
#include "train/local/local_steps.h"

namespace bitloom::test {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace train;

inline constexpr double never = 1e6;  // seconds
inline constexpr std::size_t worker_examples = 16;

// Everything that is learned is sent, exactly.
inline LocalOptions dense(std::uint64_t inner_steps) {
  LocalOptions options;
  options.inner_steps = inner_steps;
  options.outer = {1, 0};
  options.filter = {64, 64, 0};
  options.deadline_seconds = never;
  return options;
}

inline LocalOptions sparse(std::uint64_t inner_steps) {
  LocalOptions options = dense(inner_steps);
  options.outer = {0.7, 0.9};
  options.filter = {64, 8, 2};
  return options;
}

// Values of all parameters, one parameter after the other.
inline std::vector<float> values_of(Trainer& trainer) {
  std::vector<float> all;
  for (const nn::Parameter* parameter : trainer.parameters()) {
    const std::vector<float> own = trainer.engine().to_host<float>(parameter->value);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

// A worker with an exchange: each has other examples.
struct LocalWorker {
  LocalWorker(LocalExchange& exchange, const fs::path& file, std::uint64_t number, const LocalOptions& options,
              std::uint64_t steps)
      : task(spiral_net({}), {worker_examples, 2}, other_examples(number)),
        trainer(engine, task, train_options()),
        kept(file),
        local(
            trainer, exchange, options, steps, static_cast<double>(options.inner_steps * worker_examples), kept,
            [this] { return stops.load(); }, progress) {}
  static TrainOptions train_options() {
    TrainOptions options;
    options.rate.peak = 0.01;
    return options;
  }
  static FolderOptions folder_options(const fs::path& shared, const std::string& name, std::size_t reply_count) {
    FolderOptions options;
    options.folder = shared;
    options.worker = name;
    options.chunk = 64;
    options.reply_count = reply_count;
    options.state_every = 4;
    return options;
  }
  Classification::Source other_examples(std::uint64_t number) {
    return [source = spirals<float>(engine, {}, DType::f32), number](std::uint64_t step, std::uint64_t micro_batch) {
      return source(step + 1000 * number, micro_batch);
    };
  }
  void begin(std::size_t workers = 1) {
    local.begin(workers, [] {});
  }
  // A step, and what belongs to it; the line of metrics.
  json step() {
    const StepReport report = trainer.step();
    loss = report.loss;
    return local.after_step(report.targets, [] {});
  }
  void run(std::uint64_t steps) {
    while (trainer.steps() < steps && !stops) step();
  }
  std::vector<float> values() { return values_of(trainer); }
  // As a run that is asked to.
  void stop() {
    stops = true;
    local.leave([] {});
  }

  nn::Engine engine;
  std::atomic<bool> stops = false;
  double loss = 0;
  Classification task;
  Trainer trainer;
  fs::path kept;
  Lines progress;
  LocalSteps local;
};

struct InFolder {
  FolderExchange exchange;
};

// A worker of one process, with others through a folder.
struct Worker : InFolder, LocalWorker {
  Worker(const fs::path& shared, const std::string& name, std::uint64_t number, const LocalOptions& options,
         std::uint64_t steps, std::size_t reply_count = 0)
      : InFolder{{folder_options(shared, name, reply_count), json{{"net", "spirals"}}, json::object(), {}}},
        LocalWorker(exchange, shared / (name + ".kept"), number, options, steps) {}
};

// In units, of all parameters, one after the other.
inline std::vector<std::int64_t> units(const std::vector<float>& before, const std::vector<float>& after) {
  std::vector<std::int64_t> all(before.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = std::lrint((static_cast<double>(before[i]) - static_cast<double>(after[i])) / difference_unit);
  }
  return all;
}

inline void add_kept(const Worker& worker, std::vector<std::int64_t>& all) {
  const TensorFile file = TensorFile::load(worker.kept, Checksum::required);
  std::size_t at = 0;
  for (const nn::Parameter* parameter : worker.trainer.parameters()) {
    for (const std::int32_t each : file.get("kept." + parameter->name).as<std::int32_t>()) all[at++] += each;
  }
}

inline void add_sums(const mpi::Bundle& bundle, std::vector<std::int64_t>& all) {
  std::size_t at = 0;
  for (const mpi::SparseVector& vector : bundle.vectors) {
    mpi::add_to(std::span(all).subspan(at, vector.size), vector);
    at += vector.size;
  }
}

// The values that a worker of number `number` has after some steps of its own from `from` on.
inline std::vector<float> after_own_steps(std::uint64_t number, std::uint64_t steps) {
  const TempDir folder;
  Worker worker(folder.path(), "alone", number, dense(1000), 1000);
  for (std::uint64_t i = 0; i < steps; ++i) worker.trainer.step();
  return worker.values();
}

}  // namespace bitloom::test
