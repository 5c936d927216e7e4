// bitloom train binary: options and run folder in, layerwise::train, a summary out.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/field_names.h"
#include "cli/image_evaluation.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/shared_data.h"
#include "cli/signals.h"
#include "cli/start_up.h"
#include "cli/system.h"
#include "cli/teacher.h"
#include "cli/train_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/soft_labels.h"
#include "launch/supervisor.h"
#include "layerwise/model.h"
#include "layerwise/search.h"
#include "layerwise/trainer.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;

// Rank 0's text on every rank: run folders need not be visible elsewhere.
template <typename F>
std::string text_of_root(Session& session, F&& f) {
  std::string text;
  session.on_root([&] { text = f(); });
  return session.comm.broadcast_text(text);
}

// Reads the options; with --resume those of the run fill in what was not given.
bool read_options(Session& session, std::span<const std::string> args, Options& options, TrainSettings& settings) {
  settings.declare(options);
  if (!read_with_resume(session, args, options)) return false;
  settings.resolve(options, static_cast<std::size_t>(session.comm.size()));
  return true;
}

// The net: as it was when the run began, unless it is described anew.
layerwise::NetSpec choose_net(Session& session, const Options& options, const TrainSettings& settings) {
  const auto described = [&](const char* name) { return options.is_asked_for(name); };
  if (!settings.resume || described("net") || described("set") || described("epochs")) {
    return session.comm.together([&] { return settings.make_net(); });
  }
  const fs::path file = settings.run.folder / net_file;
  return layerwise::parse_net(text_of_root(session, [&] { return read_text(file); }), file.string());
}

// Throws unless a new run may go to its folder, which need not exist. The trainer looks again for a run when it has locked it.
void check_folder(const fs::path& folder) {
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder)) {
    fail(ErrorKind::usage, "--out: {} is not a folder; expected one that is new or empty", folder.string());
  }
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  // The variants of a search lie in sub-folders; what it began with names their values.
  const bool searched = has(options_file) && read_text(folder / options_file).find("\nsearch = ") != std::string::npos;
  if (searched || has(layerwise::search_file) || has(metrics_file) || has(model_file) || has(checkpoint_file)) {
    fail(ErrorKind::usage, "--out: {} holds a run already; continue it with --resume, or choose another folder",
         folder.string());
  }
  std::error_code error;
  if (!has(options_file) && !has(lock_file) && !fs::is_empty(folder, error)) {
    fail(ErrorKind::usage, "--out: {} is not empty; expected a folder that is new or empty", folder.string());
  }
}

// Options that the images leave without effect, or without sense. A run that goes on has been through this.
void check_images(Session& session, const Options& options, const TrainSettings& settings, const data::Dataset& train) {
  if (settings.resume) return;
  if (train.size() < train.classes()) {
    fail(settings.data.max_train != 0 ? ErrorKind::usage : ErrorKind::data,
         "{}: {} images to train on; expected at least one of each of the {} classes",
         settings.data.max_train != 0 ? "--max-train" : settings.data.spec, train.size(), train.classes());
  }
  require_classes(settings.data.spec, train);
  const std::size_t batch = settings.run.train.batch;
  if (batch <= train.size()) return;
  for (const char* name : {"batch", "batch-per-rank"}) {
    if (options.source(name) != Options::Source::command_line) continue;
    fail(ErrorKind::usage, "--{}: {} images per update; expected at most the {} of the training set", name, batch,
         train.size());
  }
  session.terminal.print("minibatches of {} images: there are no {} (--batch) to train on", train.size(), batch);
}

// Files that --resume reads, by name.
std::map<std::string, std::string> files_of_run(const Options& options, const TrainSettings& settings) {
  std::map<std::string, std::string> files{{net_file, layerwise::to_json(settings.run.net).dump(2) + "\n"},
                                           {options_file, options.to_ini()}};
  if (!settings.teacher.labels.empty()) files[soft_labels_name] = settings.teacher.labels;
  return files;
}

void announce(Session& session, const TrainSettings& settings, const data::DataSplits& data, const Threads& threads) {
  const layerwise::RunOptions& run = settings.run;
  session.terminal.print("net '{}', {} layers; data '{}': {} training, {} validation, {} test images", run.net.name,
                         run.net.layers.size(), data.train.name, data.train.size(), data.validation.size(), data.test.size());
  session.terminal.print("{} process{} with {} thread{}, kernels {}, run folder {}", session.comm.size(),
                         session.comm.size() == 1 ? "" : "es", threads.per_rank, threads.per_rank == 1 ? "" : "s",
                         simd::kernels().name, run.folder.string());
  if (const std::string warning = oversubscription(threads); !warning.empty()) session.terminal.print("warning: {}", warning);
}

void print_next(Terminal& terminal, const std::string& folder) {
  terminal.print("next:\n  bitloom eval {0}\n  bitloom predict {0} PICTURE...\n  bitloom report {0}", shell_word(folder));
}

