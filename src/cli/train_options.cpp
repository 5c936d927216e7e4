#include "cli/train_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/field_names.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/start_up.h"
#include "core/error.h"
#include "core/file.h"
#include "core/suggest.h"
#include "core/text.h"
#include "data/augment.h"
#include "layerwise/rules.h"
#include "models/binary/named_nets.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

// Options that have no effect without another.
const std::vector<Options::Need>& needs_table() {
  static const std::vector<Options::Need> table{{"spread", "search", {}},
                                                {"search-rounds", "search", {}},
                                                {"cache-limit", "cache", {"!none"}},
                                                {"learning-rate", "rule", {"accumulate"}},
                                                {"muon-momentum", "rule", {"accumulate"}},
                                                {"flips-per-update", "rule", {"accumulate"}},
                                                {"momentum", "rule", {"topk"}},
                                                {"flip-share", "rule", {"topk"}},
                                                {"flip-rate", "rule", {"stochastic"}},
                                                {"active-share", "signal", {"window"}},
                                                {"final-active-share", "signal", {"window"}},
                                                {"initial-window", "signal", {"window"}},
                                                {"largest-window", "signal", {"window"}},
                                                {"threshold", "exchange", {"sparse"}},
                                                {"bytes-per-update", "exchange", {"sparse"}},
                                                {"compression", "exchange", {"sparse"}},
                                                {"last-messages", "exchange", {"sparse"}},
                                                {"last-messages", "compression", {}},
                                                {"head-threshold-scale", "exchange", {"sparse"}},
                                                {"bias-threshold-scale", "exchange", {"sparse"}},
                                                {"value-bits", "exchange", {"sparse"}},
                                                {"residuals", "exchange", {"sparse"}},
                                                {"residual-memory", "exchange", {"sparse"}},
                                                {"statistics-every", "exchange", {"sparse"}},
                                                {"staleness", "exchange", {"sparse"}},
                                                {"quorum", "exchange", {"sparse"}},
                                                {"deadline", "quorum", {}},
                                                {"late", "quorum", {}},
                                                {"tree", "exchange", {"sparse"}},
                                                // 0: whole sums, of which nothing is left out or kept
                                                {"value-bits", "threshold", {"!0"}},
                                                {"residuals", "threshold", {"!0"}},
                                                {"residual-memory", "threshold", {"!0"}},
                                                {"statistics-every", "threshold", {"!0"}},
                                                {"head-threshold-scale", "threshold", {"!0"}},
                                                {"bias-threshold-scale", "threshold", {"!0"}}};
  return table;
}

// Options of earlier versions.
constexpr auto former_options = std::to_array<Options::Former>({{"head-urgency", "head-threshold-scale", "", ""},
                                                                {"threshold-urgency", "bias-threshold-scale", "", ""},
                                                                {"code-target", "", "0.1.0 of 2026-11-24", "2"},
                                                                {"flip-threshold", "", "0.1.0 of 2026-11-27", "0.05"}});

// Runs that plans are for have it.
constexpr auto only_value_of_plans = std::to_array<Options::Former>({{"exchange", "", "", "sparse"}});

constexpr std::size_t default_workers = 64;  // with sparse messages
std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const layerwise::UpdateRule& rule : layerwise::update_rules()) names.emplace_back(rule.name);
  return names;
}

void declare_net(Options& options, TrainSettings& settings) {
  options.text("net", settings.net, "NAME|FILE",
               fmt::format("Net: {}, or a net file", fmt::join(models::binary_net_names(), ", ")));
  options.list(
      "set", settings.changes, "KEY=VALUE",
      "Change of one value of the net: LAYER.width, STAGE.epochs, STAGE.smallest_offset (as any real-valued option below, "
      "for one stage), encoder.filters, head.grid, net.shift, ...");
}

