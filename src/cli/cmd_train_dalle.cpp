// bitloom train dalle: options, pairs and run folder in, FloatTraining, a summary out.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/dalle_options.h"
#include "cli/dalle_pairs.h"
#include "cli/field_names.h"
#include "cli/float_training.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/step_samples.h"
#include "cli/transformer_training.h"
#include "core/error.h"
#include "core/softmax.h"
#include "data/pairs/pair_batches.h"
#include "models/config_json.h"
#include "models/dalle/model_file.h"
#include "models/dalle/sampler.h"
#include "models/dvae/coder.h"
#include "models/dvae/model_file.h"
#include "models/model_kind.h"
#include "models/saved_values.h"
#include "plan/float_grids.h"
#include "run/folder.h"
#include "train/parallel/tensor.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The options that set what identity() names.
std::string dalle_option(const std::string& field) {
  static const FieldOptions named{{"data", "the pairs' content (--data, --validation, --split-seed)"},
                                  {"tokenizer", "the captions' tokenizer (--tokenizer, --vocabulary, --data)"},
                                  {"dvae", "the discrete VAE (--dvae)"},
                                  {"peak", "--learning-rate"},
                                  {"optimizer.0", "--optimizer"},
                                  {"optimizer", "--beta1, --beta2, --weight-decay, --clip or --average"}};
  return option_of_float_field(field, named);
}

constexpr std::size_t rounds_ahead = 4;

constexpr TrainedModel::Traits dalle_traits{
    .kind = models::dalle_kind,
    .examples = "pairs",
    .targets = "image tokens",
    .speed = "of them per second",
    .loss_unit = "nats, an eighth the text's",
    .savers = "a smaller --micro-batch, --activation-bits, --recompute block, --shard, or a smaller net",
    .next = "bitloom sample {0} --prompt TEXT --count 16 --out grid.png\n  bitloom eval {0}{1}\n  bitloom report {0}",
    .option_of = &dalle_option};

class TrainedDalle final : public TrainedModel {
 public:
  TrainedDalle(Session& session, DalleSettings& settings, const Options& options, const data::PairSplits& data,
               const Threads& threads)
      : TrainedModel(dalle_traits, session, settings, options, threads),
        settings_(settings),
        data_(data),
        grid_(settings.layout.make_grid(session.comm)),
        group_(grid_.tensor()),
        dvae_(session.comm.together([&] { return models::load_dvae(engine(), find_model(settings.dvae), DType::f32); })),
        coder_(engine(), *dvae_.net, DType::f32),
        pairs_(session, grid_, settings, data, coder_, dvae_.description.config.side),
        tokenizer_(settings.captions.make(session, data.train)),
        config_(session.comm.together([&] {
          const models::DvaeConfig& dvae = dvae_.description.config;
          return settings.make_config(tokenizer_->size(), dvae.grid(), dvae.codes);
        })),
        model_(plan::describe_dalle(config_)),
        net_(config_, &group_) {}

  train::TrainOptions train_options() const override { return settings_.make_options(); }
  std::uint64_t steps() const override { return settings_.steps; }

  train::Layout layout() override { return layout_of(settings_, grid_, net_.layers()); }

  std::size_t choose_micro_batch(std::size_t share, std::uint64_t memory) override {
    const std::uint64_t vae = dvae_.net->parameters() * dtype_size(DType::f32);  // beside the model
    return cli::choose_micro_batch(settings_, model_, grid_, net_.layers(), share, memory - std::min(memory, vae),
                                   kept_micro_batch(share));
  }

  std::string memory_text(std::size_t pairs) override { return cli::memory_text(memory_of(pairs)); }

  std::unique_ptr<train::Task> make_task(std::size_t pairs) override {
    pairs_.encode(config_, *tokenizer_, pairs);
    return std::make_unique<models::DalleTask>(
        net_, pairs, [this](std::uint64_t step, std::uint64_t micro_batch) { return pairs_.train().batch(step, micro_batch); },
        [this](std::uint64_t step) { return pairs_.train().tokens(step); });
  }

