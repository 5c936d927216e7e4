// bitloom train clip: options, pairs and run folder in, train::Session, a summary out.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/clip_options.h"
#include "cli/command.h"
#include "cli/device.h"
#include "cli/field_names.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/signals.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/version.h"
#include "data/pairs/pair_batches.h"
#include "models/clip/clip_task.h"
#include "models/clip/model_file.h"
#include "models/clip/scores.h"
#include "models/model_kind.h"
#include "models/saved_values.h"
#include "train/memory.h"
#include "train/session.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The options that set what identity() names.
std::string clip_option(const std::string& field) {
  static const FieldOptions named{{"data", "the pairs' content (--data, --validation, --split-seed)"},
                                  {"tokenizer", "the captions' tokenizer (--tokenizer, --vocabulary, --data)"},
                                  {"net", "--net, --side or --dropout"},
                                  {"peak", "--learning-rate"},
                                  {"optimizer", "--beta1, --beta2, --weight-decay, --clip or --average"}};
  return option_of_float_field(field, named);
}

class ClipTraining {
 public:
  ClipTraining(Session& session, ClipSettings& settings, const Options& options, const data::PairSplits& data)
      : session_(session),
        settings_(settings),
        options_(options),
        data_(data),
        engine_(session.comm.together([&] { return choose_device(settings.device); }), settings.backend),
        values_(choose_dtype(engine_, settings.values)),
        tokenizer_(settings.captions.make(session, data.train)),
        net_(std::make_shared<nn::Sequence>()),
        towers_(
            net_->emplace<models::ClipTowers>(session.comm.together([&] { return settings.make_config(tokenizer_->size()); }))),
        grid_(session.comm, {session.comm.size(), 1, 1}) {
    if (settings.memory != 0) engine_.pool().set_limit(settings.memory);
    std::uint64_t before = 0;
    session.on_root([&] { before = settings.resume ? micro_batch_of_run(settings.out, settings.batch) : 0; });
    session.comm.broadcast(std::span<std::uint64_t>(&before, 1));
    micro_batch_before_ = before;
    train::Session::Options all;
    all.train = settings.make_options();
    all.batch = settings.batch;
    all.choose_micro_batch = [this](std::size_t share) { return choose_micro_batch(share); };
    all.memory_hint = [this](std::size_t pairs) {
      return fmt::format("{} pairs at once were predicted to take {}; expected a smaller --micro-batch or a smaller net", pairs,
                         format_bytes(memory_of(pairs)));
    };
    all.make_task = [this](std::size_t pairs) { return make_task(pairs); };
    all.layout.grid = &grid_;
    training_ = std::make_unique<train::Session>(engine_, std::move(all));
    if (!settings.init.empty() && !training_->goes_on(settings.out, settings.resume)) initialise();
  }

  void run();

 private:
  const models::ClipConfig& config() const { return towers_.config(); }
  std::uint64_t parameters() {
    std::uint64_t all = 0;
    for (const nn::Parameter* parameter : nn::parameters_of(*net_)) all += parameter->shape.size();
    return all;
  }

  std::uint64_t memory_of(std::size_t pairs) {
    const data::ImageShape& image = config().image.image;
    const nn::Shape input = {pairs, image.height, image.width, image.channels};
    return train::predict_memory(*net_, input, settings_.make_options()).total() + 3 * input.size() * dtype_size(values_);
  }

  std::size_t choose_micro_batch(std::size_t share) const {
    const bool fits = micro_batch_before_ != 0 && share % micro_batch_before_ == 0;
    return settings_.micro_batch_of(share).value_or(fits ? micro_batch_before_ : share);
  }

  std::unique_ptr<train::Task> make_task(std::size_t pairs) {
    data::PairBatches::Options options;
    options.batch = settings_.batch;
    options.micro_batch = pairs;
    options.side = settings_.side;
    options.crop = data::CropKind::transformer;  // never mirrored: captions may say left and right
    options.seed = settings_.seed;
    options.ranks = session_.comm.size();
    batches_ = std::make_unique<data::PairBatches>(data_.train, options);
    return std::make_unique<models::ClipTask>(
        engine_, net_, towers_, pairs, values_, [this](std::uint64_t step, std::uint64_t micro_batch) {
          const data::PairBatch batch = batches_->get(step, micro_batch);
          return models::ClipBatch{models::clip_pixels(batch.images), texts_of(data_.train, batch.indexes)};
        });
  }

  std::vector<std::int32_t> texts_of(const data::Pairs& pairs, std::span<const std::size_t> indexes) const {
    return models::clip_texts(config(), *tokenizer_, captions_of(pairs, indexes));
  }

