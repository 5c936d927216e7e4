// bitloom train gpt: options, text and run folder in, train::run, a summary out.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/field_names.h"
#include "cli/gpt_options.h"
#include "cli/gpt_sequences.h"
#include "cli/local_training.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/signals.h"
#include "cli/start_up.h"
#include "cli/system.h"
#include "cli/text_source.h"
#include "core/error.h"
#include "core/version.h"
#include "data/text/documents.h"
#include "models/gpt/language_task.h"
#include "models/gpt/model_file.h"
#include "plan/float_grids.h"
#include "run/folder.h"
#include "train/parallel/tensor.h"
#include "train/session.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Settings that checkpoints have to agree with, in words.
std::string identity_of(const GptSettings& settings, const models::GptConfig& config, const train::TrainOptions& options,
                        const TextSource& text) {
  Json json = {{"net", to_json(config)},
               {"activation_bits", config.activation_bits},
               {"batch", settings.batch},
               {"peak", options.rate.peak},
               {"optimizer",
                {options.optimizer.beta1, options.optimizer.beta2, options.optimizer.decay, options.optimizer.clip,
                 options.optimizer.average}},
               {"dtype", settings.values},
               {"seed", settings.seed},
               {"text", text.fingerprint}};
  add_quantiser(config.activation_quantiser, json);
  if (settings.master_weights != "f32") json["master_weights"] = settings.master_weights;
  if (settings.merge_dropout != 0) json["merge_dropout"] = settings.merge_dropout;
  settings.layout.add_compression(json);
  if (options.optimizer.rule != GptSettings().optimizer.rule) json["rule"] = options.optimizer.rule;
  json.update(settings.deep.identity());
  if (settings.local.is_local()) json.update(settings.local.identity());
  // The steps, on which the rates also depend, the run itself compares: --steps may change them.
  if (settings.rate_floor != GptSettings().rate_floor) json["learning_rate_floor"] = settings.rate_floor;
  if (settings.warmup != GptSettings().warmup) json["warmup"] = options.rate.warmup;
  settings.add_newer(options, json);
  return json.dump();
}

// The options that set what identity_of() names.
std::string gpt_option(const std::string& field) {
  static const FieldOptions named{{"peak", "--learning-rate"},
                                  {"optimizer.0", "--beta1"},
                                  {"optimizer.1", "--beta2"},
                                  {"optimizer.2", "--weight-decay"},
                                  {"optimizer.3", "--clip"},
                                  {"optimizer.4", "--average"},
                                  {"rule", "--optimizer"},
                                  {"net.vocabulary", "the tokenizer's tokens (--data, --tokenizer)"},
                                  {"text", "the text's fingerprint (--data, --tokenizer, --validation)"}};
  return option_of_float_field(field, named);
}

// A worker of a job is a run of its own, whose folder is new where its machine is.
void take_own_folder(mpi::Comm& comm, GptSettings& settings) {
  settings.out = comm.broadcast_text(settings.out);
  if (settings.local.number() == 0 || !settings.local.is_first()) return;
  const std::string folder = settings.local.own_folder(settings.out);
  settings.resume = settings.resume && run::has_run(folder);
  train::check_run_folder(folder, settings.resume);
}

