// Options that all commands share which train float models, and what follows from them.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/system.h"
#include "nn/activation.h"
#include "nn/engine.h"
#include "plan/float_plan.h"
#include "train/run.h"

namespace bitloom::cli {

struct FloatSettings {
  std::size_t batch = 0;
  std::string micro_batch = "auto";
  std::uint64_t memory = 0;  // for auto; 0: what is available
  std::string values = "f32";
  std::size_t seed = 1;
  std::string out;
  bool resume = false;
  std::string config_file;
  std::string init;  // a model to begin with
  std::string device = "cpu", backend;
  std::size_t evaluate_every = 0;
  std::size_t log_every = 10;
  std::string keep;
  double checkpoint_seconds = 300;
  double watchdog_seconds = mpi::Settings{}.watchdog_seconds;
  std::string notice_command;
  std::string hold;
  double pace = 0;

  void declare_seed(Options& options);
  // Where the run goes and how it goes on.
  void declare_folder(Options& options);
  // Where and how it computes, evaluates and writes.
  void declare_engine(Options& options);
  void declare_run_rest(Options& options);  // after the options on evaluation

  DType dtype() const;
  // A number of examples that --micro-batch names, a divisor of `share`; none for auto. Throws Error(usage).
  std::optional<std::size_t> micro_batch_of(std::size_t share) const;
  // Folder, resumption, and how often what is written.
  train::RunOptions run_options(const Options& options) const;
  // Throws Error(usage) where evaluations or their best model are asked for, and there is nothing to evaluate on.
  void check_evaluation(const Options& options, bool has_validation) const;
};

// Less memory for the backward pass and for the weights, each into its variable.
void declare_activation_bits(Options& options, std::size_t& bits, std::string& quantiser);
// Adds it to a run's identity, or to what metrics say of its start, where it is not as earlier versions had it.
void add_quantiser(nn::Quantiser quantiser, nlohmann::json& identity);
// --compress-format: of factors in messages (train::FloatFormat).
void declare_compress_format(Options& options, std::string& format);
// --compress-errors: of the error buffers beside them.
void declare_compress_errors(Options& options, std::string& format);
// --compress-start: whether the factors begin with the last step's (train::PowerSgdOptions::warm_start). shard, shard_ranks:
// those options.
void declare_compress_start(Options& options, std::string& start);
bool is_warm_start(const std::string& start, const std::string& shard, std::size_t shard_ranks);
void declare_recompute(Options& options, std::string& recompute);

// Settings that help nets with many layers (Huang et al. 2019, section 4).
struct DeepNetSettings {
  std::string feed_forward_init = "usual";
  double logit_clip = 0;
  void declare(Options& options);
  // Throws Error(usage) where a new run draws no weights, since it begins with those of --init.
  void check_init(const Options& options, const FloatSettings& settings) const;
  bool small_feed_forward() const { return feed_forward_init == "layers"; }
  // Those that are not as they are by default.
  nlohmann::json identity() const;
};

void declare_master_weights(Options& options, std::string& master_weights);
nn::MasterWeights master_weights_named(const std::string& name);

// How a run's identity has --average: earlier versions kept 0 and decays that were constant from the start as numbers. What
// they began to average does not go on as what this version averages.
nlohmann::json average_identity(double average);

// Memory of a planned process: each part, and all together.
std::string memory_text(const plan::FloatMemory& memory);

// The largest part of a share of the batch, or what --micro-batch says, whose predicted memory is at most `memory`. savers:
// what takes less. Throws Error(usage) where one `example` takes more.
std::size_t largest_micro_batch(const FloatSettings& settings, std::size_t share, std::uint64_t memory, const char* example,
                                const char* savers, const std::function<std::uint64_t(std::size_t)>& memory_of);
// "60 steps of 12 images (6 at once) in 2 processes, 15 epochs, f32, backend cpu, matmul peak 19 GFLOP/s, run folder runs/a".
// micro_batch: examples at once in each of the processes that share the batch. peak: operations per second.
std::string steps_text(const FloatSettings& settings, std::uint64_t steps, const char* examples, std::size_t micro_batch,
                       int processes, std::uint64_t steps_per_epoch, const nn::Engine& engine, double peak);

// Limits the engine to --memory, if it is given, and 2% more: so exact are plans.
void limit_memory(nn::Engine& engine, const FloatSettings& settings);
// The bytes that a process of the run may plan with: --memory or, without it, what is free.
std::uint64_t memory_for(const FloatSettings& settings, const Threads& threads, nn::Device device);

// Operations per second that products of matrices reach in all processes together; peaks of memory begin anew after it.
double measured_peak(nn::Engine& engine, DType values, const mpi::Comm& comm);

// Lines of the summary after a run: the model file in its folder, and the engine's peaks of memory.
void print_model_and_memory(Terminal& terminal, const std::string& folder, nn::Engine& engine, const train::RunResult& result);

// Whether the run in a folder that should go on to step `steps` has all its steps already, which is said with the option that
// asks for more of them. Other options are the trainer's to refuse.
bool is_finished(Session& session, const Options& options, const FloatSettings& settings, std::uint64_t steps,
                 const std::string& more);
// Whether it has them all, but not its test (is_untested()).
bool is_left_untested(Session& session, const Options& options, const FloatSettings& settings, std::uint64_t steps);

}  // namespace bitloom::cli