  std::unique_ptr<TensorSource> initial_values() override {
    const fs::path path = find_model(settings_.init);
    const models::LoadedDalle other = models::load_dalle(engine(), path);
    if (!models::have_same_parameters(to_json(other.net->config()), to_json(config_))) {
      fail(ErrorKind::data, "--init: {}: a net of other sizes: {}; expected {}", path.string(),
           to_json(other.net->config()).dump(), to_json(config_).dump());
    }
    if (data::tokenizer_hash(*other.tokenizer) != data::tokenizer_hash(*tokenizer_) || other.dvae != dvae_.hash) {
      fail(ErrorKind::data, "--init: {}: its tokenizer or discrete VAE is another; expected those of --tokenizer and --dvae",
           path.string());
    }
    auto file = std::make_unique<TensorFile>();
    models::add_values(engine(), *file, other.net->layers(), DType::f32);
    return file;
  }

  void describe(train::RunOptions& run) override;
  void announce(double peak) override;
  void add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) override;
  bool holds_back() const override { return pairs_.has_validation(); }
  void summarise(const train::RunResult& result) override;

 private:
  // Memory of the process that takes most.
  plan::FloatMemory memory_of(std::size_t pairs) {
    return plan::plan_grid(model_, grid_.shape(), planned_in_grid(settings_, net_.layers(), pairs), plan::FloatCluster())
        .memory();
  }

  Json identity();
  // Nats per token, of some pairs.
  struct Losses {
    double text = 0, image = 0;
    double all() const { return models::text_share * text + (1 - models::text_share) * image; }
  };
  Losses measure(const models::DallePairs& pairs, const train::SignOfLife& alive);
  train::Evaluated evaluate(const train::SignOfLife& alive);
  void choose_samples(train::RunOptions& run, train::RunHooks& hooks);
  void begin_samples(std::uint64_t step, std::span<const std::size_t> chosen);
  Json draw_samples(const train::SignOfLife& alive);

  DalleSettings& settings_;
  const data::PairSplits& data_;
  mpi::Grid grid_;
  train::TensorGroup group_;
  models::LoadedDvae dvae_;
  models::DvaeCoder coder_;
  DallePairSets pairs_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  models::DalleConfig config_;
  plan::FloatModel model_;
  models::Dalle net_;
  std::optional<StepSamples> samples_;
  std::vector<std::int32_t> sample_texts_;  // tokens (N,text) of their captions
};

Json TrainedDalle::identity() {
  Json json = settings_.identity(training().train_options());
  json["net"] = to_json(config_);
  json["activation_bits"] = config_.activation_bits;
  add_quantiser(config_.activation_quantiser, json);
  json["merge_dropout"] = settings_.merge_dropout;
  json.update(settings_.deep.identity());
  settings_.layout.add_compression(json);
  json["tokenizer"] = data::tokenizer_hash(*tokenizer_);
  json["dvae"] = dvae_.hash;
  if (pairs_.crops_vary()) json["crop"] = settings_.crop;
  json["data"] = content_hash(data_.train);
  return json;
}

void TrainedDalle::describe(train::RunOptions& run) {
  run.identity = identity().dump();
  run.operations_per_target = 3 * model_.operations() / static_cast<double>(config_.image());
  run.start = {{"net", to_json(config_)},
               {"parameters", config_.parameters()},
               {"activation_bits", config_.activation_bits},
               {"train_pairs", data_.train.size()},
               {"validation_pairs", data_.validation.size()},
               {"operations_per_token", run.operations_per_target}};
  add_quantiser(config_.activation_quantiser, run.start);
}

void TrainedDalle::announce(double peak) {
  Terminal& terminal = session().terminal;
  terminal.print(
      "net '{}': {} parameters, {} layers of width {}; {} text tokens of {} ({} tokenizer), {} x {} image tokens of {} codes",
      settings_.net, format_count(config_.parameters()), config_.layers, config_.width, config_.text, config_.text_vocabulary,
      tokenizer_->kind(), config_.grid, config_.grid, config_.codes);
  terminal.print("data '{}': {} training, {} validation pairs; discrete VAE {}, codes {}", settings_.data.spec,
                 data_.train.size(), data_.validation.size(), settings_.dvae,
                 pairs_.crops_vary() ? "of other parts of the images in every epoch" : "the same in every epoch");
  if (session().comm.is_root()) {
    const auto caption = [&](std::size_t i) -> const std::string& { return data_.train[i].caption; };
    terminal.note(note_on_cut_captions(*tokenizer_, data_.train.size(), caption, config_.text));
  }
  terminal.print("{}", steps_text(settings_, settings_.steps, "pairs", micro_batch(), grid_.shape().data,
                                  pairs_.train().steps_per_epoch(), engine(), peak));
  if (const std::string layout = settings_.layout.described(grid_); !layout.empty()) terminal.print("{}", layout);
  settings_.layout.announce_compression(terminal, grid_, model_, "plan dalle");
  terminal.print("memory: {}", memory_text(micro_batch()));
}