// Reads the options; with --resume those of the run fill in what was not given.
bool read_options(Session& session, std::span<const std::string> args, Options& options, GptSettings& settings) {
  settings.declare(options, true);
  if (!read_with_resume(session, args, options)) return false;
  if (settings.data.empty())
    fail(ErrorKind::usage, "--data: missing; expected a file of text or a folder of `bitloom data text`");
  if (!fs::is_directory(settings.data) && !data::is_json_lines(settings.data) && options.is_asked_for("field")) {
    fail(ErrorKind::usage, "--field: {} has no effect: {} is plain text; expected a .jsonl file", settings.field,
         settings.data);
  }
  if (fs::is_directory(settings.data)) {
    for (const char* option : {"tokenizer", "validation", "split-seed", "documents", "field"}) {
      if (options.source(option) != Options::Source::command_line) continue;
      fail(ErrorKind::usage, "--{}: '{}'; {} is a folder of tokens, in which that is settled; expected it with a file of text",
           option, options.raw(option), settings.data);
    }
  }
  if (settings.out.empty()) settings.out = default_folder(settings.net);
  session.on_root([&] { train::check_run_folder(settings.out, settings.resume); });
  settings.data = fs::absolute(settings.data).lexically_normal().string();
  settings.local.settle(session.comm);
  for (const auto& [option, ways] : {std::pair("tensor", settings.layout.tensor), {"pipeline", settings.layout.pipeline}}) {
    if (settings.local.is_local() && ways != 1) {
      fail(ErrorKind::usage, "--{}: {} with --exchange local, whose workers are data-parallel processes; expected 1", option,
           ways);
    }
  }
  if (settings.local.is_local() && settings.layout.shard != "none") {
    fail(ErrorKind::usage, "--shard: {} with --exchange local; expected none", settings.layout.shard);
  }
  if (settings.local.is_job()) {
    session.comm.together([&] { take_own_folder(session.comm, settings); });
  }
  return true;
}

// Every process reads it; all must have the same.
TextSource open_shared_text(Session& session, const GptSettings& settings) {
  TextSource source = session.comm.together([&] { return open_text(session.terminal, settings); });
  const bool is_same = session.comm.broadcast_text(source.fingerprint) == source.fingerprint;
  session.comm.check(is_same ? "" : fmt::format("--data: {}: another text than that of rank 0", settings.data),
                     ErrorKind::data);
  return source;
}

// Training and evaluation take their micro-batches from here: training those of step S from chunk S x batch on, evaluation,
// which is "step" 0 of the validation text, one after the other.
class GptTraining {
 public:
  GptTraining(Session& session, GptSettings& settings, const Options& options, const Threads& threads)
      : session_(session),
        settings_(settings),
        options_(options),
        engine_(session.comm.together([&] { return choose_device(settings.device); }), settings.backend),
        text_(open_shared_text(session, settings)),
        config_(settings.make_config(text_.tokenizer->size())),
        model_(plan::describe_gpt(config_)),
        worker_(settings.local.is_job() ? settings.local.make_worker(session.comm) : mpi::Comm()),
        grid_(settings.layout.make_grid(settings.local.is_job() ? worker_ : session.comm)),
        group_(grid_.tensor()),
        net_(config_, 0, &group_),
        sequences_(text_, config_, settings) {
    settings.check_keep(options, sequences_.validation_count() != 0);
    train::Session::Options all;
    all.train = settings.make_options();
    (void)choose_dtype(engine_, settings.values);
    limit_memory(engine_, settings);
    const std::uint64_t memory = memory_for(settings, threads, engine_.device());
    all.batch = settings.batch;
    all.choose_micro_batch = [memory, this](std::size_t share) {
      plan::FloatCluster cluster;
      cluster.memory = memory;
      return plan::choose_micro_batch(model_, grid_.shape(), plan_options(settings_.micro_batch_of(share).value_or(0)), cluster,
                                      settings_.enough_tokens(), GptSettings::savers);
    };
    all.memory_hint = [this](std::size_t sequences) {
      return fmt::format(
          "{} at once were predicted to take {}; expected a smaller --micro-batch, --activation-bits, "
          "--recompute block, or a smaller net",
          sequences, memory_text(sequences));
    };
    all.make_task = [this](std::size_t sequences) {
      return std::make_unique<models::LanguageTask>(
          net_, sequences,
          [this, sequences](std::uint64_t step, std::uint64_t micro_batch, std::span<std::int32_t> inputs,
                            std::span<std::int32_t> targets) {
            const std::uint64_t first = micro_batch * sequences;
            if (training_session_ != nullptr && training_session_->evaluates()) {
              sequences_.read_validation(first, inputs, targets);
            } else {
              sequences_.read_training(step * settings_.batch + first, inputs, targets);
            }
          });
    };
    all.layout = settings.layout.make_layout(grid_, net_.layers());
    all.layout.recompute_stages = settings.recompute == "stage";
    if (settings.local.is_job()) settings.resume = worker_.flag_any(worker_.is_root() && settings.resume);
    training_session_ = std::make_unique<train::Session>(engine_, std::move(all));
    if (!settings.init.empty() && !training_session_->goes_on(folder(), settings.resume)) initialise();
  }

