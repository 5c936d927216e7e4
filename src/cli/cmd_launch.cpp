// bitloom launch: options in, a run that outlives its machines.
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "cli/clip_options.h"
#include "cli/cnn_options.h"
#include "cli/command.h"
#include "cli/dalle_options.h"
#include "cli/dvae_options.h"
#include "cli/field_names.h"
#include "cli/gpt_options.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/run_folder.h"
#include "cli/signals.h"
#include "cli/train_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/metrics.h"
#include "core/text.h"
#include "launch/hosts.h"
#include "launch/supervisor.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

using Arguments = std::span<const std::string>;

// The value of an option ("--out") in a command line, of which the last one counts; "" if it is not there.
std::string value_of(Arguments args, const std::string& option) {
  std::string value;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == option && i + 1 < args.size()) value = args[i + 1];
    if (args[i].starts_with(option + "=")) value = args[i].substr(option.size() + 1);
  }
  return value;
}

// How processes can divide a run: `processes` make a replica of the net, and the replicas share the batch.
struct Division {
  std::size_t processes = 1, batch = 1, micro_batch = 1;       // batch 0: each replica has its own
  std::size_t multiple = 1;                                    // of replicas
  std::size_t group = 1;                                       // neighbouring ranks that exchange the most
  std::size_t most = std::numeric_limits<std::size_t>::max();  // replicas
  std::size_t local = 0;                                       // processes on one machine, where nobody says; 0: the fewest

  std::size_t least() const { return processes * multiple; }
  // The most processes, of those for which there is room, that make whole replicas that share the batch.
  std::size_t usable(std::size_t available) const {
    std::size_t replicas = std::min(available / processes, most);
    while (replicas > 0 && (replicas % multiple != 0 || batch % (replicas * micro_batch) != 0)) --replicas;
    return replicas * processes;
  }
};

// Files that `train KIND` leaves in a run folder, and where it runs.
struct Kind {
  std::string_view name;
  // How processes divide a run.
  Division (*division)(Arguments program, const fs::path& folder);
  bool (*has_begun)(const fs::path& folder);
  bool (*is_done)(const fs::path& folder, Arguments program);
  // Options of the command line that differ from those of the run in the folder, as lines of its options.ini.
  std::vector<std::string> (*asked_otherwise)(Arguments program, const fs::path& folder);
};

bool binary_has_begun(const fs::path& folder) { return fs::exists(folder / options_file); }
bool binary_is_done(const fs::path& folder, Arguments /*program*/) { return fs::exists(folder / model_file); }

bool float_has_begun(const fs::path& folder) { return fs::exists(folder / metrics_file); }

// The options of `train KIND ...`, its --config, and those of the run that it goes on with; false for --help.
bool read_program(Options& options, Arguments program, const fs::path& folder) {
  if (!options.parse(program.subspan(2))) return false;
  if (const fs::path ini = folder / options_file; float_has_begun(folder) && fs::is_regular_file(ini)) {
    options.read_ini(read_text(ini), ini.string(), Options::Source::run);
  }
  options.finish();
  return true;
}

// Stages send each other little. Who divides the processes further means those of a host.
Division division_of(const LayoutSettings& layout, std::size_t batch, std::size_t micro_batch) {
  Division division = {layout.tensor * layout.pipeline, batch, micro_batch, std::max<std::size_t>(1, layout.shard_ranks)};
  division.group = division.multiple > 1 ? division.least() : layout.tensor;
  return division;
}

// Workers of a job in local steps do not divide the batch.
Division division_of(const LayoutSettings& layout, const LocalSettings& local, std::size_t batch, std::size_t micro_batch) {
  Division division = division_of(layout, local.is_job() ? 0 : batch, micro_batch);
  if (local.ranks_per_worker > 1) {
    division.processes *= local.ranks_per_worker;
    division.group = division.least();
  }
  return division;
}

// The number that --micro-batch gives, if it is not auto.
std::size_t given_or(const std::string& micro_batch, std::size_t otherwise) {
  const std::optional<std::int64_t> given = parse_int(micro_batch);
  if (given && *given < 1) {
    fail(ErrorKind::usage, "--micro-batch: '{}'; expected auto or a divisor of the batch", micro_batch);
  }
  return given ? static_cast<std::size_t>(*given) : otherwise;
}

Division division_of_gpt(Arguments program, const fs::path& folder) {
  GptSettings settings;
  Options options("bitloom train gpt", "");
  settings.declare(options, true);
  if (!read_program(options, program, folder)) return {};
  return division_of(settings.layout, settings.local, settings.batch, given_or(settings.micro_batch, 1));
}

