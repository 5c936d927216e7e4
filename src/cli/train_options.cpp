#include "cli/train_options.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

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

// What has no effect without something else.
const std::vector<Options::Need>& needs_table() {
  static const std::vector<Options::Need> table{{"spread", "search", {}},
                                                {"cache-limit", "cache", {"!none"}},
                                                {"augment-copies", "augment", {"!none"}},
                                                {"learning-rate", "rule", {"accumulate", "momentum"}},
                                                {"flips-per-update", "rule", {"accumulate"}},
                                                {"momentum", "rule", {"topk", "bop"}},
                                                {"flip-share", "rule", {"topk"}},
                                                {"flip-threshold", "rule", {"bop"}},
                                                {"flip-rate", "rule", {"stochastic"}},
                                                {"threshold", "exchange", {"sparse"}},
                                                {"bytes-per-update", "exchange", {"sparse"}},
                                                {"compression", "exchange", {"sparse"}},
                                                {"last-messages", "exchange", {"sparse"}},
                                                {"last-messages", "compression", {}},
                                                {"head-urgency", "exchange", {"sparse"}},
                                                {"threshold-urgency", "exchange", {"sparse"}},
                                                {"value-bits", "exchange", {"sparse"}},
                                                {"residuals", "exchange", {"sparse"}},
                                                {"residual-memory", "exchange", {"sparse"}},
                                                {"statistics-every", "exchange", {"sparse"}},
                                                {"staleness", "exchange", {"sparse"}},
                                                {"quorum", "exchange", {"sparse"}},
                                                {"deadline", "quorum", {}},
                                                {"late", "quorum", {}},
                                                {"tree", "exchange", {"sparse"}}};
  return table;
}

constexpr std::size_t default_workers = 64;  // with sparse messages
constexpr std::size_t any_count = std::numeric_limits<std::int64_t>::max();

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const layerwise::UpdateRule& rule : layerwise::update_rules()) names.emplace_back(rule.name);
  return names;
}

// "layer2.width=512" at its '='.
std::pair<std::string, std::string> split_setting(const std::string& option, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    fail(ErrorKind::usage, "{}: '{}' is not KEY=VALUE, such as layer2.width=512", option, text);
  }
  return {std::string(trim(text.substr(0, equals))), std::string(trim(text.substr(equals + 1)))};
}

void declare_net(Options& options, TrainSettings& settings) {
  options.text("net", settings.net, "NAME|FILE",
               fmt::format("the net: {}, or a net file", fmt::join(models::binary_net_names(), ", ")));
  options.list(
      "set", settings.changes, "KEY=VALUE",
      "change a value of the net: LAYER.width, STAGE.epochs, STAGE.smallest_offset (for one stage, of the options below "
      "those that are real numbers), encoder.filters, head.grid, net.shift, ...");
}

void declare_run(Options& options, TrainSettings& settings) {
  layerwise::RunOptions& run = settings.run;
  options.group("Run");
  declare_net(options, settings);
  options.transient(true);
  options.text("out", settings.out, "FOLDER",
               "the run folder: model, checkpoints, metrics, log. Without it: runs/NET-DATE-TIME");
  options.flag("resume", settings.resume, "continue the run in --out; its net, data and options need not be repeated");
  options.text("config", settings.config, "FILE",
               "options from an INI file, a line `name = value` each; the command line overrides it");
  options.transient(false);
  options.list("search", settings.searches, "KEY=V1,V2,...",
               "train one net for every combination of values, in sub-folders of --out, and rank them by validation accuracy; "
               "trained layers that they share are taken from the cache");
  options.flag("spread", settings.spread,
               "with --search and several processes: these train what all nets share together, and then each its own nets");
  options.transient(true);
  options.text("plan", settings.plan, "FILE",
               "what `bitloom plan --json FILE` wrote for these options: the run ends when its messages have other lengths");
  options.number("checkpoint-seconds", run.checkpoint_seconds, 0, 1e9, "seconds between checkpoints");
  options.number("watchdog-seconds", settings.watchdog_seconds, 0, 1e9,
                 "how long a process waits for the others before it takes them for lost and ends the run (exit code 7); 0: for "
                 "ever");
  options.text(
      "notice-command", settings.notice_command, "COMMAND",
      "a shell command that every process runs again and again: when it ends with 0, this machine is about to be taken "
      "away, and the run stops at a checkpoint");
  options.transient(false);
  options.text("cache", settings.cache, "FOLDER",
               "where trained stages and the outputs of frozen layers are kept between runs; none: nowhere; auto: the "
               "user's cache folder (see `bitloom info`)");
  options.bytes("cache-limit", run.cache_limit, "how large the cache may become");
  options.bytes(
      "residual-memory", run.residual_memory,
      "sparse: for what workers of a process have not sent yet; what exceeds it lies in a file in the cache's folder, to "
      "the same bits; 0: half of the memory that is free on the host");
  options.choice(
      "frozen", run.frozen, {"auto", "cache", "recompute"},
      "the outputs of encoder and frozen layers: cache (in bits, shared by runs over the same layers), recompute, or "
      "auto, what takes less time as measured at the start of a stage; all give the same net");
}