  void run();

 private:
  std::string folder() const { return settings_.local.own_folder(settings_.out); }
  std::string memory_text(std::size_t sequences);
  plan::FloatOptions plan_options(std::size_t sequences);
  std::size_t micro_batch() const { return training_session_->micro_batch(); }
  const train::TrainOptions& train_options() const { return training_session_->train_options(); }

  // Rank 0 has the file.
  void initialise() {
    std::optional<TensorReader> file;
    session_.on_root([&] {
      const fs::path path = find_model(settings_.init);
      file = TensorReader::open(path, Checksum::required);
      const models::GptConfig config = models::config_of(file->metadata, path.string());
      if (config.parameters() != config_.parameters() || config.width != config_.width) {
        fail(ErrorKind::data, "--init: {}: a net of other sizes: {}; expected {}", path.string(), to_json(config).dump(),
             to_json(config_).dump());
      }
      // The rows of tokens mean nothing under another tokenizer, and padding may hide that there are more or fewer of them.
      if (const auto own = models::tokenizer_of_file(*file, path.string());
          data::tokenizer_hash(*own) != data::tokenizer_hash(*text_.tokenizer)) {
        fail(ErrorKind::data, "--init: {}: its tokenizer ({}, {} tokens) is not that of the text ({}, {} tokens)",
             path.string(), own->kind(), own->size(), text_.tokenizer->kind(), text_.tokenizer->size());
      }
    });
    if (settings_.local.number() > 0) return;  // takes over the first worker's when it joins
    std::optional<models::SavedParameters> parameters;
    if (file) parameters.emplace(*file);
    training_session_->trainer().load_model(parameters ? &*parameters : nullptr);
  }

  train::RunOptions run_options();
  void announce(double peak);
  void choose_samples(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress);
  void summarise(const train::RunResult& result);

  Session& session_;
  GptSettings& settings_;
  const Options& options_;
  nn::Engine engine_;
  TextSource text_;
  models::GptConfig config_;
  plan::FloatModel model_;
  mpi::Comm worker_;  // of a job
  mpi::Grid grid_;
  train::TensorGroup group_;
  models::Gpt net_;
  GptSequences sequences_;
  std::unique_ptr<train::Session> training_session_;
  std::optional<TextSamples> samples_;
};

train::RunOptions GptTraining::run_options() {
  train::RunOptions run = settings_.run_options(options_);
  run.folder = folder();
  run.may_be_done = settings_.local.number() > 0;  // while the first worker is not
  run.steps = settings_.steps;
  run.may_change_steps = options_.is_asked_for("steps");
  if (run.evaluate_every == 0) run.evaluate_every = std::max<std::size_t>(1, settings_.steps / 20);
  run.identity = identity_of(settings_, config_, train_options(), text_);
  run.field_name = &gpt_option;
  run.unit = "tokens";
  // A multiplication and an addition each; the backward pass has two products for each of the forward's (Shoeybi et al. 2019,
  // section 5.1), what is computed again is not counted.
  run.operations_per_target = 3 * model_.operations() / static_cast<double>(config_.context);
  run.peak_operations = measured_peak(engine_, settings_.dtype(), settings_.local.is_job() ? worker_ : session_.comm);
  run.start = {{"version", version},
               {"command", session_.command_line},
               {"kind", "gpt"},
               {"net", to_json(config_)},
               {"parameters", config_.parameters()},
               {"activation_bits", config_.activation_bits},
               {"recompute", settings_.recompute},
               {"batch", settings_.batch},
               {"micro_batch", micro_batch()},
               {"processes", session_.comm.size()},
               {"dtype", settings_.values},
               {"master_weights", settings_.master_weights},
               {"merge_dropout", settings_.merge_dropout},
               {"train_tokens", text_.train.size()},
               {"validation_tokens", text_.validation.size()},
               {"peak_operations", run.peak_operations},
               {"operations_per_token", run.operations_per_target},
               // In place of given values that stand for what the net or the run says.
               {"options",
                {{"layers", config_.layers},
                 {"heads", config_.heads},
                 {"width", config_.width},
                 {"vocabulary-multiple", config_.vocabulary_multiple},
                 {"dropout", config_.dropout},
                 {"micro-batch", micro_batch()},
                 {"learning-rate", train_options().rate.peak},
                 {"warmup", train_options().rate.warmup},
                 {"evaluate-every", run.evaluate_every}}}};
  add_quantiser(config_.activation_quantiser, run.start);
  return run;
}