// A run keeps the micro-batch that it began with, for batch norm's sake.
Division division_of_cnn(Arguments program, const fs::path& folder) {
  CnnSettings settings;
  Options options("bitloom train cnn", "");
  settings.declare(options);
  if (!read_program(options, program, folder)) return {};
  settings.make_config(options);
  const std::size_t before = std::max<std::size_t>(1, micro_batch_of_run(folder, settings.batch));
  return division_of(settings.layout, settings.local, settings.batch, given_or(settings.micro_batch, before));
}

Division division_of_dalle(Arguments program, const fs::path& folder) {
  DalleSettings settings;
  Options options("bitloom train dalle", "");
  settings.declare(options);
  if (!read_program(options, program, folder)) return {};
  return division_of(settings.layout, settings.batch, given_or(settings.micro_batch, 1));
}

// The result of work(settings, options) for the command line, --config and the run's own options; `otherwise` where something
// is wrong with these: the run is done all the same.
template <typename Settings, auto declare, typename Result, typename Work>
Result of_options(Arguments program, const fs::path& folder, Result otherwise, Work&& work) {
  try {
    Settings settings;
    Options options(fmt::format("bitloom train {}", program[1]), "");
    declare(settings, options);
    return read_program(options, program, folder) ? work(settings, options) : otherwise;
  } catch (const Error&) {
    return otherwise;
  }
}

template <typename Settings, auto declare>
std::vector<std::string> asked_otherwise_of(Arguments program, const fs::path& folder) {
  return of_options<Settings, declare>(program, folder, std::vector<std::string>(), [&](Settings&, const Options& options) {
    return asked_otherwise(options, read_text(folder / options_file));
  });
}

// As many steps as epochs have had, for nets that count these instead.
double steps_of_epochs(const CnnSettings& settings, const std::vector<nlohmann::json>& metrics) {
  double steps = 0;
  for (const nlohmann::json& line : metrics) {
    const nlohmann::json each = line.value("steps_per_epoch", nlohmann::json());
    if (each.is_number_unsigned()) steps = std::max(1.0, std::round(settings.training.epochs * each.get<double>()));
  }
  return steps;
}

// How many steps the run is to have; 0 where nothing says so.
template <typename Settings, auto declare>
double wanted_steps(Arguments program, const fs::path& folder, const std::vector<nlohmann::json>& metrics) {
  return of_options<Settings, declare>(program, folder, 0.0, [&](Settings& settings, const Options& options) {
    const auto is_said = [&](const char* name) { return options.source(name) != Options::Source::none; };
    if (!is_said("steps") && !is_said("epochs")) return 0.0;
    if constexpr (std::is_same_v<Settings, CnnSettings>) {
      settings.make_config(options);
      if (settings.steps == 0) return steps_of_epochs(settings, metrics);
    }
    return static_cast<double>(settings.steps);
  });
}

// There may be a model before the run is done, that of the best evaluation so far; and a run that is done has steps left when
// it is launched for more.
template <typename Settings, auto declare>
bool float_is_done(const fs::path& folder, Arguments program) {
  if (!float_has_begun(folder)) return false;
  std::vector<nlohmann::json> metrics;
  try {
    metrics = read_metrics(folder / metrics_file);
  } catch (const Error&) {
    return false;  // whatever is in that file, the run itself says what is wrong
  }
  const nlohmann::json result = result_of(metrics);
  if (!result.is_object() || is_untested(metrics)) return false;
  const nlohmann::json steps = result.value("steps", nlohmann::json());
  if (!steps.is_number_integer()) return false;  // a damaged line: the run itself says what is wrong
  return static_cast<double>(steps.get<std::int64_t>()) >= wanted_steps<Settings, declare>(program, folder, metrics);
}

constexpr auto declare_all = [](auto& settings, Options& options) { settings.declare(options); };
constexpr auto declare_gpt = [](GptSettings& settings, Options& options) { settings.declare(options, true); };

// Nets of images and captions; keeps: a run keeps the micro-batch that it began with, on which its loss depends.
template <typename Settings, bool keeps>
Division division_of_pairs(Arguments program, const fs::path& folder) {
  Settings settings;
  Options options(fmt::format("bitloom train {}", program[1]), "");
  settings.declare(options);
  if (!read_program(options, program, folder)) return {};
  const std::size_t before = keeps ? std::max<std::size_t>(1, micro_batch_of_run(folder, settings.batch)) : 1;
  return {1, settings.batch, given_or(settings.micro_batch, before), 1};
}

// Any number of processes divides a minibatch, or its logical workers.
Division division_of_binary(Arguments program, const fs::path& folder) {
  TrainSettings settings;
  Options options("bitloom train binary", "");
  settings.declare(options);
  if (!read_program(options, program, folder)) return {};
  Division division;
  division.batch = 0;
  division.local = 2;
  division.most = settings.most_ranks(options);
  return division;
}