void declare_run(Options& options, TrainSettings& settings) {
  layerwise::RunOptions& run = settings.run;
  options.group("Run");
  declare_net(options, settings);
  options.transient(true);
  options.text("out", settings.out, "FOLDER",
               "Run folder, for model, checkpoints, metrics and log; without it: runs/NET-DATE-TIME");
  options.flag("resume", settings.resume,
               "Continuation of the run in --out; only --tree, --batch-per-rank, --plan, --watchdog-seconds and "
               "--notice-command are to be repeated");
  options.text("config", settings.config, "FILE",
               "File with options, a line `name = value` each, comments after #; the command line overrides it");
  options.transient(false);
  settings.declare_search(options);
  options.transient(true);
  options.text(
      "plan", settings.plan, "FILE",
      "Plan that `bitloom plan --json FILE` wrote for these options: the run ends when its messages have other lengths");
  options.transient(false);
  options.number("checkpoint-seconds", run.checkpoint_seconds, 0, 1e9, "Seconds between checkpoints");
  options.transient(true);
  declare_watchdog(options, settings.watchdog_seconds);
  options.text("notice-command", settings.notice_command, "COMMAND", notice_command_help);
  options.transient(false);
  options.text("cache", settings.cache, "FOLDER",
               "Folder that keeps trained stages and outputs of frozen layers for later runs; none: no cache; auto: the user's "
               "cache folder (see `bitloom info`)");
  options.bytes("cache-limit", run.cache_limit, "Largest size of the cache");
  options.bytes("residual-memory", run.residual_memory,
                "Memory of a process for the error feedback of its workers, with sparse messages; the rest lies in a file in "
                "the cache's folder and gives the same bits; 0: half of the host's free memory");
  options.choice("frozen", run.frozen, {"auto", "cache", "recompute"},
                 "Source of the outputs of encoder and frozen layers: cache (in bits, shared by runs over the same layers), "
                 "recompute, or auto, the faster one as measured at the start of a stage; all give the same net");
}

void declare_reals(Options& options, layerwise::TrainOptions& train, std::string_view group) {
  for (const layerwise::RealOption& real : layerwise::real_options()) {
    if (real.group != group) continue;
    options.number(option_of_field(real.name).substr(2), real.of(train), real.low, real.high, real.description, real.open);
  }
}

void declare_training(Options& options, TrainSettings& settings) {
  layerwise::RunOptions& run = settings.run;
  layerwise::TrainOptions& train = run.train;
  options.group("Training");
  options.count("epochs", settings.epochs, 0, 100000, "Passes over the training set per stage; 0: as the net says");
  options.count("batch", train.batch, 1, 1000000, "Images per update, over all processes");
  options.transient(true);
  options.count("batch-per-rank", settings.batch_per_rank, 0, 1000000,
                "Images per update and process, instead of --batch; 0 disables it");
  options.transient(false);
  options.count("seed", train.seed, 0, any_count, "Seed of all random numbers of the training");
  options.text(
      "augment", settings.augment, "LIST",
      "Augmentation of training images: none, or a list of crop[N], flip or alternating (flips in every second epoch), "
      "contrastN, brightnessN, colourN, cutout[N] (N in pixels, per cent or grey levels); none suits digits, which flips "
      "spoil");
  options.count("augment-copies", train.augment_copies, 0, 1000000,
                "Number of fixed augmented copies of each training image, used in turn, one per epoch, so that --frozen can "
                "cache; 0: a fresh one in every epoch, which generalises best");
  options.count("repeat", train.repeat, 1, 1000,
                "Updates in a row on the same minibatch; where few channels change between them (--rule greedy or topk), only "
                "those are computed again");
  options.choice("signal", train.signal, {"window", "exact"},
                 "Learning signal of weights: window (first-order gradient through a surrogate-gradient window, in bits; fast) "
                 "or exact (loss change of every single flip)");
  declare_reals(options, train, "Training");
  options.count("warmup-steps", train.warmup_steps, 0, any_count,
                "Steps at the start of a stage in which only its head learns, at most a tenth of the stage; 0 disables them");
  options.count("head-warmup-steps", train.head_warmup_steps, 0, any_count,
                "Steps at the start of a stage in which the learning rate of heads rises, at most a fifth of the stage; 0 "
                "disables the warm-up");
}