void GptTraining::announce(double peak) {
  Terminal& terminal = session_.terminal;
  terminal.print("net '{}': {} parameters, {} layers of width {}, context {}; {} tokenizer, {} tokens", settings_.net,
                 format_count(config_.parameters()), config_.layers, config_.width, config_.context, text_.tokenizer->kind(),
                 config_.vocabulary);
  terminal.print("text: {} training tokens in {} documents, {} validation tokens", format_count(text_.train.size()),
                 format_count(text_.train.documents()), format_count(text_.validation.size()));
  if (settings_.merge_dropout != 0) {
    terminal.print("merge dropout {}: every epoch has other tokens of the same text, about {} of them", settings_.merge_dropout,
                   format_count(sequences_.training_count() * config_.context));
  }
  const int data_ranks = grid_.shape().data;
  terminal.print("{} steps of {} sequences ({} at once{}), {}, backend {}, matmul peak {:.0f} GFLOP/s, run folder {}",
                 settings_.steps, settings_.batch, micro_batch(),
                 data_ranks == 1 ? "" : fmt::format(" in each of {} processes", data_ranks), settings_.values,
                 engine_.backend_name(), 1e-9 * peak, settings_.out);
  if (const std::string layout = settings_.layout.described(grid_); !layout.empty()) terminal.print("{}", layout);
  settings_.layout.announce_compression(terminal, grid_, model_, "plan gpt");
  if (settings_.local.is_local()) terminal.print("{}", settings_.local.described(config_.parameters()));
  terminal.print("memory: {}", memory_text(micro_batch()));
}

plan::FloatOptions GptTraining::plan_options(std::size_t sequences) {
  plan::FloatOptions options = planned_training(settings_, sequences);
  settings_.layout.add_to(options, net_.layers());
  return options;
}

std::string GptTraining::memory_text(std::size_t sequences) {
  const plan::FloatPlan plan = plan::plan_grid(model_, grid_.shape(), plan_options(sequences), plan::FloatCluster());
  return cli::memory_text(plan.memory()) + (grid_.shape().ranks() == 1 ? "" : " (the process that takes most, about)");
}

// Where every process has the whole net. Of a job's workers that train by themselves the first draws; all look at the options.
void GptTraining::choose_samples(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) {
  const std::initializer_list<const char*> names = {"sample-every", "sample-prompt", "sample-tokens"};
  settings_.layout.refuse_samples(options_, settings_.samples.every, names);
  if (!settings_.layout.is_whole()) return;
  // Nothing fits beside the end of a document.
  if (config_.context == 1 && std::ranges::none_of(names, [&](const char* name) { return options_.is_asked_for(name); }))
    return;
  samples_.emplace(settings_.samples, *text_.tokenizer, engine_, net_);
  // While one process draws, all wait.
  const std::uint64_t every = samples_->steps_between(
      settings_.steps, settings_.batch * config_.context / static_cast<std::size_t>(grid_.shape().data));
  if (every == 0 || (settings_.local.is_job() && settings_.local.number() != 0)) return;
  run.sample_every = every;
  hooks.sample = [this, &progress](const train::SignOfLife& alive) {
    Json line = samples_->draw(*training_session_, alive);
    if (line.contains("text")) progress.line(fmt::format("  \"{}\"", in_one_line(line["text"].get<std::string>(), 140)));
    return line;
  };
}