// The batches go round the data ranks; the last stage of a pipeline has the losses.
TrainedDalle::Losses TrainedDalle::measure(const models::DallePairs& pairs, const train::SignOfLife& alive) {
  const std::size_t at_once = std::min<std::size_t>(micro_batch(), 32);
  const auto ranks = static_cast<std::size_t>(grid_.shape().data);
  const std::size_t batches = (pairs.size() + at_once - 1) / at_once;
  bool has_diverged = false;
  const auto finite = [&](double nats) {
    const std::optional<std::int64_t> micro = micro_nats(nats);
    has_diverged |= !micro;
    return micro.value_or(0);
  };
  // In millionths, added as whole numbers: the same for any number of ranks.
  std::array<std::int64_t, 3> sums{};  // of text, of images, text tokens
  for (std::size_t begin = 0; begin < batches; begin += ranks) {
    // Where nothing is left this rank goes through the first batch with the others, whose sharded layers need it.
    const std::size_t own = begin + static_cast<std::size_t>(grid_.data_index());
    const std::size_t first = own < batches ? own * at_once : 0;
    const models::DalleBatch some = pairs.range(first, std::min(at_once, pairs.size() - first));
    training().trainer().predict(models::dalle_input(engine(), config_, some), [&](const nn::Tensor& hidden) {
      const models::PairNats nats = models::pair_nats(engine(), net_, hidden, some);
      if (own >= batches || group_.rank() != 0) return;  // the same on all of a tensor group
      for (const double each : nats.text) sums[0] += finite(each);
      for (const double each : nats.image) sums[1] += finite(each);
      sums[2] += static_cast<std::int64_t>(models::text_tokens_of(config_, some.text));
    });
    alive();
    // The first stages of a pipeline do not run ahead of the last without end: their activations wait in memory.
    if (grid_.shape().pipeline > 1 && begin / ranks % rounds_ahead == 0) session().comm.barrier();
  }
  session().comm.check(
      has_diverged ? "the net's loss of a pair is infinite or beyond 1,000,000: its training has diverged" : "",
      ErrorKind::data);
  session().comm.sum(std::span(sums));
  return {1e-6 * static_cast<double>(sums[0]) / static_cast<double>(std::max<std::int64_t>(1, sums[2])),
          1e-6 * static_cast<double>(sums[1]) / static_cast<double>(pairs.size() * config_.image())};
}

train::Evaluated TrainedDalle::evaluate(const train::SignOfLife& alive) {
  Losses validation;
  Losses train;
  training().trainer().averaged([&] {
    validation = measure(pairs_.validation(), alive);
    train = measure(pairs_.measured_train(), alive);
  });
  const std::uint64_t tokens = pairs_.validation().size() * config_.image();
  train::Evaluated found{{validation.all() * static_cast<double>(tokens), tokens}, {}, {}, {}};
  found.more = {{"text_loss", validation.text},
                {"image_loss", validation.image},
                {"training_text_loss", train.text},
                {"training_image_loss", train.image}};
  found.text = fmt::format("text {:.4f}, image {:.4f}", validation.text, validation.image);
  return found;
}

// Captions for which images are drawn: those that were given, or some of the held-out pairs', whose own images are then shown
// beside.
void TrainedDalle::choose_samples(train::RunOptions& run, train::RunHooks& hooks) {
  if (!settings_.layout.is_whole()) return;
  std::vector<std::size_t> chosen;
  std::vector<std::string> captions = settings_.samples.prompts;
  if (captions.empty() && pairs_.has_validation()) {
    chosen = spread(sample_count, data_.validation.size());
    for (const std::size_t index : chosen) captions.push_back(data_.validation[index].caption);
  }
  // A pass over one code of few images takes as long as one over dozens of tokens: the weights have to be read.
  constexpr double least_rows = 32;
  const double rows = std::max(least_rows, static_cast<double>(captions.size()));
  const double step = 3 * static_cast<double>(settings_.batch * config_.tokens());
  run.sample_every = settings_.samples.steps_between(settings_.steps, static_cast<double>(config_.image()) * rows / step);
  settings_.samples.require(captions.size());
  if (captions.empty() || run.sample_every == 0) return;
  for (const std::string& caption : captions) {
    const std::vector<std::int32_t> text = models::caption_tokens(config_, *tokenizer_, caption);
    sample_texts_.insert(sample_texts_.end(), text.begin(), text.end());
  }
  samples_.emplace(settings_.out, std::move(captions), dvae_.description.config.side);
  hooks.begin = [this, chosen](std::uint64_t step_now) { begin_samples(step_now, chosen); };
  hooks.sample = [this](const train::SignOfLife& alive) { return draw_samples(alive); };
}