void declare_layers(Options& options, TrainSettings& settings) {
  layerwise::RuleOptions& rule = settings.run.train.layer.rule;
  options.group("Binary weights");
  std::vector<std::string> rules;
  for (const layerwise::UpdateRule& each : layerwise::update_rules()) {
    rules.push_back(fmt::format("{} ({})", each.name, each.description));
  }
  options.choice("rule", rule.name, rule_names(), fmt::format("Update rule of weights: {}", fmt::join(rules, "; ")));
  declare_reals(options, settings.run.train, "Binary weights");
  options.flag("freeze-weights", settings.freeze_weights,
               "Control experiment: binary weights stay random, thresholds and heads learn");
  options.group("Thresholds");
  declare_reals(options, settings.run.train, "Thresholds");
}

void declare_lateness(Options& options, TrainSettings& settings) {
  mpi::TreeOptions& tree = settings.run.train.exchange.tree;
  options.number(
      "quorum", tree.quorum, 0, 1,
      "Smallest share of the workers that makes an update after --deadline; below 1, results depend on the time that "
      "things take");
  options.number("deadline", tree.deadline_seconds, 0, 1e6,
                 "Seconds that rank 0, when its own workers are done, waits for all others (with --quorum)");
  options.choice(
      "late", settings.late, {"fold", "drop"},
      "Use of messages that come too late (with --quorum): fold (in the next update; statistics in the next that has "
      "some; what waits for it when a run stops is lost) or drop");
}

// runs: not for a plan, which is of sparse messages and waits for all workers.
void declare_exchange(Options& options, TrainSettings& settings, bool runs) {
  mpi::ExchangeOptions& exchange = settings.run.train.exchange;
  options.group("Exchange between workers");
  if (runs) {
    options.choice("exchange", settings.exchange, {"dense", "sparse"},
                   "Messages between workers: dense (whole sums, the same net on any number of processes) or sparse (large "
                   "gradients alone, in small messages). Options below are for sparse messages, except "
                   "--workers");
  }
  options.count("workers", settings.workers, 0, 1000000,
                "Number of logical workers that share the images, on any number of processes; 0: 64 with sparse messages (at "
                "most --batch), otherwise 1");
  options.number("threshold", exchange.threshold, 0, 10000,
                 "Smallest gradient that a worker sends, in root mean squares of its gradients; 0: all are sent, which gives "
                 "the dense result");
  options.bytes("bytes-per-update", exchange.bytes_per_update,
                "Mean bytes that a worker sends, and receives, in an update, from which the threshold follows; 0 disables it");
  options.number("compression", exchange.compression, 0, 1e6,
                 "Ratio of f32 gradients of what a stage trains to the bytes of a message, 300 for example, from which the "
                 "threshold follows; 0 disables it");
  options.number("last-messages", exchange.last_messages, 0, 1,
                 "Length of a stage's last messages with --compression, in mean lengths; the first have 2 minus that, for most "
                 "weights flip at the start; 1: all have the same");
  declare_reals(options, settings.run.train, "Exchange between workers");
  options.choice(
      "value-bits", settings.value_bits, {"1", "4", "8", "16", "all"},
      "Bits of a gradient in a message: 1 (its sign), the bits of values up to four thresholds, or all; larger values "
      "have longer codes");
  options.choice(
      "residuals", settings.residuals, {"exact", "sum", "none"},
      "Error feedback, which sends later what was not sent, of statistics too: exact (a restart changes nothing), sum "
      "(checkpoints hold its sum over workers, which is small) or none");
  options.count(
      "statistics-every", exchange.statistics_every, 0, 1000000,
      "Updates between messages with the statistics from which thresholds and surrogate-gradient windows follow, "
      "summed up (with --residuals none: of one update alone); 0: 8, or as many more as leave three quarters of short "
      "messages to gradients");
  options.count(
      "flips-per-update", settings.run.train.layer.flip_limit, 0, any_count,
      "Largest number of flips of a layer in an update, the surest first (for --rule accumulate and binary layers); 0 "
      "disables the limit");
  options.count("staleness", exchange.staleness, 0, 64,
                "Updates that workers compute before they need the server reply to one: messages travel meanwhile, and weights "
                "are that many updates old; 0: none");
  if (runs) declare_lateness(options, settings);
  options.transient(true);
  options.count("tree", settings.fan_in, 1, 1000000,
                "Largest number of processes below each one in the tree that merges messages");
  options.transient(false);
}

}  // namespace

