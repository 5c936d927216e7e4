// bitloom train clip: options, pairs and run folder in, FloatTraining, a summary out.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/clip_options.h"
#include "cli/field_names.h"
#include "cli/float_training.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "core/error.h"
#include "data/pairs/pair_batches.h"
#include "models/clip/clip_task.h"
#include "models/clip/model_file.h"
#include "models/clip/scores.h"
#include "models/config_json.h"
#include "models/model_kind.h"
#include "models/saved_values.h"
#include "train/memory.h"

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
                                  {"optimizer.0", "--optimizer"},
                                  {"optimizer", "--beta1, --beta2, --weight-decay, --clip or --average"}};
  return option_of_float_field(field, named);
}

constexpr TrainedModel::Traits clip_traits{.kind = models::clip_kind,
                                           .examples = "pairs",
                                           .targets = "pairs",
                                           .speed = "of them per second",
                                           .loss_unit = "nats",
                                           .savers = "a smaller --micro-batch or a smaller net",
                                           .next =
                                               "bitloom eval {0}{1}\n  bitloom report {0}\n  bitloom sample DALLE-RUN --prompt "
                                               "TEXT --count 32 --rerank clip --clip {0} --out grid.png",
                                           .option_of = &clip_option};

class TrainedClip final : public TrainedModel {
 public:
  TrainedClip(Session& session, ClipSettings& settings, const Options& options, const data::PairSplits& data,
              const Threads& threads)
      : TrainedModel(clip_traits, session, settings, options, threads),
        settings_(settings),
        data_(data),
        tokenizer_(settings.captions.make(session, data.train)),
        net_(std::make_shared<nn::Sequence>()),
        towers_(net_->emplace<models::ClipTowers>(
            session.comm.together([&] { return settings.make_config(tokenizer_->size()); }))) {}

  train::TrainOptions train_options() const override { return settings_.make_options(); }
  std::uint64_t steps() const override { return settings_.steps; }

  std::size_t choose_micro_batch(std::size_t share, std::uint64_t /*memory*/) override {
    const std::size_t kept = kept_micro_batch(share);
    if (settings_.micro_batch == "auto" && micro_batch_before() != kept) {
      fail(ErrorKind::usage,
           "the run in {} tells {} pairs apart at once; a process's share of the batch would be {}. Expected another number of "
           "processes",
           settings_.out, micro_batch_before(), share);
    }
    return settings_.micro_batch_of(share).value_or(kept != 0 ? kept : share);
  }

  std::string memory_text(std::size_t pairs) override {
    const data::ImageShape& image = config().image.image;
    const nn::Shape input = {pairs, image.height, image.width, image.channels};
    return format_bytes(train::predict_memory(*net_, input, settings_.make_options()).total() +
                        3 * input.size() * dtype_size(values()));
  }

  std::unique_ptr<train::Task> make_task(std::size_t pairs) override {
    data::PairBatches::Options options;
    options.batch = settings_.batch;
    options.micro_batch = pairs;
    options.side = settings_.side;
    options.crop = data::CropKind::transformer;  // never mirrored: captions may say left and right
    options.seed = settings_.seed;
    options.ranks = session().comm.size();
    batches_ = std::make_unique<data::PairBatches>(data_.train, options);
    return std::make_unique<models::ClipTask>(
        engine(), net_, towers_, pairs, values(), [this](std::uint64_t step, std::uint64_t micro_batch) {
          const data::PairBatch batch = batches_->get(step, micro_batch);
          return models::ClipBatch{models::clip_pixels(batch.images), texts_of(data_.train, batch.indexes)};
        });
  }

  std::unique_ptr<TensorSource> initial_values() override {
    const fs::path path = find_model(settings_.init);
    const models::LoadedClip other = models::load_clip(engine(), path);
    if (!models::have_same_parameters(to_json(other.net->config()), to_json(config())) ||
        data::tokenizer_hash(*other.tokenizer) != data::tokenizer_hash(*tokenizer_)) {
      fail(ErrorKind::data, "--init: {}: a net of other sizes or with another tokenizer: {}; expected {}", path.string(),
           to_json(other.net->config()).dump(), to_json(config()).dump());
    }
    auto file = std::make_unique<TensorFile>();
    models::add_values(engine(), *file, *other.net, DType::f32);
    return file;
  }

  void describe(train::RunOptions& run) override;
  void announce(double peak) override;
  void add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) override;
  bool holds_back() const override { return data_.validation.size() != 0; }
  void summarise(const train::RunResult& result) override;

 private:
  const models::ClipConfig& config() const { return towers_.config(); }
  std::uint64_t parameters() {
    std::uint64_t all = 0;
    for (const nn::Parameter* parameter : nn::parameters_of(*net_)) all += parameter->shape.size();
    return all;
  }

  std::vector<std::int32_t> texts_of(const data::Pairs& pairs, std::span<const std::size_t> indexes) const {
    return models::clip_texts(config(), *tokenizer_, captions_of(pairs, indexes));
  }

  Json identity();
  train::Evaluated evaluate(const train::SignOfLife& alive);

  ClipSettings& settings_;
  const data::PairSplits& data_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::shared_ptr<nn::Sequence> net_;
  models::ClipTowers& towers_;
  std::unique_ptr<data::PairBatches> batches_;
  models::Retrieval found_;
};

