// The run behind train(): what stays between its steps. Private to trainer.cpp (the loop), run_files.cpp (folder, stages that
// were trained before), run_checkpoint.cpp (state that a run goes on from) and run_report.cpp (figures for people and metrics,
// and the model).
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/hash.h"
#include "layerwise/cache.h"
#include "layerwise/error_feedback_place.h"
#include "layerwise/exchange_report.h"
#include "layerwise/input_placement.h"
#include "layerwise/phase_times.h"
#include "layerwise/stage_checkpoints.h"
#include "layerwise/trained_stages.h"
#include "layerwise/trainer.h"
#include "run/folder.h"
#include "run/open_run.h"

namespace bitloom::layerwise {

inline constexpr const char* next_model_name = "model.next.safetensors";  // until it is whole
inline constexpr const char* encoder_name = "encoder.safetensors";

// The steps of the epoch under way. Phase times and messages are of this rank: dense runs keep rank 0's times over a restart,
// of the rest a line of metrics has what this process did.
struct EpochSums {
  StepResult sums;
  std::size_t steps = 0;
  std::size_t steps_here = 0;   // steps of this process
  std::size_t exact_steps = 0;  // steps that StepResult::lower_share is of
  double seconds = 0;

  void add(const StepResult& step, double step_seconds);
};

// Everything that train() needs between its steps.
class Run {
 public:
  Run(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
      ProgressSink& progress);
  RunResult execute();

 private:
  void build_layers();
  TensorFile fit_encoder() const;
  void identify(const Hash128& encoder);
  nlohmann::json identity(const Hash128& encoder) const;
  void lock_folder();
  void claim_folder();
  void open_folder();
  void write_description();
  void open_cache();
  void store_stage();
  std::string history_text(std::size_t s) const;
  void keep_trained(std::size_t s);
  void read_checkpoint();
  TensorFile checkpoint_file(const Stage* stage);
  bool reuse(std::size_t s);
  std::unique_ptr<Stage> make_stage(std::size_t s);
  void train_stage(std::size_t s);
  const StepResult& take_step(Stage& stage);
  void show_step(const Stage& stage);
  void report_epoch(const Stage& stage);
  nlohmann::json epoch_json() const;
  void read_epoch(const nlohmann::json& json);
  void finish_stage(const Stage& stage);
  void report_stage(const StageSummary& summary);
  EvaluationWatch watch(std::size_t images_before = 0);
  void report_start();
  void validate(const StageSpec& spec, StageSummary& summary);
  void finish_run();
  Classifier classifier(const std::vector<std::string>& members, const Views& views, const Stage* stage) const;
  // Whether a second run with the same options may give another net.
  bool depends_on_time() const { return options_.train.sparse && options_.train.exchange.tree.quorum < 1; }
  template <typename F>
  void on_root(F&& f) {
    run::on_root(comm_, std::forward<F>(f));
  }

  const simd::Kernels& kernels_;
  mpi::Comm& comm_;
  const RunOptions& options_;
  const data::DataSplits& data_;
  ProgressSink& progress_;
  run::OpenRun open_;
  std::unique_ptr<Cache> cache_;
  std::string data_hash_;                // of the training images
  std::string soft_labels_hash_;         // empty without soft labels
  std::vector<std::byte> encoder_file_;  // at rank 0, until it is written
  std::vector<Hash128> keys_;            // keys of the stages
  std::string identity_;                 // text that a checkpoint must agree with
  RunResult result_;
  TrainedStages trained_;
  std::optional<InputPlacement> inputs_;   // once there is a cache, or none
  std::size_t stage_ = 0;                  // stages finished
  std::optional<TensorFile> resume_from_;  // state of the stage under way
  EpochSums epoch_;
  mpi::ErrorFeedbackPlace error_feedback_place_;
  StageCheckpoints checkpoints_;
  std::uint64_t dense_sent_ = 0;  // largest number of bytes in a step of the stage
};

// ", validation 83.00% (82.10% without mirror images)", or "" without validation images.
std::string validation_text(const StageSummary& summary);
// null in the second case.
nlohmann::json to_json(const std::optional<double>& accuracy);
// Objects of seconds by phase.
nlohmann::json to_json(const PhaseTimes& times);
PhaseTimes times_of(const nlohmann::json& json);

}  // namespace bitloom::layerwise
