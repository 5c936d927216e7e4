// The run behind train(): what stays between its steps. Private to trainer.cpp (the loop), run_files.cpp (folder, stages that
// were trained before), run_checkpoint.cpp (state that a run goes on from), run_inputs.cpp (cached or recomputed outputs of
// frozen layers), run_memory.cpp (where what workers keep lies), run_exchange.cpp (messages of an epoch, against what was
// planned) and run_report.cpp (what else a run tells and leaves).
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/metrics.h"
#include "core/progress_file.h"
#include "layerwise/cache.h"
#include "layerwise/phase_times.h"
#include "layerwise/trainer.h"
#include "run/checkpoints.h"
#include "run/folder.h"

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
  void open_cache();
  void store_stage();
  std::string history_text(std::size_t s) const;
  bool trains_again(const std::string& layer, std::size_t s) const;
  void keep_states(const Stage& stage);
  void drop_states();
  void drop_states_of_other_zones(std::size_t s);
  std::vector<std::byte> stage_bytes(std::size_t s, const std::string& history) const;
  void keep_trained(std::size_t s);
  void read_checkpoint();
  TensorFile checkpoint_file(const Stage* stage, TensorFile of_stage);
  void write_checkpoint(Stage* stage);
  void begin_checkpoint(Stage& stage);
  void end_checkpoint(Stage& stage);
  void mark_progress(std::size_t step, bool now);
  bool reuse(std::size_t s);
  void train_stage(std::size_t s);
  void show_step(const Stage& stage);
  void report_epoch(const Stage& stage);
  nlohmann::json epoch_json() const;
  void read_epoch(const nlohmann::json& json);
  nlohmann::json report_exchange(const Stage& stage, const StepResult& epoch, std::string& text);
  void check_budget(const Stage& stage, const nlohmann::json& exchange);
  void check_plan(const Stage& stage, const nlohmann::json& exchange);
  void finish_stage(const Stage& stage);
  void report_stage(const StageSummary& summary);
  EvaluationWatch watch(std::size_t images_before = 0);
  void report_start();
  void validate(const std::vector<std::string>& members, StageSummary& summary);
  void finish_run();
  void check_frozen_option() const;
  bool plan_inputs(const Stage& stage);
  std::string inputs_key(const Stage& stage) const;
  void place_inputs(Stage& stage);
  void share_inputs(Stage& stage, RecordFile* records);
  nlohmann::json report_inputs(const Stage& stage);
  std::unique_ptr<Stage> make_stage(std::size_t s);
  void place_error_feedback();
  void tell_error_feedback(const mpi::SparseExchange& exchange);
  void save_trained(TensorFile& file) const;
  void load_stage(const TensorFile& file, std::size_t s);
  void drop_outdated_heads(std::size_t s);
  Classifier classifier(const std::vector<std::string>& members, const Views& views, const Stage* stage) const;
  // Whether a second run with the same options may give another net.
  bool depends_on_time() const { return options_.train.sparse && options_.train.exchange.tree.quorum < 1; }
  double elapsed() const { return earlier_seconds_ + seconds_since(start_); }
  template <typename F>
  void on_root(F&& f) {
    run::on_root(comm_, std::forward<F>(f));
  }

  const simd::Kernels& kernels_;
  mpi::Comm& comm_;
  const RunOptions& options_;
  const data::DataSplits& data_;
  ProgressSink& progress_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<Cache> cache_;
  std::string data_hash_;                // of the training images
  std::string soft_labels_hash_;         // empty without soft labels
  std::vector<std::byte> encoder_file_;  // at rank 0, until it is written
  std::vector<Hash128> keys_;            // keys of the stages
  std::string identity_;                 // text that a checkpoint must agree with
  RunResult result_;
  WeightStates states_;                    // of weights that a later stage trains again, as an earlier one left them
  std::size_t stage_ = 0;                  // stages finished
  std::optional<TensorFile> resume_from_;  // state of the stage under way
  EpochSums epoch_;
  Clock::time_point start_ = Clock::now();
  double earlier_seconds_ = 0;
  ProgressFile progress_file_{options_.folder, options_.start, options_.mark_seconds};
  mpi::ErrorFeedbackPlace error_feedback_place_;
  std::size_t told_of_checkpoint_ = 0;                // 1 + the last stage of which the first was told
  std::optional<run::CheckpointWriter> checkpoints_;  // at rank 0
  // At rank 0: one that other ranks still send parts of; when it began, and how long training waited for it.
  std::optional<TensorFile> unfinished_;
  Clock::time_point unfinished_since_;
  double checkpoint_wait_ = 0;
  double checkpoint_spacing_ = 0;        // seconds between two, at least
  std::exception_ptr checkpoint_error_;  // error that ends the run: the other ranks learn of it with the next step
  bool inputs_error_told_ = false;
  std::uint64_t dense_sent_ = 0;  // largest number of bytes in a step of the stage
};

// The name of a layer's WeightStates in files.
inline std::string states_name(const std::string& layer) { return layer + ".states"; }

// In the metadata of a stage's blob: its StageHistory.
inline constexpr const char* history_key = "bitloom.history";

// ", validation 83.00% (82.10% without mirror images)", or "" without validation images.
std::string validation_text(const StageSummary& summary);
// null in the second case.
nlohmann::json to_json(const std::optional<double>& accuracy);
// Objects of seconds by phase.
nlohmann::json to_json(const PhaseTimes& times);
PhaseTimes times_of(const nlohmann::json& json);

}  // namespace bitloom::layerwise