constexpr auto kinds = std::to_array<Kind>(
    {{"binary", &division_of_binary, &binary_has_begun, &binary_is_done, &asked_otherwise_of<TrainSettings, declare_all>},
     {"clip", &division_of_pairs<ClipSettings, true>, &float_has_begun, &float_is_done<ClipSettings, declare_all>,
      &asked_otherwise_of<ClipSettings, declare_all>},
     {"cnn", &division_of_cnn, &float_has_begun, &float_is_done<CnnSettings, declare_all>,
      &asked_otherwise_of<CnnSettings, declare_all>},
     {"dalle", &division_of_dalle, &float_has_begun, &float_is_done<DalleSettings, declare_all>,
      &asked_otherwise_of<DalleSettings, declare_all>},
     {"dvae", &division_of_pairs<DvaeSettings, false>, &float_has_begun, &float_is_done<DvaeSettings, declare_all>,
      &asked_otherwise_of<DvaeSettings, declare_all>},
     {"gpt", &division_of_gpt, &float_has_begun, &float_is_done<GptSettings, declare_gpt>,
      &asked_otherwise_of<GptSettings, declare_gpt>}});

const Kind& kind_of(Arguments program) {
  if (program.size() >= 2 && program[0] == "train") {
    for (const Kind& kind : kinds) {
      if (kind.name == program[1]) return kind;
    }
  }
  fail(ErrorKind::usage, "launch: expected `-- train binary|clip|cnn|dalle|dvae|gpt ...` after its options, got '{}'",
       fmt::join(program, " "));
}

// Meaning of the exit codes of a run's processes.
launch::Ending ending_of(int code) {
  switch (code) {
    case exit_interrupted: return launch::Ending::interrupted;
    case exit_usage:
    case exit_data: return launch::Ending::unusable;
    case exit_io: return launch::Ending::disk;
    default: return launch::Ending::other;
  }
}

int exit_code_of(const launch::Outcome& outcome) {
  switch (outcome.kind) {
    case launch::Outcome::Kind::done: return exit_done;
    case launch::Outcome::Kind::interrupted: return exit_interrupted;
    case launch::Outcome::Kind::gave_up: break;
  }
  return ending_of(outcome.code) == launch::Ending::unusable ? outcome.code : exit_gave_up;
}

class TerminalVoice final : public launch::Voice {
 public:
  explicit TerminalVoice(Terminal& terminal) : terminal_(terminal) {}
  // The supervisor's own lines name fields of its options; those of the run are the run's.
  void line(std::string_view text) override {
    text.starts_with("launch: ") ? terminal_.line(with_options(text)) : terminal_.line(text);
  }
  void update(std::string_view text) override { terminal_.update(text); }
  void error(std::string_view text) override { terminal_.error(text); }

 private:
  Terminal& terminal_;
};

std::string this_program() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  if (error) fail(ErrorKind::io, "launch: /proc/self/exe: {}", error.message());
  return path.string();
}

}  // namespace