  // Rank 0 has the file.
  void initialise() {
    std::optional<TensorFile> file;
    session_.on_root([&] {
      const fs::path path = find_model(settings_.init);
      const models::LoadedClip other = models::load_clip(engine_, path);
      if (to_json(other.net->config()) != to_json(config()) ||
          data::tokenizer_hash(*other.tokenizer) != data::tokenizer_hash(*tokenizer_)) {
        fail(ErrorKind::data, "--init: {}: a net of other sizes or with another tokenizer: {}; expected {}", path.string(),
             to_json(other.net->config()).dump(), to_json(config()).dump());
      }
      file.emplace();
      models::add_values(engine_, *file, *other.net, DType::f32);
    });
    training_->trainer().load_model(file ? &*file : nullptr);
  }

  Json identity() const;
  train::RunOptions run_options();
  void announce(double peak);
  train::Evaluated evaluate(const train::SignOfLife& alive);
  void summarise(const train::RunResult& result);

  Session& session_;
  ClipSettings& settings_;
  const Options& options_;
  const data::PairSplits& data_;
  nn::Engine engine_;
  DType values_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::shared_ptr<nn::Sequence> net_;
  models::ClipTowers& towers_;
  mpi::Grid grid_;
  std::size_t micro_batch_before_ = 0;  // of the run that goes on, which keeps it; 0: none
  std::unique_ptr<data::PairBatches> batches_;
  std::unique_ptr<train::Session> training_;
  models::Retrieval found_;
};

Json ClipTraining::identity() const {
  Json json = settings_.identity(training_->train_options());
  json["net"] = to_json(config());
  json["activation_bits"] = config().activation_bits;
  json["micro_batch"] = training_->micro_batch();
  json["tokenizer"] = data::tokenizer_hash(*tokenizer_);
  json["data"] = content_hash(data_.train);
  return json;
}

train::RunOptions ClipTraining::run_options() {
  train::RunOptions run = settings_.run_options(options_);
  run.steps = settings_.steps;
  run.may_change_steps = options_.is_asked_for("steps");
  if (run.evaluate_every == 0) run.evaluate_every = std::max<std::size_t>(1, settings_.steps / 20);
  run.identity = identity().dump();
  run.field_name = &clip_option;
  run.unit = "pairs";
  const data::ImageShape& image = config().image.image;
  run.operations_per_target = 3 * net_->cost({1, image.height, image.width, image.channels});
  run.peak_operations = measured_peak(engine_, values_, session_.comm);
  run.start = {{"version", version},
               {"command", session_.command_line},
               {"kind", models::clip_kind},
               {"net", to_json(config())},
               {"parameters", parameters()},
               {"batch", settings_.batch},
               {"micro_batch", training_->micro_batch()},
               {"processes", session_.comm.size()},
               {"dtype", settings_.values},
               {"train_pairs", data_.train.size()},
               {"validation_pairs", data_.validation.size()},
               {"peak_operations", run.peak_operations},
               {"operations_per_pair", run.operations_per_target}};
  return run;
}

void ClipTraining::announce(double peak) {
  Terminal& terminal = session_.terminal;
  terminal.print("net '{}': {} parameters, images of {} x {} pixels, {} text tokens of {} ({} tokenizer), {} numbers each",
                 settings_.net, format_count(parameters()), settings_.side, settings_.side, config().text,
                 config().text_vocabulary, tokenizer_->kind(), config().embedding());
  terminal.print("data '{}': {} training, {} validation pairs", settings_.data.spec, data_.train.size(),
                 data_.validation.size());
  const int processes = session_.comm.size();
  terminal.print(
      "{} steps of {} pairs, {} of them to be told apart{}, {}, backend {}, matmul peak {:.0f} GFLOP/s, run folder {}",
      settings_.steps, settings_.batch, training_->micro_batch(),
      processes == 1 ? "" : fmt::format(", in {} processes", processes), settings_.values, engine_.backend_name(), 1e-9 * peak,
      settings_.out);
}