void declare_reals(Options& options, layerwise::TrainOptions& train, std::string_view group) {
  for (const layerwise::RealOption& real : layerwise::real_options()) {
    if (real.group == group) options.number(real.name, real.of(train), real.low, real.high, real.description, real.open);
  }
}

void declare_training(Options& options, TrainSettings& settings) {
  layerwise::RunOptions& run = settings.run;
  layerwise::TrainOptions& train = run.train;
  options.group("Training");
  options.count("epochs", settings.epochs, 0, 100000, "passes over the training set in every stage; 0: as the net says");
  options.count("batch", train.batch, 1, 1000000, "images per update, over all processes");
  options.transient(true);
  options.count("batch-per-rank", settings.batch_per_rank, 0, 1000000,
                "images per update and process, instead of --batch; 0: not");
  options.transient(false);
  options.count("seed", train.seed, 0, any_count, "of everything random in training");
  options.text("augment", settings.augment, "LIST",
               "changes to training images: none or a list of crop[N], flip, contrastN, brightnessN, colourN, cutout[N] "
               "(N in pixels, per cent or grey levels); none suits digits, whose mirror images mean something else");
  options.count("augment-copies", train.augment_copies, 0, 1000000,
                "fixed augmented copies of each training image, used in turn, one per epoch, so that --frozen can cache; 0: a "
                "fresh one at every epoch, which generalises best");
  options.count("repeat", train.repeat, 1, 1000,
                "updates in a row on the same minibatch; where few channels change between them (--rule greedy or topk), only "
                "those are computed again");
  options.choice("signal", train.signal, {"window", "exact"},
                 "how weights learn: window (first order, in bits; fast) or exact (the loss change of every single flip)");
  declare_reals(options, train, "Training");
  options.count("warmup-steps", train.warmup_steps, 0, any_count,
                "steps at the start of a stage in which only its head learns; at most a tenth of the stage");
  options.count("head-warmup-steps", train.head_warmup_steps, 0, any_count,
                "steps at the start of a stage in which the heads' learning rate rises; at most a fifth of the stage");
}

void declare_layers(Options& options, TrainSettings& settings) {
  layerwise::RuleOptions& rule = settings.run.train.layer.rule;
  options.group("Binary weights");
  std::vector<std::string> rules;
  for (const layerwise::UpdateRule& each : layerwise::update_rules()) {
    rules.push_back(fmt::format("{} ({})", each.name, each.description));
  }
  options.choice("rule", rule.name, rule_names(), fmt::format("how gradients flip weights: {}", fmt::join(rules, "; ")));
  declare_reals(options, settings.run.train, "Binary weights");
  options.flag("freeze-weights", settings.freeze_weights,
               "leave the binary weights random; thresholds and heads learn (the control experiment)");
  options.group("Thresholds");
  declare_reals(options, settings.run.train, "Thresholds");
}

