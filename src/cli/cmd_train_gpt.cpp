// bitloom train gpt: options, text and run folder in, FloatTraining, a summary out.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "cli/command.h"
#include "cli/field_names.h"
#include "cli/float_training.h"
#include "cli/gpt_options.h"
#include "cli/gpt_sequences.h"
#include "cli/local_training.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/text_options.h"
#include "cli/text_source.h"
#include "cli/transformer_training.h"
#include "core/error.h"
#include "data/text/documents.h"
#include "models/gpt/language_task.h"
#include "models/gpt/model_file.h"
#include "nn/activation.h"
#include "plan/float_grids.h"
#include "train/parallel/tensor.h"

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

// Local steps: eight workers learned more with 2.8 times the rate, and less with 4 times (models/RESULTS.md).
constexpr double most_gpt_rate_factor = 3;
// The size of Muon's steps does not depend on the batch.
constexpr double most_muon_rate_factor = 1;

// Refuses options that do not fit together, and settles where this process's run goes.
void settle(Session& session, const Options& options, GptSettings& settings) {
  if (!fs::is_directory(settings.data) && !data::is_json_lines(settings.data) && options.is_chosen("field")) {
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
  settings.deep.check_init(options, settings);
  if (!settings.resume) {
    session.comm.together([&] {
      if (!fs::is_regular_file(settings.data)) return;  // one of several hosts may lack it, which is said later
      const data::TextInput input{{settings.data}, settings.documents, settings.field};
      check_split_seed(options, "split-seed", input, parse_share(settings.validation));
    });
  }
  settings.layout.settle_compression(options, settings.resume);
  settings.settle_variance_limit(options);
  settings.data = kept_path(settings.data);
  if (options.is_asked_for("tokenizer")) settings.tokenizer = kept_tokenizer(settings.tokenizer);
  const train::TrainOptions training = settings.make_options();
  const bool goes_on = settings.resume;  // with its rate, which is 0, for that of one process, in those of older programs
  settle_local(session, settings.local, settings.layout, training.optimizer.average, settings);
  if (settings.local.is_local() && settings.rate == 0 && !goes_on) {
    settings.rate = settings.local.choose_rate(
        training.rate.peak, training.optimizer.rule == "muon" ? most_muon_rate_factor : most_gpt_rate_factor);
  }
}

// Every process reads it; all must have the same.
TextSource open_shared_text(Session& session, const GptSettings& settings) {
  TextSource source = session.comm.together([&] { return open_text(session.terminal, settings); });
  const bool is_same = session.comm.broadcast_text(source.fingerprint) == source.fingerprint;
  session.comm.check(is_same ? "" : fmt::format("--data: {}: another text than that of rank 0", settings.data),
                     ErrorKind::data);
  return source;
}

constexpr TrainedModel::Traits gpt_traits{
    .kind = models::gpt_kind,
    .examples = "sequences",
    .targets = "tokens",
    .speed = "tokens/s",
    .loss_unit = "nats per token",
    .savers = "a smaller --micro-batch, --activation-bits, --recompute block, or a smaller net",
    .next = "bitloom sample {0} --prompt TEXT\n  bitloom eval {0} --data FILE\n  bitloom report {0}",
    .option_of = &gpt_option};

class TrainedGpt final : public TrainedModel {
 public:
  TrainedGpt(Session& session, GptSettings& settings, const Options& options, const Threads& threads)
      : TrainedModel(gpt_traits, session, settings, options, threads),
        settings_(settings),
        options_(options),
        text_(open_shared_text(session, settings)),
        config_(settings.make_config(text_.tokenizer->size())),
        model_(plan::describe_gpt(config_)),
        worker_(settings.local.is_job() ? settings.local.make_worker(session.comm) : mpi::Comm()),
        grid_(settings.layout.make_grid(settings.local.is_job() ? worker_ : session.comm)),
        group_(grid_.tensor()),
        net_(config_, 0, &group_),
        sequences_(text_, config_, settings) {
    settings.check_evaluation(options, sequences_.validation_count() != 0);
    if (settings.local.is_job()) settings.resume = worker_.flag_any(worker_.is_root() && settings.resume);
  }

  train::TrainOptions train_options() const override { return settings_.make_options(); }
  std::uint64_t steps() const override { return settings_.steps; }
  train::Layout layout() override { return layout_of(settings_, grid_, net_.layers()); }

  std::size_t choose_micro_batch(std::size_t share, std::uint64_t memory) override {
    return cli::choose_micro_batch(settings_, model_, grid_, net_.layers(), share, memory, kept_micro_batch(share));
  }

  std::string memory_text(std::size_t sequences) override {
    const plan::FloatOptions options = planned_in_grid(settings_, net_.layers(), sequences);
    const plan::FloatPlan plan = plan::plan_grid(model_, grid_.shape(), options, plan::FloatCluster());
    return cli::memory_text(plan.memory()) + (grid_.shape().ranks() == 1 ? "" : " (the process that takes most, about)");
  }

  // Training and evaluation take their micro-batches from here: training those of step S from chunk S x batch on, evaluation,
  // which is "step" 0 of the validation text, one after the other.
  std::unique_ptr<train::Task> make_task(std::size_t sequences) override {
    return std::make_unique<models::LanguageTask>(
        net_, sequences,
        [this, sequences](std::uint64_t step, std::uint64_t micro_batch, std::span<std::int32_t> inputs,
                          std::span<std::int32_t> targets) {
          const std::uint64_t first = micro_batch * sequences;
          if (is_evaluating()) {
            sequences_.read_validation(first, inputs, targets);
          } else {
            sequences_.read_training(step * settings_.batch + first, inputs, targets);
          }
        });
  }

  // The other workers of a job take over the first one's when they join.
  bool has_initial_values() const override { return TrainedModel::has_initial_values() && settings_.local.number() == 0; }
  std::unique_ptr<TensorSource> initial_values() override;
  std::string run_folder() const override { return settings_.local.own_folder(settings_.out); }

  void describe(train::RunOptions& run) override;
  void announce(double peak) override;
  void add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) override;
  void sum_up(const std::function<void()>& summary) override;
  void summarise(const train::RunResult& result) override;

 private:
  // The parameters in a model's file, which is read as they are asked for.
  class InitialValues final : public TensorSource {
   public:
    explicit InitialValues(TensorReader file) : file_(std::move(file)) {}
    const TensorReader& file() const { return file_; }
    Description describe(const std::string& name) const override { return parameters_.describe(name); }
    void read(const std::string& name, std::uint64_t from, std::span<std::byte> bytes) const override {
      parameters_.read(name, from, bytes);
    }

   private:
    TensorReader file_;
    models::SavedParameters parameters_{file_};
  };

  void choose_samples(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress);

  GptSettings& settings_;
  const Options& options_;
  TextSource text_;
  models::GptConfig config_;
  plan::FloatModel model_;
  mpi::Comm worker_;  // of a job
  mpi::Grid grid_;
  train::TensorGroup group_;
  models::Gpt net_;
  GptSequences sequences_;
  std::optional<TextSamples> samples_;
};