// Tells of stages that this run did not train itself, and whose they are.
void tell_reused(Terminal& terminal, const layerwise::RunResult& result) {
  const auto reused = std::count_if(result.stages.begin(), result.stages.end(), [](const auto& stage) { return stage.reused; });
  if (reused == 0) return;
  terminal.print("{} of {} stage{} {} not trained but taken from the cache; with --cache none all are trained afresh:", reused,
                 result.stages.size(), result.stages.size() == 1 ? "" : "s", reused == 1 ? "was" : "were");
  for (const layerwise::StageSummary& stage : result.stages) {
    if (!stage.reused) continue;
    const std::string origin = layerwise::origin_text(stage.trained_by);
    terminal.print("  {:<22}{}", stage.name, origin.empty() ? "trained by another run" : "trained " + origin);
  }
}

void summarise(Session& session, const layerwise::RunOptions& run, const layerwise::RunResult& result) {
  std::array<std::int64_t, 1> memory{static_cast<std::int64_t>(layerwise::peak_memory())};
  session.comm.max(memory);
  if (!session.comm.is_root()) return;
  Terminal& terminal = session.terminal;
  const fs::path model = run.folder / model_file;
  const double rate = result.seconds > 0 ? static_cast<double>(result.images) / result.seconds : 0;
  const bool trained = result.images > 0;
  terminal.print("\ndone in {}: {}", format_duration(result.seconds),
                 trained ? fmt::format("{} images trained on, {:.0f} images/s over all", format_count(result.images), rate)
                         : "nothing had to be trained");
  tell_reused(terminal, result);
  const auto accuracy = [&](const char* name, const layerwise::Evaluation& evaluation) {
    if (evaluation.images == 0) return;
    const std::string plain =
        result.model.net.views.count() == 1
            ? ""
            : fmt::format("; {:.2f}% without {} images", 100 * evaluation.plain_accuracy(), result.model.net.views.names());
    const std::string views = result.model.net.views.stop_early()
                                  ? fmt::format("; {:.3g} of {} views", evaluation.views, result.model.net.views.count())
                                  : "";
    terminal.print("  {:<22}{:.2f}% of {} images{}{}", name, 100 * evaluation.accuracy(), evaluation.images, plain, views);
  };
  accuracy("validation accuracy", result.validation);
  accuracy("test accuracy", result.test);
  terminal.print("  {:<22}{} ({}; {} one-bit weights)", "model", model.string(), format_bytes(fs::file_size(model)),
                 format_count(result.model.weight_bits()));
  terminal.print("  {:<22}{} per process", "peak memory", format_bytes(static_cast<std::uint64_t>(memory[0])));
  print_next(terminal, run.folder.string());
}

// Whether the run that should go on is done already, which is said. Other options than its own are the trainer's to refuse.
bool is_finished(Session& session, const Options& options, const layerwise::RunOptions& run) {
  const std::string notes = text_of_root(session, [&]() -> std::string {
    if (!run.resume || !fs::exists(run.folder / model_file) || !fs::exists(run.folder / options_file)) return "";
    if (!asked_otherwise(options, read_text(run.folder / options_file)).empty()) return "";
    std::string text = " ";
    for (const auto& [name, value] : layerwise::Model::load(run.folder / model_file).notes) {
      const std::size_t end = name.find("_accuracy");
      const std::optional<double> share = end == std::string::npos ? std::nullopt : parse_double(value);
      if (share) text += fmt::format("; {} accuracy {:.2f}%", name.substr(0, end), 100 * *share);
    }
    return text;
  });
  if (notes.empty()) return false;
  session.terminal.print("the run in {} is finished{}; there is nothing left to train", run.folder.string(), notes.substr(1));
  print_next(session.terminal, run.folder.string());
  return true;
}

// A search goes on as it began: runs that are finished are taken by their names, and would not show that others were meant.
void check_search(Session& session, const Options& options, const fs::path& folder) {
  session.on_root([&] {
    if (!fs::exists(folder / options_file) || asked_otherwise(options, read_text(folder / options_file)).empty()) return;
    fail(ErrorKind::usage,
         "--resume: the search in {} began with other options; expected those in {}, which need not be repeated",
         folder.string(), (folder / options_file).string());
  });
}

layerwise::RunResult train_one(Session& session, const Options& options, TrainSettings& settings, const data::DataSplits& data,
                               const Threads& threads) {
  session.on_root([&] {
    if (!settings.resume) check_folder(settings.run.folder);
  });
  settings.run.files = files_of_run(options, settings);
  if (session.continuation.command.empty()) session.continuation = continuation_of("binary", settings.out);
  LoggedProgress progress(session.terminal, settings.run.folder / log_file);
  announce(session, settings, data, threads);
  if (const std::size_t asked = settings.batch_per_rank * static_cast<std::size_t>(session.comm.size());
      settings.resume && asked != 0 && asked != settings.run.train.batch) {
    session.terminal.print("minibatches stay of {} images, as the run began; --batch-per-rank {} would make them {}",
                           settings.run.train.batch, settings.batch_per_rank, asked);
  }
  layerwise::RunOptions run = settings.run;
  if (data.train.soft_labels.empty()) run.train.teacher_share = 0;
  layerwise::RunResult result = layerwise::train(simd::kernels(), session.comm, run, data, progress);
  if (run.stages == 0) summarise(session, run, result);
  return result;
}

}  // namespace