void GptTraining::run() {
  train::RunOptions options = run_options();
  announce(options.peak_operations);
  session_.continuation = continuation_of("gpt", settings_.out);
  LoggedProgress progress(session_.terminal, fs::path(folder()) / log_file);
  train::RunHooks hooks;
  // Worker 0 alone evaluates what all workers share.
  if (settings_.local.number() == 0 && sequences_.validation_count() != 0) {
    hooks.evaluate = [this](const train::SignOfLife&) {  // the trainer gives signs itself
      return train::Evaluated{training_session_->evaluate(sequences_.validation_count()), {}};
    };
  }
  choose_samples(options, hooks, progress);
  std::optional<LocalTraining> local;
  if (settings_.local.is_local()) {
    LocalRun run{.model = {{"net", to_json(config_)}, {"tokenizer", data::tokenizer_hash(*text_.tokenizer)}},
                 .field_name = &gpt_option,
                 .targets = settings_.batch * config_.context,
                 .steps = settings_.steps,
                 .out = settings_.out,
                 .resume = settings_.resume};
    local.emplace(session_.comm, settings_.local, training_session_->trainer(), std::move(run), progress);
    local->attach(options, hooks);
  }
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, net_.config(), *text_.tokenizer); };
  const train::RunResult result = training_session_->run(options, hooks, progress);
  if (settings_.local.is_job()) {
    if (session_.comm.is_root()) summarise(result);
    LocalTraining::wait_for_first(session_.comm);
  } else {
    session_.on_root([&] { summarise(result); });
  }
  for (const std::string& note : engine_.take_notes()) session_.terminal.note(note);
}

void GptTraining::summarise(const train::RunResult& result) {
  Terminal& terminal = session_.terminal;
  terminal.print("\ndone in {}: {} tokens, {:.0f} tokens/s over all", format_duration(result.seconds),
                 format_count(result.targets), static_cast<double>(result.targets) / std::max(result.seconds, 1e-9));
  if (result.targets != 0) terminal.print("  {:<22}{:.4f} nats per token", "training loss", result.training_loss);
  if (result.last_loss) {
    terminal.print("  {:<22}{:.4f} nats per token, perplexity {:.2f}; best {:.4f} after step {}", "validation loss",
                   *result.last_loss, std::exp(*result.last_loss), *result.best_loss, result.best_step);
  }
  print_model_and_memory(terminal, settings_.out, engine_, result);
  terminal.print("next:\n  bitloom sample {} --prompt TEXT\n  bitloom eval {} --data FILE\n  bitloom report {}", settings_.out,
                 settings_.out, settings_.out);
}

}  // namespace

int train_gpt(Session& session, std::span<const std::string> args) {
  GptSettings settings;
  Options options(
      "bitloom train gpt --data FILE|FOLDER [--net NAME] [--out FOLDER] [options]",
      "Trains a GPT-style transformer to tell the next token of a text, and writes it to FOLDER/model.safetensors.\n"
      "Under mpirun the processes share the sequences of every step, or with --exchange local each trains by itself and they\n"
      "share what they learned; each needs the text, rank 0 has the run folder.\n"
      "Ctrl-C or SIGTERM leaves a checkpoint that `bitloom train gpt --resume --out FOLDER` continues to the same result.");
  if (!read_options(session, args, options, settings)) return exit_done;
  set_watchdog(session.comm, settings.watchdog_seconds);
  if (is_finished(session, options, settings, settings.steps, "--steps")) return exit_done;
  const Threads threads = choose_threads(session.comm);
  catch_stop_signals();
  const NoticeWatch notice(settings.notice_command);
  GptTraining(session, settings, options, threads).run();
  return exit_done;
}

}  // namespace bitloom::cli