std::unique_ptr<TensorSource> TrainedGpt::initial_values() {
  const fs::path path = find_model(settings_.init);
  auto values = std::make_unique<InitialValues>(TensorReader::open(path, Checksum::required));
  const models::GptConfig config = models::config_of(values->file().metadata, path.string());
  const auto sizes = [](const models::GptConfig& c) {
    return std::tuple(c.layers, c.heads, c.width, c.context, c.padded_vocabulary(), c.parameters());
  };
  if (sizes(config) != sizes(config_) ||
      nn::find_activation(config.activation).name != nn::find_activation(config_.activation).name) {
    fail(ErrorKind::data, "--init: {}: a net of other sizes: {}; expected {}", path.string(), to_json(config).dump(),
         to_json(config_).dump());
  }
  // The rows of tokens mean nothing under another tokenizer, and padding may hide that there are more or fewer of them.
  if (const auto own = models::tokenizer_of_file(values->file(), path.string());
      data::tokenizer_hash(*own) != data::tokenizer_hash(*text_.tokenizer)) {
    fail(ErrorKind::data, "--init: {}: its tokenizer ({}, {} tokens) is not that of the text ({}, {} tokens)", path.string(),
         own->kind(), own->size(), text_.tokenizer->kind(), text_.tokenizer->size());
  }
  return values;
}

void TrainedGpt::describe(train::RunOptions& run) {
  const train::TrainOptions& training_options = training().train_options();
  run.may_be_done = settings_.local.number() > 0;  // while the first worker is not
  run.identity = identity_of(settings_, config_, training_options, text_);
  // A multiplication and an addition each; the backward pass has two products for each of the forward's (Shoeybi et al. 2019,
  // section 5.1), what is computed again is not counted.
  run.operations_per_target = 3 * model_.operations() / static_cast<double>(config_.context);
  run.start = {{"net", to_json(config_)},
               {"parameters", config_.parameters()},
               {"activation_bits", config_.activation_bits},
               {"recompute", settings_.recompute},
               {"master_weights", settings_.master_weights},
               {"merge_dropout", settings_.merge_dropout},
               {"train_tokens", text_.train.size()},
               {"validation_tokens", text_.validation.size()},
               {"operations_per_token", run.operations_per_target},
               // In place of given values that stand for what the net or the run says.
               {"options",
                {{"layers", config_.layers},
                 {"heads", config_.heads},
                 {"width", config_.width},
                 {"vocabulary-multiple", config_.vocabulary_multiple},
                 {"dropout", config_.dropout},
                 {"micro-batch", micro_batch()},
                 {"learning-rate", training_options.rate.peak},
                 {"warmup", training_options.rate.warmup},
                 {"evaluate-every", run.evaluate_every}}}};
  add_quantiser(config_.activation_quantiser, run.start);
}