void declare_exchange(Options& options, TrainSettings& settings) {
  mpi::ExchangeOptions& exchange = settings.run.train.exchange;
  options.group("Exchange between workers");
  options.choice("exchange", settings.exchange, {"dense", "sparse"},
                 "what crosses the network: dense (whole sums, the same net on any number of processes) or sparse (only large "
                 "gradients, in small messages)");
  options.count("workers", settings.workers, 0, 1000000,
                "logical workers that share the images, however many processes carry them; 0: 64 with sparse messages (but no "
                "more than --batch), otherwise 1");
  options.number("threshold", exchange.threshold, 0, 10000,
                 "sparse: a worker sends gradients above so many root mean squares of its own; 0: all, which gives the dense "
                 "result");
  options.bytes("bytes-per-update", exchange.bytes_per_update,
                "sparse: instead of --threshold: what a worker sends and what it gets in an update, on average; 0: not");
  options.number("compression", exchange.compression, 0, 1e6,
                 "sparse: likewise, as so many times fewer bytes than f32 gradients of what a stage trains, 300 say; 0: not");
  options.number(
      "last-messages", exchange.last_messages, 0, 1,
      "sparse, with --compression: how long a stage's last messages are, in mean lengths; the first have 2 minus that, "
      "for most weights flip at the start; 1: all alike");
  declare_reals(options, settings.run.train, "Exchange between workers");
  options.choice(
      "value-bits", settings.value_bits, {"1", "4", "8", "16", "all"},
      "sparse: how finely gradients are sent: 1 (their sign), as so many bits are for values up to four thresholds, or all "
      "bits; larger values have longer codes");
  options.choice(
      "residuals", settings.residuals, {"exact", "sum", "none"},
      "sparse: what is not sent, of statistics too, is sent later; in checkpoints it is exact, so that a restart changes "
      "nothing, or a sum over workers, which is small; none: it is forgotten");
  options.count(
      "statistics-every", exchange.statistics_every, 1, 1000000,
      "sparse: updates between those that carry what thresholds and windows follow from, summed up (with --residuals none: of "
      "that update alone)");
  options.count(
      "flips-per-update", settings.run.train.layer.flip_limit, 0, any_count,
      "binary layers, rule accumulate: at most so many flips of a layer in an update, the surest first; 0: any number");
  options.count(
      "staleness", exchange.staleness, 0, 64,
      "sparse: updates that workers compute before they need the answer to one: messages travel meanwhile, and weights "
      "are so many updates old");
  options.number(
      "quorum", exchange.tree.quorum, 0, 1,
      "sparse: the share of the workers that is enough for an update after --deadline; below 1 results depend on the "
      "time that things take");
  options.number("deadline", exchange.tree.deadline_seconds, 0, 1e6,
                 "with --quorum: seconds that rank 0 waits for all workers when its own are done");
  options.choice("late", settings.late, {"fold", "drop"},
                 "with --quorum: what comes too late counts in the next update, statistics in the next that has some (fold), "
                 "or never (drop)");
  options.transient(true);
  options.count("tree", settings.fan_in, 1, 1000000, "sparse: processes below one in the tree that merges messages");
  options.transient(false);
}

}  // namespace

TrainSettings::TrainSettings() {
  run.cache_limit = std::uint64_t{8} << 30;
  run.train.exchange.threshold = 3;
}

void TrainSettings::declare(Options& options) {
  options.everyday({"net",
                    "set",
                    "out",
                    "resume",
                    "config",
                    "search",
                    "cache",
                    "data",
                    "validation",
                    "max-train",
                    "max-test",
                    "epochs",
                    "batch",
                    "seed",
                    "augment",
                    "signal",
                    "head-dropout",
                    "rule",
                    "learning-rate",
                    "head-learning-rate",
                    "freeze-weights",
                    "exchange",
                    "workers",
                    "bytes-per-update",
                    "compression",
                    "checkpoint-seconds"});
  options.needs(needs_table());
  declare_run(options, *this);
  options.group("Data");
  data.declare(options);
  declare_training(options, *this);
  declare_layers(options, *this);
  declare_exchange(options, *this);
  options.hidden();
  options.transient(true);
  options.number("pace", run.pace_seconds, 0, 1e6,
                 "for tests: computing for an update takes this process at least so many seconds, as on a slower machine");
  options.count("stop-after-steps", run.stop_after_steps, 0, any_count, "for tests: stop, resumable, after so many steps");
  options.text("hold", run.hold, "FILE",
               "for tests: wait before a step that is not below the number in FILE, while it is there");
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
  options.needs(needs_table());
  options.group("Training");
  declare_net(options, *this);
  data.declare(options);
  declare_training(options, *this);
  declare_layers(options, *this);
  declare_exchange(options, *this);
}

