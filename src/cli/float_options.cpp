#include "cli/float_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/device.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/signals.h"
#include "cli/start_up.h"
#include "core/error.h"
#include "core/file.h"
#include "core/metrics.h"
#include "core/text.h"
#include "launch/supervisor.h"
#include "nn/measure.h"
#include "plan/float_plan.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

}  // namespace

void FloatSettings::declare_seed(Options& options) {
  options.count("seed", seed, 0, any_count, "Seed of all random numbers of the training");
}

void FloatSettings::declare_folder(Options& options) {
  options.transient(true);
  options.text("out", out, "FOLDER", "Run folder, for model, checkpoints, metrics and log; without it: runs/NET-DATE-TIME");
  options.flag("resume", resume,
               "Continuation of the run in --out; only options that say how processes divide the net, --log-events, "
               "--watchdog-seconds and --notice-command are to be repeated");
  options.text("config", config_file, "FILE",
               "File with options, a line `name = value` each, comments after #; the command line overrides it");
  options.transient(false);
  options.text("init", init, "MODEL", "Model of the same sizes whose parameters the training begins with");
}

void FloatSettings::declare_engine(Options& options) {
  declare_device(options, device);
  options.text("backend", backend, "NAME",
               fmt::format("Implementation that computes: {}; \"\": the device's own", fmt::join(nn::backends(), ", ")));
}

void FloatSettings::declare_run_rest(Options& options) {
  options.choice("keep", keep, {"best", "last"}, "Model that is kept: of the best evaluation or of the last step");
  options.count("log-every", log_every, 1, any_count, "Steps that a line of metrics.jsonl sums up");
  options.number("checkpoint-seconds", checkpoint_seconds, 0, 1e9, "Seconds between checkpoints");
  options.transient(true);
  declare_watchdog(options, watchdog_seconds);
  options.text("notice-command", notice_command, "COMMAND", notice_command_help);
  options.group("For tests");
  options.text("hold", hold, "FILE", "File that holds a run back before a step that is not below the number in it");
  options.number("pace", pace, 0, 1e6, "Smallest time in seconds that a step takes, as on a slower machine; 0 disables it");
}

DType FloatSettings::dtype() const { return dtype_named(values); }

std::optional<std::size_t> FloatSettings::micro_batch_of(std::size_t share) const {
  if (micro_batch == "auto") return std::nullopt;
  const auto number = parse_int(micro_batch);
  if (!number || *number < 1 || share % static_cast<std::size_t>(*number) != 0) {
    fail(ErrorKind::usage, "--micro-batch: '{}'; expected auto or a divisor of {}, {}", micro_batch,
         share == batch ? "the batch" : "a process's share of the batch", share);
  }
  return static_cast<std::size_t>(*number);
}

train::RunOptions FloatSettings::run_options(const Options& options) const {
  train::RunOptions run;
  run.folder = out;
  run.resume = resume;
  run.evaluate_every = evaluate_every;
  run.log_every = log_every;
  run.checkpoint_seconds = checkpoint_seconds;
  run.keep_best = keep == "best";
  run.files = {{options_file, options.to_ini()}};
  if (const char* name = std::getenv(launch::supervised_variable); name != nullptr) run.process_name = name;
  run.hold = hold;
  run.pace_seconds = pace;
  run.stop = [] { return stop_requested(); };
  return run;
}

void FloatSettings::check_evaluation(const Options& options, bool has_validation) const {
  if (has_validation) return;
  if (keep == "best" && options.is_chosen("keep")) {
    fail(ErrorKind::usage, "--keep: best has no effect without validation data to evaluate on; expected last, or --validation");
  }
  for (const char* option : {"evaluate-every", "evaluate-sequences"}) {
    if (!options.asks_for_other(option, "validation")) continue;
    fail(ErrorKind::usage, "--{}: {} has no effect without validation data to evaluate on; expected --validation", option,
         options.raw(option));
  }
}

void declare_activation_bits(Options& options, std::size_t& bits, std::string& quantiser) {
  options.count("activation-bits", bits, 0, 4,
                "Bits kept of every activation's input for the backward pass (see `bitloom fewbit`); 0: all 32 or 16");
  static const std::vector<Options::Need> needs{{"activation-quantiser", "activation-bits", {"!0"}}};
  options.needs(needs);
  options.choice(
      "activation-quantiser", quantiser, nn::quantiser_names(),
      "Meaning of these bits: few-bit, a table of the derivative (Novikov et al. 2022); act-nn, the input itself, rounded at "
      "random in groups of 256 (Chen et al. 2021), to compare");
}