int launch(Session& session, std::span<const std::string> args) {
  launch::SupervisorOptions supervisor;
  std::string hostfile;
  Options options(
      "bitloom launch [options] -- train binary|clip|cnn|dalle|dvae|gpt --out FOLDER [options]",
      "Runs a training on all hosts that answer, with mpirun, and keeps it going: when a process, a host or a link\n"
      "is lost it goes on from the last checkpoint with what is left, and with more when hosts come back. Rank 0,\n"
      "which writes the run folder, runs on this machine. Ctrl-C or SIGTERM leaves a run that can be continued.\n"
      "Float nets take as many processes as their --tensor, --pipeline, --shard-ranks and --batch divide them among.");
  static const std::vector<Options::Need> needs{
      {"agent", "hostfile", {}}, {"probe-seconds", "hostfile", {}}, {"patience", "hostfile", {}}};
  options.needs(needs);
  options.group("Hosts");
  options.text("hostfile", hostfile, "FILE",
               "File of hosts, a line `HOST slots=N` each, or Slurm's lists of them, node[01-16]; without it all processes run "
               "on this machine");
  options.count("local", supervisor.local, 1, 10000,
                "Number of processes on this machine; if none is given, float nets take --tensor times --pipeline times "
                "--shard-ranks, and beside the hosts of --hostfile all nets one, or one group of those that exchange the most");
  options.count("min-workers", supervisor.min_workers, 1, 1000000,
                "Smallest number of processes; with fewer it waits for hosts of --hostfile, without which there are those of "
                "--local alone. With --hostfile at least one host must be there at first, unless this is given");
  options.text("agent", supervisor.agent, "COMMAND", "Command that reaches hosts: COMMAND HOST PROGRAM...");
  options.text("mpirun", supervisor.mpirun, "COMMAND", "Launcher of Open MPI");
  options.text("interface", supervisor.interface, "NAME", "Network interface that messages take; without it any");
  options.text("notice-command", supervisor.notice, "COMMAND",
               "Shell command that ends with 0 on a host that is about to be taken away: the run stops at a checkpoint and "
               "goes on without the host for as long as the command says so");
  options.group("Patience");
  options.number("deadline", supervisor.deadline_seconds, 0.1, 1e6,
                 "Seconds without a sign of life (at first a minute more) after which the processes count as hanging, and are "
                 "started again");
  options.number("probe-seconds", supervisor.probe_seconds, 0.1, 1e6, "Seconds between searches for hosts that are missing");
  options.number("patience", supervisor.patience_seconds, 0, 1e7, "Seconds to wait for enough hosts");
  options.count(
      "attempts", supervisor.attempts, 1, 1000000,
      "Number of starts in a row without a step, or with a fault of their own before a new step, after which it gives up");
  const auto separator = std::find(args.begin(), args.end(), "--");
  if (!options.parse(args.first(static_cast<std::size_t>(separator - args.begin())))) {
    session.terminal.line(options.help());
    return exit_done;
  }
  options.finish();
  supervisor.may_begin_alone = options.source("min-workers") != Options::Source::none;
  if (mpi::launched_by_mpi()) fail(ErrorKind::usage, "launch: it starts mpirun itself; run it without");
  const Arguments program = separator == args.end() ? args.last(0) : std::span(separator + 1, args.end());
  const Kind& kind = kind_of(program);
  const std::string out = value_of(program, "--out");
  if (out.empty()) fail(ErrorKind::usage, "launch: needs --out FOLDER after `-- train {}`, to find the run again", kind.name);
  const auto searches = [](const std::string& arg) { return arg == "--search" || arg.starts_with("--search="); };
  if (std::any_of(program.begin(), program.end(), searches)) {
    fail(ErrorKind::usage, "launch: --search trains several nets; launch them one by one");
  }
  supervisor.folder = fs::absolute(out).lexically_normal();
  if (!supervisor.folder.has_filename()) supervisor.folder = supervisor.folder.parent_path();  // FOLDER/
  const bool chosen = options.source("local") != Options::Source::none;
  const auto division = [&] { return kind.division(program, supervisor.folder); };
  const Division now = division();
  supervisor.group = now.group;
  if (!chosen) supervisor.local = now.local != 0 ? now.local : now.least();
  supervisor.usable = [division](std::size_t available) { return division().usable(available); };
  if (!chosen && !hostfile.empty()) supervisor.local = supervisor.group;
  supervisor.program = {this_program()};
  supervisor.program.insert(supervisor.program.end(), program.begin(), program.end());
  if (!supervisor.notice.empty()) {
    supervisor.program.insert(supervisor.program.end(), {"--notice-command", supervisor.notice});
  } else {
    supervisor.notice = value_of(program, "--notice-command");
  }
  if (!hostfile.empty()) {
    supervisor.hosts = launch::read_hostfile(hostfile);
  } else {
    const std::size_t all = supervisor.usable(supervisor.local);
    if (supervisor.local < now.least()) {
      fail(ErrorKind::usage, "--local: {} process{}; expected at least {}, which one copy of the net takes", supervisor.local,
           supervisor.local == 1 ? "" : "es", now.least());
    }
    if (all == 0) {
      fail(ErrorKind::usage, "--local: {}; expected a number of processes that divides the batch, {}, into micro-batches of {}",
           supervisor.local, now.batch, now.micro_batch);
    }
    if (supervisor.min_workers > all) {
      fail(ErrorKind::usage,
           "--min-workers: {}; expected at most the {} process{} of this machine (--local) without --hostfile",
           supervisor.min_workers, all, all == 1 ? "" : "es");
    }
  }
  supervisor.has_begun = [&] { return kind.has_begun(supervisor.folder); };
  supervisor.is_done = [&] { return kind.is_done(supervisor.folder, program); };
  supervisor.stop = [] { return stop_requested(); };
  catch_stop_signals();
  ignore_closed_output();
  supervisor.ending_of = &ending_of;
  std::error_code ignored;
  fs::create_directories(supervisor.folder.parent_path(), ignored);
  const FileLock lock(supervisor.folder.string() + ".launch.lock");
  session.terminal.open_log(supervisor.folder.string() + ".launch.log");
  TerminalVoice voice(session.terminal);
  if (supervisor.is_done()) {
    const std::vector<std::string> others = kind.asked_otherwise(program, supervisor.folder);
    if (!others.empty()) {
      session.terminal.note(
          fmt::format("launch: the run in {} was made by other options, and stays as it is; here are {}. For "
                      "another run, name another --out",
                      supervisor.folder.string(), fmt::join(others, ", ")));
    }
  }
  return exit_code_of(launch::supervise(supervisor, voice));
}

}  // namespace bitloom::cli