void TrainSettings::resolve(const Options& options, std::size_t ranks) {
  if (options.source("batch") == options.source("batch-per-rank") && options.source("batch") != Options::Source::none) {
    fail(ErrorKind::usage, "--batch and --batch-per-rank exclude each other");
  }
  // The nearer to the command line, the stronger.
  if (batch_per_rank != 0 && options.source("batch-per-rank") < options.source("batch")) {
    run.train.batch = batch_per_rank * ranks;
  }
  layerwise::TrainOptions& train = run.train;
  train.sparse = exchange == "sparse";
  train.workers = workers != 0 ? workers : train.sparse ? std::min(default_workers, train.batch) : 1;
  train.exchange.value_bits = value_bits == "all" ? 0 : static_cast<unsigned>(std::stoul(value_bits));
  train.exchange.residuals = residuals == "exact" ? mpi::Residuals::exact
                             : residuals == "sum" ? mpi::Residuals::sum
                                                  : mpi::Residuals::none;
  if (train.exchange.has_budget() && options.source("threshold") == Options::Source::command_line) {
    fail(ErrorKind::usage, "--threshold: {}; with --bytes-per-update or --compression it follows from these",
         train.exchange.threshold);
  }
  train.exchange.tree.fan_in = static_cast<int>(fan_in);
  train.exchange.tree.late = late == "fold" ? mpi::Late::fold : mpi::Late::drop;
  run.train.augment = data::parse_augment(augment);
  run.train.layer.learn_weights = !freeze_weights;
  run.resume = resume;
  run.needs_cache = cache != "auto" && cache != "none";
  if (cache == "auto") {
    try {
      run.cache = user_cache_folder() / "layers";
    } catch (const Error&) {
      run.cache.clear();  // a user without a home has no cache
    }
  } else if (run.needs_cache) {
    cache = fs::absolute(cache).lexically_normal().string();
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

std::vector<SearchAxis> TrainSettings::search() const {
  std::vector<SearchAxis> axes;
  for (const std::string& text : searches) {
    const auto [key, list] = split_setting("--search", text);
    axes.push_back({key, split(list, ',')});
    const std::vector<std::string>& all = axes.back().values;
    for (auto value = all.begin(); value != all.end(); ++value) {
      if (value->empty()) fail(ErrorKind::usage, "--search: '{}' has an empty value", text);
      if (std::find(all.begin(), value, *value) != value) {
        fail(ErrorKind::usage, "--search: '{}' has the value '{}' twice; expected each once", text, *value);
      }
    }
    const auto same = [&](const SearchAxis& axis) { return axis.key == axes.back().key; };
    if (std::count_if(axes.begin(), axes.end(), same) != 1) {
      fail(ErrorKind::usage, "--search: '{}' is searched twice; expected all its values in one --search", axes.back().key);
    }
  }
  return axes;
}

std::string option_of_field(const std::string& field) {
  // Fields that are not called as their options are.
  static const std::map<std::string, std::string> named{
      {"data.images", "training images (--data, --max-train, --validation, --split-seed)"},
      {"data.content", "the training images' content (--data, --max-train, --validation, --split-seed)"},
      {"encoder", "the encoder's fitted filters (--data, --seed, --set encoder.KEY)"},
      {"net.name", "--net"},
      {"net.mirror", "--set net.mirror"},
      {"net.shift", "--set net.shift"},
      {"net.classifier", "the layers whose heads vote (--net)"},
      {"options.head_rate", "--head-learning-rate"},
      {"options.offset_rate", "--threshold-learning-rate"},
      {"options.learn_weights", "whether weights learn (--freeze-weights)"},
      {"options.flip_limit", "--flips-per-update"},
      {"options.partial.quorum", "--quorum"},
      {"options.partial.deadline", "--deadline"},
      {"options.partial.late", "--late"},
      {"options.exchange.budget", "--bytes-per-update"},
      {"options.exchange.compression.0", "--compression"},
      {"options.exchange.compression.1", "--last-messages"},
      {"options.exchange.threshold", "--threshold"},
      {"options.exchange.residuals", "--residuals (by number)"},
      {"options.exchange.statistics_every", "--statistics-every"},
      {"options.exchange.value_bits", "--value-bits"},
      {"options.exchange.urgency.0", "--threshold-urgency"},
      {"options.exchange.urgency.1", "--head-urgency"},
      {"options.exchange.version", "the version of sparse messages (--exchange)"}};
  if (const auto found = named.find(field); found != named.end()) return found->second;
  const auto rest = [&](std::string_view prefix) { return field.substr(prefix.size()); };
  if (field.starts_with("net.stages.") && field.ends_with(".epochs")) return fmt::format("--epochs of {}", rest("net.stages."));
  if (field.starts_with("net.stages.")) return "--set " + rest("net.stages.");
  if (field.starts_with("net.layers.")) return "--set " + rest("net.layers.");
  if (field.starts_with("net.")) return "--set " + rest("net.");
  std::string option = field.starts_with("options.") ? rest("options.") : field;
  std::replace(option.begin(), option.end(), '_', '-');
  return "--" + option;
}

}  // namespace bitloom::cli