void add_quantiser(nn::Quantiser quantiser, nlohmann::json& identity) {
  if (quantiser == nn::Quantiser::act_nn) identity["activation_quantiser"] = "act-nn";
}

void declare_compress_format(Options& options, std::string& format) {
  options.choice("compress-format", format, train::float_format_names(),
                 "Numbers of such factors in messages: f32, or 1-6-9, which takes half the bytes");
}

void declare_compress_errors(Options& options, std::string& format) {
  options.choice(
      "compress-errors", format, train::float_format_names(),
      "Numbers of the buffers that keep what such factors leave out (error feedback): f32, or 1-6-9, in half the memory");
}

void declare_compress_start(Options& options, std::string& start) {
  options.choice("compress-start", start, {"auto", "fixed", "warm"},
                 "Matrix that such factors are formed by: fixed, a random one, the same in every step; warm, the factor of the "
                 "step before (Vogels et al. 2019), without shards, also later; auto, warm where that can be");
}

bool is_warm_start(const std::string& start, const std::string& shard, std::size_t shard_ranks) {
  return start == "warm" || (start == "auto" && train::can_start_warm(train::shard_level_named(shard), shard_ranks));
}

void declare_recompute(Options& options, std::string& recompute) {
  options.choice("recompute", recompute, plan::recompute_names(),
                 "Recomputation in the backward pass; block, stage: only the input of every block, or of every stage, is kept: "
                 "less memory, a third more work");
}

void DeepNetSettings::declare(Options& options) {
  options.choice("feed-forward-init", feed_forward_init, {"usual", "layers"},
                 "Initial weights of the feed-forward parts; usual: of deviation 0.02, the second divided by sqrt(2 layers); "
                 "layers: both of 0.02 / layers, for nets so deep that training diverges");
  options.number("logit-clip", logit_clip, 0, 1e6,
                 "Magnitude beyond which the loss of training clips logits, so that they pass no gradient; 0 disables it");
}

void DeepNetSettings::check_init(const Options& options, const FloatSettings& settings) const {
  if (settings.resume || settings.init.empty() || !options.asks_for_other("feed-forward-init", "init")) return;
  fail(ErrorKind::usage,
       "--feed-forward-init: {} has no effect with --init, whose model has the weights; expected one of the two",
       feed_forward_init);
}

nlohmann::json DeepNetSettings::identity() const {
  nlohmann::json json = nlohmann::json::object();
  if (small_feed_forward()) json["feed_forward_init"] = feed_forward_init;
  if (logit_clip != 0) json["logit_clip"] = logit_clip;
  return json;
}

void declare_master_weights(Options& options, std::string& master_weights) {
  options.choice("master-weights", master_weights, {"f32", "none"},
                 "Type of master weights; none, with --dtype bf16: matrices of blocks are kept in bf16 alone and rounded "
                 "stochastically, 4 bytes less for each of their weights");
}

nn::MasterWeights master_weights_named(const std::string& name) {
  return name == "none" ? nn::MasterWeights::none : nn::MasterWeights::f32;
}

Json average_identity(double average) { return average > 0 ? Json(fmt::format("{} after a warm-up", average)) : Json(0.0); }

std::string memory_text(const plan::FloatMemory& memory) {
  const std::string gathered = memory.gathered == 0 ? "" : fmt::format(", {} gathered", format_bytes(memory.gathered));
  return fmt::format("{} parameters, {} gradients, {} optimiser, {} stash, {} on their way{}: {} in all",
                     format_bytes(memory.parameters), format_bytes(memory.gradients), format_bytes(memory.optimizer),
                     format_bytes(memory.stash), format_bytes(memory.activations), gathered, format_bytes(memory.total()));
}

std::size_t largest_micro_batch(const FloatSettings& settings, std::size_t share, std::uint64_t memory, const char* example,
                                const char* savers, const std::function<std::uint64_t(std::size_t)>& memory_of) {
  if (const auto given = settings.micro_batch_of(share)) return *given;
  for (std::size_t parts = 1; parts <= share; ++parts) {
    if (share % parts == 0 && memory_of(share / parts) <= memory) return share / parts;
  }
  fail(ErrorKind::usage, "--micro-batch: one {} takes {}, more than the {} there are; {}", example, format_bytes(memory_of(1)),
       format_bytes(memory), savers);
}