int train_binary(Session& session, std::span<const std::string> args) {
  TrainSettings settings;
  Options options(
      "bitloom train binary --data SPEC [--net NAME|FILE] [--out FOLDER] [options]",
      "Trains a net with one-bit weights and activations, layer by layer, and writes it to FOLDER/model.safetensors.\n"
      "Ctrl-C or SIGTERM leaves a checkpoint that `bitloom train binary --resume --out FOLDER` continues to the same\n"
      "result. `mpirun -n N` divides each batch among N processes; N does not change the result.");
  if (!read_options(session, args, options, settings)) return exit_done;
  set_watchdog(session.comm, settings.watchdog_seconds);
  catch_stop_signals();
  ignore_closed_output();
  const NoticeWatch notice(settings.notice_command);
  session.comm.together([] { simd::kernels(); });  // BITLOOM_ISA may name what one host lacks
  settings.run.stop = [] { return stop_requested(); };
  settings.run.field_name = &option_of_field;
  settings.run.command = session.command_line;
  if (const char* start = std::getenv(launch::supervised_variable); start != nullptr) settings.run.process_name = start;
  settings.run.folder =
      text_of_root(session, [&] { return settings.out.empty() ? default_folder(settings.net) : settings.out; });
  settings.run.net = choose_net(session, options, settings);
  settings.refuse_overruled(options);
  if (!settings.plan.empty()) {
    settings.run.planned = settings.planned(text_of_root(session, [&] { return read_text(settings.plan); }));
    const auto in_plan = [&](const layerwise::StageSpec& stage) { return settings.run.planned.contains(stage.name); };
    if (std::none_of(settings.run.net.stages.begin(), settings.run.net.stages.end(), in_plan)) {
      fail(ErrorKind::usage, "--plan: {} has none of the stages of net '{}'", settings.plan, settings.run.net.name);
    }
  }
  settings.out = settings.run.folder.string();
  const std::vector<layerwise::Variant> variants = layerwise::make_variants(settings.run.net, settings.search());
  if (!variants.empty()) layerwise::check_rounds(variants, settings.search_rounds);
  if (variants.empty() && is_finished(session, options, settings.run)) return exit_done;

  const Threads threads = choose_threads(session.comm);
  data::DataSplits data = load_shared_data(session, settings.data, settings.run.cache, settings.run.cache_limit);
  settings.data.validation = fmt::format("{}", data.validation.size());
  check_images(session, options, settings, data.train);
  if (!settings.teacher.net.empty()) {
    const int step = settings.teacher.step(options, settings.most_crop_padding(variants));
    settings.teacher.label(session, options, settings.run.folder, settings.resume, step, data.train);
  }
  if (variants.empty()) {
    train_one(session, options, settings, data, threads);
    return exit_done;
  }
  if (data.validation.size() == 0) fail(ErrorKind::usage, "--search: ranks by validation accuracy, but --validation is 0");
  session.on_root([&] {
    if (!settings.resume) check_folder(settings.run.folder);
  });
  if (settings.resume) check_search(session, options, settings.run.folder);
  session.continuation = continuation_of("binary", settings.out);
  const layerwise::SearchOptions search{
      settings.run,           settings.spread,
      settings.search_rounds, files_of_run(options, settings),
      options_file,           {model_file, layerwise::heads_name, config_file, metrics_file, options_file, net_file, log_file}};
  const auto train = [&](mpi::Comm& comm, const layerwise::RunOptions& run) {
    settings.run = run;
    settings.resume = run.resume;
    settings.searches.clear();  // those of its options.ini, too
    settings.search_rounds = 1;
    // Those of its round; where stages differ, the net says it.
    const std::vector<layerwise::StageSpec>& stages = run.net.stages;
    const bool same = std::all_of(stages.begin(), stages.end(),
                                  [&](const layerwise::StageSpec& stage) { return stage.epochs == stages.front().epochs; });
    settings.epochs = settings.epochs != 0 && same ? stages.front().epochs : 0;
    if (&comm == &session.comm) return train_one(session, options, settings, data, threads);
    Session alone{comm, session.terminal, session.command_line, {}};
    return train_one(alone, options, settings, data, threads);
  };
  layerwise::search(session.comm, search, variants, train, session.terminal);
  return exit_done;
}

}  // namespace bitloom::cli
