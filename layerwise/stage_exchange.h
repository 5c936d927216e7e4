// How ranks exchange the results of a step of a stage, so that all learn alike: a table of ways with one interface.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/safetensors.h"
#include "layerwise/stage_learners.h"
#include "layerwise/stage_passes.h"
#include "layerwise/stage_setup.h"
#include "layerwise/stage_step.h"
#include "layerwise/workers.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::layerwise {

// The parts of a stage that an exchange works with, which outlive it.
struct StageParts {
  const StageSetup& setup;
  const Workers& workers;
  StageLearners& learners;
  StagePasses& passes;
};

// The defaults are those of an exchange that is done with everything at the end of each step.
class StageExchange {
 public:
  StageExchange() = default;
  StageExchange(const StageExchange&) = delete;
  StageExchange& operator=(const StageExchange&) = delete;
  virtual ~StageExchange() = default;

  // Computes on this rank's images, and updates what learns, the same on all ranks.
  virtual void step(StageStep& step) = 0;
  // Before the first step: trained layer t has its first statistics, those of all ranks, in its sums.
  virtual void take_first_statistics(std::size_t /*t*/) {}

  // Waits until no other rank needs this one for any of the `done` steps that are done.
  virtual void settle(std::size_t /*done*/) {}
  // Collective: ends the exchange after `done` steps, before the stage's last.
  virtual void leave(std::size_t /*done*/) {}

  // Its state: see Stage.
  virtual void begin_save(TensorFile& /*file*/) {}
  virtual bool is_saved() const { return true; }
  virtual void wait_for_save() {}
  virtual void end_save(TensorFile& /*file*/) {}
  virtual void cancel_save() {}
  virtual void load(const TensorFile& /*file*/, std::size_t /*done*/) {}

  // Steps between those that carry statistics, but for the first ones.
  virtual std::size_t statistics_every() const { return 1; }
  // Whether a step carries statistics, and the number of steps whose statistics these are, this one included.
  virtual bool statistics_due(std::size_t /*step*/) const { return true; }
  virtual std::size_t steps_observed(std::size_t /*step*/) const { return 1; }
  // Its sparse messages; null if it has none.
  virtual mpi::SparseExchange* messages() const { return nullptr; }
  // Bytes of weights, thresholds, heads and statistics among those that a worker sends in an update; empty without messages.
  virtual std::map<std::string, double> bytes_by_part(const mpi::ExchangeCounts& /*counts*/) const { return {}; }
};

// A rank's share of a stage.
struct StageShare {
  Places places;        // of every minibatch
  std::size_t at_once;  // largest number of these that are computed together
  // Workers first .. last, whose images this rank may get.
  std::pair<std::size_t, std::size_t> workers;
};

// Largest numbers of images of a minibatch.
struct StageLimits {
  std::size_t summed;     // in one sum of 32 bits
  std::size_t held;       // at once on a rank
  const char* summed_by;  // " per worker" where workers sum apart, for the message about `summed`; else ""
};

// A way to exchange: a row of the table.
struct StageExchangeKind {
  const char* name;  // as the option `exchange` has it
  bool (*is_chosen)(const TrainOptions& options);
  // Throws the usage errors of options that it cannot serve on `ranks` ranks.
  void (*check)(const TrainOptions& options, std::size_t ranks);
  StageLimits (*limits)(const TrainOptions& options, std::size_t batch, std::size_t ranks);
  StageShare (*share)(const StageSetup& setup, const Workers& workers);
  std::unique_ptr<StageExchange> (*make)(const StageParts& parts);
};

// Whether exact loss changes are sent as they are, which gives what dense sums do.
inline bool sends_all_exact(const TrainOptions& options) { return options.signal == "exact" && options.exchange.exact(); }

// The way that the options choose.
const StageExchangeKind& stage_exchange(const TrainOptions& options);

// Rows of the table, each in a file of its own.
extern const StageExchangeKind dense_sums;       // stage_dense.cpp
extern const StageExchangeKind sparse_messages;  // stage_sparse.cpp

}  // namespace bitloom::layerwise