std::string steps_text(const FloatSettings& settings, std::uint64_t steps, const char* examples, std::size_t micro_batch,
                       int processes, std::uint64_t steps_per_epoch, const nn::Engine& engine, double peak) {
  const bool is_whole = micro_batch * static_cast<std::size_t>(processes) == settings.batch;
  return fmt::format("{} steps of {} {}{}{}, {:.4g} epochs, {}, backend {}, matmul peak {:.0f} GFLOP/s, run folder {}", steps,
                     settings.batch, examples, is_whole ? "" : fmt::format(" ({} at once)", micro_batch),
                     processes == 1 ? "" : fmt::format(" in {} processes", processes),
                     static_cast<double>(steps) / static_cast<double>(steps_per_epoch), settings.values, engine.backend_name(),
                     1e-9 * peak, settings.out);
}

void limit_memory(nn::Engine& engine, const FloatSettings& settings) {
  if (settings.memory != 0) engine.pool().set_limit(settings.memory + settings.memory / 50);
}

std::uint64_t memory_for(const FloatSettings& settings, const Threads& threads, nn::Device device) {
  const int on_host = std::max(1, threads.on_host / std::max(1, threads.per_rank));
  return settings.memory != 0 ? settings.memory : usable_memory(device, on_host);
}

double measured_peak(nn::Engine& engine, DType values, const mpi::Comm& comm) {
  constexpr double seconds = 0.3;
  // The matrices of the measurement are none of the training's, whose memory --memory limits.
  const std::uint64_t limit = engine.pool().limit();
  engine.pool().set_limit(0);
  const double peak = nn::measure_matmul(engine, values, seconds) * comm.size();
  engine.pool().set_limit(limit);
  engine.pool().reset_peaks();
  return peak;
}

void print_model_and_memory(Terminal& terminal, const std::string& folder, nn::Engine& engine, const train::RunResult& result) {
  const fs::path model = fs::path(folder) / model_file;
  terminal.print("  {:<22}{} ({})", "model", model.string(), format_bytes(fs::file_size(model)));
  const auto peak = [&](nn::Use use) { return format_bytes(engine.pool().count(use).peak); };
  terminal.print("  {:<22}{} of tensors: {} parameters, {} gradients, {} optimiser, {} stash", "peak memory",
                 format_bytes(result.memory_bytes), peak(nn::Use::parameters), peak(nn::Use::gradients),
                 peak(nn::Use::optimizer), peak(nn::Use::stash));
}

namespace {

// At rank 0: metrics of the run that goes on, if it has these steps and nothing else is asked of it.
std::optional<std::vector<Json>> finished_metrics(const Options& options, const FloatSettings& settings, std::uint64_t steps) {
  const fs::path folder = settings.out;
  if (!settings.resume || !fs::exists(folder / metrics_file) || !fs::exists(folder / model_file)) return std::nullopt;
  if (!asked_otherwise(options, read_text(folder / options_file)).empty()) return std::nullopt;
  std::vector<Json> metrics = read_metrics(folder / metrics_file);
  const Json result = result_of(metrics);
  if (!result.is_object() || !result.contains("steps") || !result["steps"].is_number()) return std::nullopt;
  if (!(result["steps"].get<double>() >= static_cast<double>(steps))) return std::nullopt;
  return metrics;
}

}  // namespace

bool is_finished(Session& session, const Options& options, const FloatSettings& settings, std::uint64_t steps,
                 const std::string& more) {
  std::string said;
  session.on_root([&] {
    const auto metrics = finished_metrics(options, settings, steps);
    if (!metrics || is_untested(*metrics)) return;
    const Json result = result_of(*metrics);
    said = fmt::format("the run in {} is finished: it has its {} steps", settings.out, result["steps"].get<double>());
    if (const Json loss = result.value("validation_loss", Json()); loss.is_number()) {
      said += fmt::format("; validation loss {:.4f}", loss.get<double>());
    }
    said += fmt::format("; more of them need a larger {}", more);
  });
  said = session.comm.broadcast_text(said);
  if (!said.empty()) session.terminal.print("{}", said);
  return !said.empty();
}

bool is_left_untested(Session& session, const Options& options, const FloatSettings& settings, std::uint64_t steps) {
  bool is_left = false;
  session.on_root([&] {
    const auto metrics = finished_metrics(options, settings, steps);
    is_left = metrics && is_untested(*metrics);
  });
  return session.comm.flag_any(is_left);
}

}  // namespace bitloom::cli