TrainSettings::TrainSettings() {
  run.cache_limit = std::uint64_t{8} << 30;
  run.train.exchange.threshold = 3;
  run.train.teacher_share = 0.7;
}

void TrainSettings::declare(Options& options) {
  options.everyday({"net",
                    "set",
                    "out",
                    "resume",
                    "config",
                    "search",
                    "cache",
                    "checkpoint-seconds",
                    "data",
                    "validation",
                    "max-train",
                    "image-size",
                    "epochs",
                    "batch",
                    "seed",
                    "augment",
                    "augment-copies",
                    "teacher",
                    "signal",
                    "rule",
                    "learning-rate",
                    "head-learning-rate",
                    "freeze-weights",
                    "exchange",
                    "workers",
                    "bytes-per-update",
                    "compression",
                    "statistics-every"});
  options.needs(needs_table());
  options.former(former_options);
  declare_run(options, *this);
  options.group("Data");
  data.declare(options);
  declare_training(options, *this);
  teacher.declare(options, "heads' targets");
  declare_reals(options, run.train, "Teacher");
  declare_layers(options, *this);
  declare_exchange(options, *this, true);
  options.group("For tests");
  options.transient(true);
  options.number(
      "pace", run.pace_seconds, 0, 1e6,
      "Smallest time in seconds that this process takes to compute an update, as on a slower machine; 0 disables it");
  options.count("stop-after-steps", run.stop_after_steps, 0, any_count,
                "Steps after which the run stops, resumable; 0 disables it");
  options.text("hold", run.hold, "FILE", "File that holds a run back before a step that is not below the number in it");
}

std::map<std::string, layerwise::PlannedBytes> TrainSettings::planned(const std::string& text) const {
  std::map<std::string, layerwise::PlannedBytes> planned;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  try {
    for (const nlohmann::json& stage : json.at("stages")) {
      const nlohmann::json& bytes = stage.at("expected_bytes");
      const auto sparse = [&](const char* way) -> layerwise::PlannedBytes::Sparse {
        return {bytes.at(way).at("bytes"), bytes.at(way).at("tolerance"), bytes.at(way).at("follows_budget")};
      };
      planned[stage.at("stage")] = {sparse("up"), sparse("down"), bytes.at("dense")};
    }
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::usage, "--plan: {} is not what `bitloom plan --json` writes", plan);
  }
  return planned;
}

void TrainSettings::declare_for_plan(Options& options) {
  exchange = "sparse";
  run.train.teacher_share = 0;  // messages do not depend on what heads learn
  options.needs(needs_table());
  options.former(former_options);
  options.former(only_value_of_plans);
  options.group("Net and data");
  declare_net(options, *this);
  data.declare(options);
  declare_training(options, *this);
  declare_layers(options, *this);
  declare_exchange(options, *this, false);
}

bool TrainSettings::counts_per_rank(const Options& options) const {
  // The nearer to the command line, the stronger. A run that goes on keeps its batch, however many ranks it has now.
  return batch_per_rank != 0 && options.source("batch-per-rank") < options.source("batch") &&
         options.source("batch") != Options::Source::run;
}

