// The run behind train(): what stays between its steps. Private to trainer.cpp (the loop), run_files.cpp (folder, checkpoints,
// reuse), run_inputs.cpp (cached or recomputed outputs of frozen layers) and run_report.cpp (what a run tells and leaves).
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/metrics.h"
#include "core/progress_file.h"
#include "layerwise/cache.h"
#include "layerwise/phase_times.h"
#include "layerwise/trainer.h"

namespace bitloom::layerwise {

inline constexpr const char* checkpoint_name = "checkpoint.safetensors";
inline constexpr const char* previous_name = "checkpoint.previous.safetensors";
inline constexpr const char* model_name = "model.safetensors";
inline constexpr const char* encoder_name = "encoder.safetensors";

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
  void lock_folder();
  void claim_folder();
  void open_folder();
  void open_cache();
  void store_stage();
  std::vector<std::byte> stage_bytes(std::size_t s) const;
  void read_checkpoint();
  void write_checkpoint(Stage* stage, bool wait);
  void finish_writing();
  bool is_writing() const;
  void mark_progress(std::size_t step, bool now);
  bool reuse(std::size_t s);
  void train_stage(std::size_t s);
  void report_epoch(const Stage& stage, const StepResult& epoch, std::size_t steps, double seconds);
  nlohmann::json report_exchange(const Stage& stage, const StepResult& epoch, std::string& text);
  void check_budget(const Stage& stage, const nlohmann::json& exchange);
  void check_plan(const Stage& stage, const nlohmann::json& exchange);
  void finish_stage(const Stage& stage);
  void report_stage(const StageSummary& summary);
  std::optional<double> validate(const std::vector<std::string>& voters);
  void finish_run();
  void check_frozen_option() const;
  bool plan_inputs(const Stage& stage);
  std::string inputs_key(const Stage& stage) const;
  void place_inputs(Stage& stage);
  void share_inputs(Stage& stage, RecordFile* records);
  nlohmann::json report_inputs(const Stage& stage);
  std::unique_ptr<Stage> make_stage(std::size_t s);
  void save_trained(TensorFile& file) const;
  void load_stage(const TensorFile& file, std::size_t s);
  void drop_outdated_heads(std::size_t s);
  Classifier classifier(const std::vector<std::string>& voters, const Views& views, const Stage* stage) const;
  // Whether a second run with the same options may give another net.
  bool depends_on_time() const { return options_.train.sparse && options_.train.exchange.tree.quorum < 1; }
  double elapsed() const { return earlier_seconds_ + seconds_since(start_); }
  template <typename F>
  void on_root(F&& f) {
    comm_.together([&] {
      if (comm_.is_root()) f();
    });
  }

  const simd::Kernels& kernels_;
  mpi::Comm& comm_;
  const RunOptions& options_;
  const data::DataSplits& data_;
  ProgressSink& progress_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<Cache> cache_;
  std::string data_hash_;
  std::vector<std::byte> encoder_file_;  // at rank 0, until it is written
  std::vector<Hash128> keys_;            // of the stages
  std::string run_key_;                  // of all that a checkpoint must agree with
  RunResult result_;
  std::size_t stage_ = 0;                  // stages finished
  std::optional<TensorFile> resume_from_;  // state of the stage under way
  Clock::time_point start_ = Clock::now();
  double earlier_seconds_ = 0;
  ProgressFile progress_file_{options_.folder, options_.start};
  std::future<void> writing_;  // of a checkpoint
  bool inputs_error_told_ = false;
  std::uint64_t dense_sent_ = 0;  // in a step of the stage, at most
};

// Of a stage with this key, for its random streams.
std::uint64_t id_of(const Hash128& key);

// ", validation 83.00%", or "" without validation images.
std::string validation_text(const std::optional<double>& accuracy);
// null in the second case.
nlohmann::json to_json(const std::optional<double>& accuracy);

}  // namespace bitloom::layerwise