void TrainedDalle::begin_samples(std::uint64_t step, std::span<const std::size_t> chosen) {
  session().on_root([&] {
    samples_->begin(step);
    if (chosen.empty()) return;
    const std::vector<std::uint8_t> images = data::centre_batch(data_.validation, chosen, dvae_.description.config.side).images;
    samples_->write_originals(images, coder_.decode(coder_.encode(images)));
  });
}

// The same random numbers at every step.
Json TrainedDalle::draw_samples(const train::SignOfLife& alive) {
  Json line;
  training().trainer().averaged([&] {
    const auto draw = [&](const std::function<void()>& sign) {
      models::ImageOptions options;
      options.at_once = std::min(samples_->captions().size(), micro_batch());
      std::vector<std::int32_t> codes;
      for (const auto& image : models::sample_images(engine(), net_, sample_texts_, {}, options, [&](std::size_t, std::size_t) {
             sign();
             return true;
           })) {
        codes.insert(codes.end(), image.begin(), image.end());
      }
      line = samples_->write(training().trainer().steps(), coder_.decode(codes));
    };
    run::on_root_for_long(session().comm, draw, alive);
  });
  return line;
}

void TrainedDalle::add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& /*progress*/) {
  if (pairs_.has_validation()) hooks.evaluate = [this](const train::SignOfLife& alive) { return evaluate(alive); };
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, config_, *tokenizer_, dvae_.hash); };
  choose_samples(run, hooks);
}

void TrainedDalle::summarise(const train::RunResult& result) {
  if (!result.last_loss) return;
  session().terminal.print("  {:<22}{:.4f}{}", "validation loss", *result.last_loss, best_text(result));
}

}  // namespace

int train_dalle(Session& session, std::span<const std::string> args) {
  DalleSettings settings;
  Options options(
      "bitloom train dalle --data PATH --dvae RUN [--net NAME] [--out FOLDER] [options]",
      "Trains a transformer to tell the next token of captions and of their images, which a discrete VAE makes tokens of\n"
      "(`bitloom train dvae`), and writes it to FOLDER/model.safetensors; `bitloom sample` draws images from it. Under\n"
      "mpirun the processes share the pairs of every step, or divide the net (--tensor, --pipeline, --shard); rank 0 has\n"
      "the run folder. Ctrl-C or SIGTERM leaves a checkpoint that `bitloom train dalle --resume --out FOLDER` continues to the "
      "same result.");
  settings.declare(options);
  const NeededOption needed[] = {{"--data", settings.data.spec, "a folder of images with captions"},
                                 {"--dvae", settings.dvae, "a run or model of `bitloom train dvae`"}};
  const std::optional<Threads> threads = begin_training(session, args, options, settings, settings.net, needed);
  if (!threads) return exit_done;
  settings.deep.check_init(options, settings);
  settings.layout.settle_compression(options, settings.resume);
  for (std::string* path : {&settings.data.spec, &settings.dvae}) *path = kept_path(*path);
  if (options.is_asked_for("tokenizer")) settings.captions.tokenizer = kept_tokenizer(settings.captions.tokenizer);
  settings.layout.refuse_samples(options, settings.samples.every, {"sample-every", "sample-prompt"});
  const data::PairSplits data = session.comm.together([&] { return load_pairs(settings.data, session.terminal); });
  settings.check_evaluation(options, data.validation.size() != 0);
  if (is_finished(session, options, settings, settings.steps, "--steps")) return exit_done;
  const NoticeWatch notice(settings.notice_command);
  TrainedDalle model(session, settings, options, data, *threads);
  FloatTraining(model).run();
  return exit_done;
}

}  // namespace bitloom::cli