std::size_t TrainSettings::chosen_workers() const {
  return workers != 0 ? workers : std::min(default_workers, run.train.batch);
}

int TrainSettings::most_crop_padding(std::span<const layerwise::Variant> nets) const {
  int most = run.train.augment.crop_padding;
  const auto add = [&](const layerwise::NetSpec& spec) {
    for (const layerwise::StageSpec& stage : spec.stages) {
      if (!stage.augment.empty()) most = std::max(most, data::parse_augment(stage.augment).crop_padding);
    }
  };
  add(run.net);
  for (const layerwise::Variant& variant : nets) add(variant.net);
  return most;
}

std::size_t TrainSettings::most_ranks(const Options& options) const {
  const bool has_batch = !counts_per_rank(options);
  if (exchange == "sparse") return has_batch || workers != 0 ? chosen_workers() : default_workers;
  return has_batch ? run.train.batch : std::numeric_limits<std::size_t>::max();
}

void TrainSettings::resolve(const Options& options, std::size_t ranks) {
  if (options.source("batch") == options.source("batch-per-rank") && options.source("batch") != Options::Source::none) {
    fail(ErrorKind::usage, "--batch and --batch-per-rank exclude each other");
  }
  if (counts_per_rank(options)) run.train.batch = batch_per_rank * ranks;
  layerwise::TrainOptions& train = run.train;
  train.sparse = exchange == "sparse";
  train.workers = train.sparse || workers != 0 ? chosen_workers() : 1;
  train.exchange.value_bits = value_bits == "all" ? 0 : static_cast<unsigned>(std::stoul(value_bits));
  train.exchange.error_feedback = residuals == "exact" ? mpi::ErrorFeedback::exact
                                  : residuals == "sum" ? mpi::ErrorFeedback::sum
                                                       : mpi::ErrorFeedback::none;
  if (train.exchange.has_budget() && options.source("threshold") == Options::Source::command_line) {
    fail(ErrorKind::usage, "--threshold: {}; with --bytes-per-update or --compression it follows from these",
         train.exchange.threshold);
  }
  train.exchange.tree.fan_in = static_cast<int>(fan_in);
  train.exchange.tree.late = late == "fold" ? mpi::Late::fold : mpi::Late::drop;
  run.train.augment = data::parse_augment(augment);
  run.train.layer.learn_weights = !freeze_weights;
  // Another working directory may go on.
  teacher.net = kept_path(teacher.net);
  run.resume = resume;
  run.needs_cache = cache != "auto" && cache != "none";
  if (cache == "auto") {
    try {
      run.cache = user_cache_folder() / "layers";
    } catch (const Error&) {
      run.cache.clear();  // a user without a home has no cache
    }
  } else if (run.needs_cache) {
    cache = kept_path(cache);
    run.cache = cache;
    data.image_store = (run.cache / "images").string();
  } else {
    data.image_store.clear();
  }
  data.image_store_limit = run.cache_limit;
  if (data.spec.empty()) fail(ErrorKind::usage, "--data: missing; expected synth, a folder, or KIND:FOLDER");
  data.spec = absolute_spec(data.spec);
  run.data_name = data.spec;
}

layerwise::NetSpec TrainSettings::make_net() const {
  layerwise::NetSpec spec = models::find_binary_net(net);
  for (const std::string& change : changes) {
    const auto [key, value] = split_setting("--set", change);
    try {
      spec = layerwise::with_setting(spec, key, value);
    } catch (const Error& error) {
      fail(ErrorKind::usage, "--set: {}", error.what());
    }
  }
  if (epochs != 0) {
    for (layerwise::StageSpec& stage : spec.stages) stage.epochs = epochs;
  }
  return spec;
}

}  // namespace bitloom::cli