// All validation pairs against one another, on every process alike.
train::Evaluated ClipTraining::evaluate(const train::SignOfLife& alive) {
  constexpr std::size_t at_once = 64;
  models::ClipEncoder encoder(engine_, towers_, *tokenizer_, values_);
  std::vector<double> images;
  std::vector<double> texts;
  double temperature = 0;
  training_->trainer().averaged([&] {
    temperature = 1 / models::clip_factor(engine_, towers_);
    data::for_centre_batches(data_.validation, data::first_indexes(data_.validation.size()), settings_.side, at_once,
                             [&](const data::PairBatch& batch, std::size_t /*done*/) {
                               const std::vector<double> some = encoder.images(batch.images);
                               const std::vector<double> others = encoder.texts(captions_of(data_.validation, batch.indexes));
                               images.insert(images.end(), some.begin(), some.end());
                               texts.insert(texts.end(), others.begin(), others.end());
                               alive();
                             });
  });
  found_ = models::retrieval(images, texts, config().embedding());
  const auto pairs = static_cast<std::uint64_t>(found_.pairs);
  // The factor of the start: that of the net would reward being sure.
  const models::ClipLoss loss = models::clip_loss(images, texts, config().embedding(), std::log(1 / 0.07), 1, false);
  const double sum = std::accumulate(loss.losses.begin(), loss.losses.end(), 0.0);
  train::Evaluated found{{sum, pairs}, {}, {}, {}};
  found.more = {{"texts_at_1", found_.texts_at_1},
                {"texts_at_5", found_.texts_at_5},
                {"images_at_1", found_.images_at_1},
                {"images_at_5", found_.images_at_5},
                {"temperature", temperature}};
  found.text = fmt::format("own caption nearest of {}: {:.1f}%, of the 5 nearest {:.1f}%", pairs, 100 * found_.texts_at_1,
                           100 * found_.texts_at_5);
  return found;
}

void ClipTraining::run() {
  const train::RunOptions options = run_options();
  announce(options.peak_operations);
  train::RunHooks hooks;
  if (data_.validation.size() != 0) hooks.evaluate = [this](const train::SignOfLife& alive) { return evaluate(alive); };
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, config(), *tokenizer_); };
  session_.continuation = continuation_of("clip", settings_.out);
  LoggedProgress progress(session_.terminal, fs::path(settings_.out) / log_file);
  const train::RunResult result = training_->run(options, hooks, progress);
  session_.on_root([&] { summarise(result); });
  for (const std::string& note : engine_.take_notes()) session_.terminal.note(note);
}

void ClipTraining::summarise(const train::RunResult& result) {
  Terminal& terminal = session_.terminal;
  terminal.print("\ndone in {}: {} pairs, {:.0f} of them per second over all", format_duration(result.seconds),
                 format_count(result.targets), static_cast<double>(result.targets) / std::max(result.seconds, 1e-9));
  terminal.print("  {:<22}{:.4f} nats", "training loss", result.training_loss);
  if (found_.pairs != 0) {
    terminal.print("  {:<22}{:.1f}% of {} captions (chance {:.1f}%), among the 5 nearest {:.1f}%", "retrieval at the end",
                   100 * found_.texts_at_1, found_.pairs, 100.0 / static_cast<double>(found_.pairs), 100 * found_.texts_at_5);
  }
  print_model_and_memory(terminal, settings_.out, engine_, result);
  terminal.print(
      "next:\n  bitloom eval {0}\n  bitloom report {0}\n  bitloom sample DALLE-RUN --prompt TEXT --count 32 --rerank clip "
      "--clip {0}",
      settings_.out);
}

}  // namespace

int train_clip(Session& session, std::span<const std::string> args) {
  ClipSettings settings;
  Options options(
      "bitloom train clip --data PATH [--net NAME] [--out FOLDER] [options]",
      "Trains a convolutional net and a transformer to tell which caption belongs to which image, and writes them to\n"
      "FOLDER/model.safetensors; `bitloom sample --rerank clip` ranks images by them. Under mpirun the processes share the\n"
      "pairs of every step; rank 0 has the run folder. Ctrl-C or SIGTERM leaves a checkpoint that\n"
      "`bitloom train clip --resume --out FOLDER` continues to the same result.");
  settings.declare(options);
  if (!read_with_resume(session, args, options)) return exit_done;
  if (settings.data.spec.empty()) fail(ErrorKind::usage, "--data: missing; expected a folder of images with captions");
  if (settings.out.empty()) settings.out = default_folder(settings.net);
  session.on_root([&] { train::check_run_folder(settings.out, settings.resume); });
  settings.data.spec = fs::absolute(settings.data.spec).lexically_normal().string();
  choose_threads(session.comm);
  catch_stop_signals();
  const data::PairSplits data = session.comm.together([&] { return load_pairs(settings.data, session.terminal); });
  if (is_finished(session, options, settings, settings.steps, "--steps")) return exit_done;
  const NoticeWatch notice(settings.notice_command);
  ClipTraining(session, settings, options, data).run();
  return exit_done;
}

}  // namespace bitloom::cli