Json TrainedClip::identity() {
  Json json = settings_.identity(training().train_options());
  json["net"] = to_json(config());
  json["activation_bits"] = config().activation_bits;
  add_quantiser(config().activation_quantiser, json);
  json["micro_batch"] = micro_batch();
  json["tokenizer"] = data::tokenizer_hash(*tokenizer_);
  json["data"] = content_hash(data_.train);
  return json;
}

void TrainedClip::describe(train::RunOptions& run) {
  run.identity = identity().dump();
  const data::ImageShape& image = config().image.image;
  run.operations_per_target = 3 * net_->cost({1, image.height, image.width, image.channels});
  run.start = {{"net", to_json(config())},
               {"parameters", parameters()},
               {"train_pairs", data_.train.size()},
               {"validation_pairs", data_.validation.size()},
               {"operations_per_pair", run.operations_per_target}};
}

void TrainedClip::announce(double peak) {
  Terminal& terminal = session().terminal;
  terminal.print("net '{}': {} parameters, images of {} x {} pixels, {} text tokens of {} ({} tokenizer), {} numbers each",
                 settings_.net, format_count(parameters()), settings_.side, settings_.side, config().text,
                 config().text_vocabulary, tokenizer_->kind(), config().embedding());
  terminal.print("data '{}': {} training, {} validation pairs", settings_.data.spec, data_.train.size(),
                 data_.validation.size());
  if (session().comm.is_root()) {
    const auto caption = [&](std::size_t i) -> const std::string& { return data_.train[i].caption; };
    terminal.note(note_on_cut_captions(*tokenizer_, data_.train.size(), caption,
                                       config().text - 1));  // after the token that begins texts
  }
  const int processes = session().comm.size();
  terminal.print(
      "{} steps of {} pairs, {} of them to be told apart{}, {}, backend {}, matmul peak {:.0f} GFLOP/s, run folder {}",
      settings_.steps, settings_.batch, micro_batch(), processes == 1 ? "" : fmt::format(", in {} processes", processes),
      settings_.values, engine().backend_name(), 1e-9 * peak, settings_.out);
}

// All validation pairs against one another, on every process alike.
train::Evaluated TrainedClip::evaluate(const train::SignOfLife& alive) {
  constexpr std::size_t at_once = 64;
  models::ClipEncoder encoder(engine(), towers_, *tokenizer_, values());
  std::vector<double> images;
  std::vector<double> texts;
  double temperature = 0;
  training().trainer().averaged([&] {
    temperature = 1 / models::clip_factor(engine(), towers_);
    data::for_centre_batches(data_.validation, data::first_indexes(data_.validation.size()), settings_.side, at_once,
                             [&](const data::PairBatch& batch, std::size_t /*done*/) {
                               const std::vector<double> some = encoder.images(batch.images);
                               const std::vector<double> others = encoder.texts(captions_of(data_.validation, batch.indexes));
                               images.insert(images.end(), some.begin(), some.end());
                               texts.insert(texts.end(), others.begin(), others.end());
                               alive();
                             });
  });
  found_ = models::retrieval(models::ranks(images, texts, config().embedding(), equal_parts(data_.validation), alive));
  const auto pairs = static_cast<std::uint64_t>(found_.pairs);
  // The factor of the start: that of the net would reward being sure.
  const std::vector<double> losses = models::clip_losses(images, texts, config().embedding(), std::log(1 / 0.07), alive);
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  train::Evaluated found{{sum, pairs}, {}, {}, {}};
  found.more = {{"texts_at_1", found_.texts_at_1},
                {"texts_at_5", found_.texts_at_5},
                {"images_at_1", found_.images_at_1},
                {"images_at_5", found_.images_at_5},
                {"texts_by_chance", found_.texts_by_chance},
                {"images_by_chance", found_.images_by_chance},
                {"temperature", temperature}};
  found.text = fmt::format("own caption nearest of {}: {:.1f}%, of the 5 nearest {:.1f}%", pairs, 100 * found_.texts_at_1,
                           100 * found_.texts_at_5);
  return found;
}

void TrainedClip::add_hooks(train::RunOptions& /*run*/, train::RunHooks& hooks, ProgressSink& /*progress*/) {
  if (data_.validation.size() != 0) hooks.evaluate = [this](const train::SignOfLife& alive) { return evaluate(alive); };
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, config(), *tokenizer_); };
}

void TrainedClip::summarise(const train::RunResult& /*result*/) {
  if (found_.pairs == 0) return;
  session().terminal.print("  {:<22}{:.1f}% of {} captions (chance {:.1f}%), among the 5 nearest {:.1f}%",
                           "retrieval at the end", 100 * found_.texts_at_1, found_.pairs, 100 * found_.texts_by_chance,
                           100 * found_.texts_at_5);
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
  const NeededOption needed[] = {{"--data", settings.data.spec, "a folder of images with captions"}};
  const std::optional<Threads> threads = begin_training(session, args, options, settings, settings.net, needed);
  if (!threads) return exit_done;
  settings.settle_variance_limit(options);
  settings.data.spec = kept_path(settings.data.spec);
  if (options.is_asked_for("tokenizer")) settings.captions.tokenizer = kept_tokenizer(settings.captions.tokenizer);
  const data::PairSplits data = session.comm.together([&] { return load_pairs(settings.data, session.terminal); });
  settings.check_evaluation(options, data.validation.size() != 0);
  if (is_finished(session, options, settings, settings.steps, "--steps")) return exit_done;
  const NoticeWatch notice(settings.notice_command);
  TrainedClip model(session, settings, options, data, *threads);
  FloatTraining(model).run();
  return exit_done;
}

}  // namespace bitloom::cli
