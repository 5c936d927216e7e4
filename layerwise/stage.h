// One stage of greedy training: some layers learn, under their auxiliary heads, on the bits that the frozen layers below
// produce. A step is a function of (net, data, options, step number): any number of ranks and threads gives the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layerwise/encoder.h"
#include "layerwise/stage_exchange.h"
#include "layerwise/stage_learners.h"
#include "layerwise/stage_passes.h"
#include "layerwise/stage_setup.h"
#include "layerwise/stage_step.h"
#include "layerwise/workers.h"

namespace bitloom::layerwise {

// Bytes that each worker of a stage keeps of what it does not send (SparseExchange::error_feedback_bytes), found without room
// for all workers; `layers` stay as they are. 0 where workers keep nothing.
std::uint64_t bytes_kept_by_worker(const simd::Kernels& kernels, const StageSpec& spec, const Encoder& encoder,
                                   std::vector<BinaryLayer> layers, const data::Dataset& train, TrainOptions options);

class Stage {
 public:
  // `layers` are the layers of the whole net; those before the stage's are trained already. Everything passed by reference
  // outlives the stage. `id` separates the random streams of stages. Throws what check_stage() does.
  Stage(const simd::Kernels& kernels, mpi::Comm& comm, const StageSpec& spec, const Encoder& encoder,
        std::vector<BinaryLayer>& layers, const data::Dataset& train, const TrainOptions& options, std::uint64_t id,
        const Earlier& earlier = {});

  const StageSpec& spec() const { return setup_.spec; }
  std::size_t steps_per_epoch() const { return setup_.steps_per_epoch(); }
  std::size_t total_steps() const { return setup_.total_steps(); }
  std::size_t step_number() const { return step_.number; }
  bool finished() const { return step_number() >= total_steps(); }
  double rate() const { return setup_.rate(step_number()); }  // the schedule's share of the learning rates now
  // Whether everything learns in a step, not heads alone, and whether weights do.
  bool learns(std::size_t step) const { return setup_.learns(step); }
  bool learns_weights(std::size_t step) const { return setup_.learns_weights(step); }

  // Valid until the next step. Steps after the first few allocate no memory (but for sparse messages).
  const StepResult& step(const StepRequest& request = {});

  // Records of its inputs that this rank may read until the stage ends, ascending.
  std::vector<std::uint64_t> records_to_read() const;

  StageInputs& inputs() { return passes_.inputs(); }
  const StageInputs& inputs() const { return passes_.inputs(); }

  std::size_t heads() const { return learners_.heads.size(); }
  const Head& head(std::size_t h) const { return *learners_.heads[h].head; }
  const std::string& head_layer(std::size_t h) const { return spec().heads[h]; }
  const std::vector<std::unique_ptr<LayerTrainer>>& trainers() const { return learners_.trainers; }

  // Bytes that a rank puts into dense sums in a step in which weights learn.
  std::size_t dense_bytes() const { return learners_.dense_bytes(); }

  // See StageExchange.
  std::size_t statistics_every() const { return exchange_->statistics_every(); }
  bool statistics_due(std::size_t step) const { return exchange_->statistics_due(step); }
  std::size_t steps_observed(std::size_t step) const { return exchange_->steps_observed(step); }
  std::map<std::string, double> bytes_by_part(const mpi::ExchangeCounts& counts) const {
    return exchange_->bytes_by_part(counts);
  }
  // As it must before anything else is communicated.
  void settle() { exchange_->settle(step_number()); }
  void leave() { exchange_->leave(step_number()); }
  // Null with dense sums.
  mpi::SparseExchange* exchange() { return exchange_->messages(); }
  const mpi::SparseExchange* exchange() const { return exchange_->messages(); }

  // Everything that a bit-exact resume needs, the trained layers included. Collective, after settle(): what other ranks hold is
  // in rank 0's.
  void save(TensorFile& file);
  // The same while steps go on, on all ranks after the same step: rank 0's file gets the state of now, that of other ranks in
  // end_save(), once is_saved() says that it is here. cancel_save() is collective.
  void begin_save(TensorFile& file);
  bool is_saved() const { return exchange_->is_saved(); }
  void end_save(TensorFile& file) { exchange_->end_save(file); }
  void cancel_save() { exchange_->cancel_save(); }
  void load(const TensorFile& file);

 private:
  void initialise();

  const StageSetup setup_;
  Workers workers_;
  const StageShare share_;
  StageLearners learners_;
  StagePasses passes_;
  std::unique_ptr<StageExchange> exchange_;
  StageStep step_;  // the next; its result is the last's
  bool initialised_ = false;
};

}  // namespace bitloom::layerwise