void TrainedGpt::announce(double peak) {
  Terminal& terminal = session().terminal;
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
                 engine().backend_name(), 1e-9 * peak, settings_.out);
  if (const std::string layout = settings_.layout.described(grid_); !layout.empty()) terminal.print("{}", layout);
  settings_.layout.announce_compression(terminal, grid_, model_, "plan gpt");
  if (settings_.local.is_local()) terminal.print("{}", settings_.local.described(config_.parameters()));
  terminal.print("memory: {}", memory_text(micro_batch()));
}

// Where every process has the whole net. Of a job's workers that train by themselves the first draws; all look at the options.
void TrainedGpt::choose_samples(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) {
  const std::initializer_list<const char*> names = {"sample-every", "sample-prompt", "sample-tokens"};
  settings_.layout.refuse_samples(options_, settings_.samples.every, names);
  if (!settings_.layout.is_whole()) return;
  samples_.emplace(settings_.samples, *text_.tokenizer, engine(), net_);
  // While one process draws, all wait.
  const std::uint64_t every = samples_->steps_between(
      settings_.steps, settings_.batch * config_.context / static_cast<std::size_t>(grid_.shape().data));
  if (every == 0 || (settings_.local.is_job() && settings_.local.number() != 0)) return;
  run.sample_every = every;
  hooks.sample = [this, &progress](const train::SignOfLife& alive) {
    Json line = samples_->draw(training(), alive);
    if (line.contains("text")) progress.line(fmt::format("  \"{}\"", in_one_line(line["text"].get<std::string>(), 140)));
    return line;
  };
}

void TrainedGpt::add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) {
  // Worker 0 alone evaluates what all workers share.
  if (settings_.local.number() == 0 && sequences_.validation_count() != 0) {
    hooks.evaluate = [this](const train::SignOfLife&) {  // the trainer gives signs itself
      return train::Evaluated{training().evaluate(sequences_.validation_count()), {}};
    };
  }
  choose_samples(run, hooks, progress);
  if (settings_.local.is_local()) {
    LocalTraining::add_to(run, hooks, session().comm, settings_.local, training().trainer(),
                          {.model = {{"net", to_json(config_)}, {"tokenizer", data::tokenizer_hash(*text_.tokenizer)}},
                           .field_name = &gpt_option,
                           .targets = settings_.batch * config_.context,
                           .steps = settings_.steps,
                           .out = settings_.out,
                           .resume = settings_.resume},
                          progress);
  }
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, net_.config(), *text_.tokenizer); };
}

void TrainedGpt::sum_up(const std::function<void()>& summary) {
  if (!settings_.local.is_job()) return TrainedModel::sum_up(summary);
  LocalTraining::end_job(session().comm, summary);
}

void TrainedGpt::summarise(const train::RunResult& result) {
  if (!result.last_loss) return;
  session().terminal.print("  {:<22}{:.4f} nats per token, perplexity {:.2f}{}", "validation loss", *result.last_loss,
                           std::exp(*result.last_loss), best_text(result));
}

}  // namespace

int train_gpt(Session& session, std::span<const std::string> args) {
  GptSettings settings;
  Options options(
      "bitloom train gpt --data FILE|FOLDER [--net NAME] [--out FOLDER] [options]",
      "Trains a GPT-style transformer to tell the next token of a text, and writes it to FOLDER/model.safetensors.\n"
      "Under mpirun the processes share the sequences of every step, or with --exchange local each trains by itself and they\n"
      "share what they learned; each needs the text, rank 0 has the run folder.\n"
      "Ctrl-C or SIGTERM leaves a checkpoint that `bitloom train gpt --resume --out FOLDER` continues to the same result,\n"
      "or with --exchange local to one like it.");
  settings.declare(options, true);
  const NeededOption needed[] = {{"--data", settings.data, "a file of text or a folder of `bitloom data text`"}};
  const std::optional<Threads> threads = begin_training(session, args, options, settings, settings.net, needed);
  if (!threads) return exit_done;
  settle(session, options, settings);
  if (is_finished(session, options, settings, settings.steps, "--steps")) return exit_done;
  const NoticeWatch notice(settings.notice_command);
  TrainedGpt model(session, settings, options, *threads);
  FloatTraining(model).run();
  return exit_done;
}

}  // namespace bitloom::cli
