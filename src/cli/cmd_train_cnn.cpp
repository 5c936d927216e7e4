// bitloom train cnn: options, images and run folder in, FloatTraining, a summary out.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/cnn_options.h"
#include "cli/field_names.h"
#include "cli/float_training.h"
#include "cli/image_evaluation.h"
#include "cli/local_training.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/shared_data.h"
#include "core/error.h"
#include "data/soft_labels.h"
#include "models/cnn/evaluate.h"
#include "models/cnn/initial_values.h"
#include "models/cnn/model_file.h"
#include "nn/floats.h"
#include "plan/cnn_model.h"
#include "plan/float_grids.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t most_evaluations = 20;
// Moving statistics are taken from these, where a worker's own are of other parameters: mini-batches, at least, and images.
constexpr std::size_t settling_steps = 8;
constexpr std::size_t settling_images = 2048;

// The options that set fields of the identity that are not called like them.
std::string cnn_option(const std::string& field) {
  static const FieldOptions named{{"data", "the training images' content (--data, --max-train, --validation, --split-seed)"},
                                  {"net", "--net or --activation"},
                                  {"soft_labels", "the teacher's soft labels (--teacher)"},
                                  {"decays_vectors", "decays_vectors of --net"}};
  return option_of_float_field(field, named);
}

// data_hash: of the training images.
Json identity_of(const CnnSettings& settings, const models::CnnConfig& config, const std::string& data_hash) {
  const models::CnnTraining& t = settings.training;
  Json json = {{"net", architecture_of(config)},
               {"activation_bits", config.activation_bits},
               {"decays_vectors", config.decays_vectors},
               {"batch", t.batch},
               {"optimizer", t.optimizer},
               {"learning_rate", t.learning_rate},
               {"momentum", t.momentum},
               {"weight_decay", t.weight_decay},
               {"schedule", t.schedule},
               {"label_smoothing", t.label_smoothing},
               {"lookahead", t.lookahead},
               {"average", average_identity(settings.average)},
               {"clip", settings.clip},
               {"augment", t.augment},
               {"flip", t.flip},
               {"dtype", settings.values},
               {"seed", settings.seed},
               {"data", data_hash}};
  if (settings.taught_share() > 0) json["teacher_share"] = settings.teacher_share;
  add_quantiser(config.activation_quantiser, json);
  if (settings.local.is_local()) json.update(settings.local.identity());
  return json;
}

constexpr TrainedModel::Traits cnn_traits{.kind = models::cnn_kind,
                                          .examples = "images",
                                          .targets = "images",
                                          .speed = "images/s",
                                          .loss_unit = "nats",
                                          .savers = "a smaller --micro-batch, --activation-bits, or a smaller net",
                                          .next = "bitloom eval {0}\n  bitloom predict {0} PICTURE...\n  bitloom report {0}",
                                          .option_of = &cnn_option,
                                          .evaluations = most_evaluations};

class TrainedCnn final : public TrainedModel {
 public:
  TrainedCnn(Session& session, CnnSettings& settings, const Options& options, const data::DataSplits& data,
             const Threads& threads)
      : TrainedModel(cnn_traits, session, settings, options, threads),
        settings_(settings),
        options_(options),
        data_(data),
        scale_(session.comm.together([&] { return models::fit_pixel_scale(data.train); })),
        net_(session.comm.together([&] { return config_for(settings, options, data); })),
        model_(plan::describe_cnn(net_.config, values())),
        worker_(settings.local.is_job() ? settings.local.make_worker(session.comm) : mpi::Comm()),
        grid_(settings.layout.make_grid(settings.local.is_job() ? worker_ : session.comm)),
        steps_per_epoch_(data.train.size() / settings.batch),
        steps_(settings.steps != 0 ? settings.steps : steps_of(settings.training.epochs)) {
    if (settings.local.is_job()) settings.resume = worker_.flag_any(worker_.is_root() && settings.resume);
  }

  train::TrainOptions train_options() const override { return settings_.make_options(steps_); }
  std::uint64_t steps() const override { return steps_; }
  train::Layout layout() override { return settings_.layout.make_layout(grid_, *net_.layers); }

  std::size_t choose_micro_batch(std::size_t share, std::uint64_t memory) override {
    std::size_t images = settings_.micro_batch_of(share).value_or(micro_batch_before());
    if (images != 0 && share % images != 0) {
      fail(ErrorKind::usage,
           "the run in {} has micro-batches of {} images, whose statistics batch norm takes; a process's share of the batch "
           "would be {}. Expected another number of processes, or --micro-batch",
           settings_.out, images, share);
    }
    plan::FloatCluster cluster;
    cluster.memory = memory;
    return plan::choose_micro_batch(model_, grid_.shape(), plan_options(images), cluster, share, CnnSettings::savers);
  }

  std::string memory_text(std::size_t images) override { return cli::memory_text(memory_of(images)); }

  std::unique_ptr<train::Task> make_task(std::size_t images) override {
    models::ImageBatches::Options options;
    options.batch = settings_.batch;
    options.micro_batch = images;
    options.augment = data::parse_augment(settings_.training.augment);
    options.flip = models::parse_flip(settings_.training.flip);
    options.seed = settings_.local.stream_seed(settings_.seed);
    options.ranks = grid_.shape().data;
    options.teacher_share = settings_.taught_share();
    options.label_smoothing = settings_.training.label_smoothing;
    batches_ = std::make_unique<models::ImageBatches>(data_.train, scale_, options);
    return std::make_unique<train::Classification>(
        net_.layers, net_.input(images),
        [this](std::uint64_t step, std::uint64_t micro_batch) {
          const models::ImageBatch batch = batches_->get(step, micro_batch);
          const std::size_t count = batch.labels.size();
          train::Classification::Batch examples{
              nn::from_floats(engine(), batch.images, net_.input(count), values(), nn::Use::data),
              engine().from(std::span<const std::int32_t>(batch.labels), {count}, nn::Use::data)};
          if (!batch.target_changes.empty()) {
            examples.target_changes =
                nn::from_floats(engine(), batch.target_changes, {count, net_.config.classes}, values(), nn::Use::data);
          }
          return examples;
        },
        settings_.training.label_smoothing);
  }

  // A net's description may say what some of its parameters begin with. For its test it has those of its file. Workers of a job
  // take over the first one's when they join.
  bool has_initial_values() const override { return !is_trained_ && is_first_worker(); }
  std::unique_ptr<TensorSource> initial_values() override {
    return std::make_unique<TensorFile>(settings_.init.empty()
                                            ? models::initial_values(engine(), net_.config, data_.train, scale_, settings_.seed)
                                            : read_initial_values());
  }

  // Before there is a FloatTraining: the run has its steps, and no test. Throws Error(data) where there is nothing to test on.
  void make_up_for_test() {
    if (data_.test.size() == 0) {
      fail(ErrorKind::data, "--resume: the run in {} was broken off before its test, and there are no test images now",
           settings_.out);
    }
    is_trained_ = true;
  }

  std::string run_folder() const override { return settings_.local.own_folder(settings_.out); }
  // The first of a job's workers alone evaluates what all of them share.
  bool is_first_worker() const { return settings_.local.number() == 0; }

  void describe(train::RunOptions& run) override;
  void announce(double peak) override;
  void add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) override;
  void sum_up(const std::function<void()>& summary) override;
  void summarise(const train::RunResult& result) override;

 private:
  static models::CnnConfig config_for(CnnSettings& settings, const Options& options, const data::DataSplits& data) {
    models::CnnConfig config = settings.make_config(options);
    config.image = data.train.shape;
    config.classes = data.train.classes();
    if (settings.batch > data.train.size()) {
      fail(ErrorKind::usage, "--batch: {}; expected at most the {} training images", settings.batch, data.train.size());
    }
    const std::size_t side = std::min(config.image.height, config.image.width);
    if (data.test.size() != 0 && settings.shift >= side) {
      fail(ErrorKind::usage, "--shift: {}; expected less than the {} pixels of an image", settings.shift, side);
    }
    return config;
  }

  std::uint64_t steps_of(double epochs) const {
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(epochs * static_cast<double>(steps_per_epoch_))));
  }

  plan::FloatOptions plan_options(std::size_t images) const {
    plan::FloatOptions options = settings_.planned(images, steps_);
    settings_.layout.add_to(options, *net_.layers);
    return options;
  }

  // Memory of the process that takes most.
  plan::FloatMemory memory_of(std::size_t images) const {
    return plan::plan_grid(model_, grid_.shape(), plan_options(images), plan::FloatCluster()).memory();
  }

  TensorFile read_initial_values() {
    const fs::path path = find_model(settings_.init);
    const models::LoadedCnn loaded = models::load_cnn(engine(), path);
    Json before = architecture_of(loaded.description.config);
    Json now = architecture_of(net_.config);
    before.erase("name");
    now.erase("name");
    if (before != now) {
      fail(ErrorKind::data, "--init: {}: a net of other layers: {}; expected {}", path.string(), before.dump(), now.dump());
    }
    return models::save_cnn(engine(), *loaded.net, DType::f32, loaded.description);
  }

  models::CnnViews views() const { return {settings_.mirror == "on", settings_.shift}; }
  models::CnnDescription description() const { return {net_.config, scale_, data_.train.class_names}; }

  // By the averaged parameters, if there are any, or as they are.
  layerwise::Evaluation classify(const data::Dataset& set, const models::CnnViews& views, const train::SignOfLife& alive,
                                 bool averaged) {
    // No more images at once than in training, for which there is memory.
    const std::size_t at_once = std::min<std::size_t>(micro_batch(), 256);
    models::CnnClassifier classifier(engine(), net_, scale_, values(), views, at_once,
                                     [this](const nn::Tensor& x) { return logits_of(x); });
    layerwise::Evaluation result;
    const auto evaluate = [&] {
      result = classifier.evaluate(grid_.data(), set, [&](std::size_t) {
        alive();
        return true;
      });
    };
    averaged ? training().trainer().averaged(evaluate) : evaluate();
    return result;
  }

  // On all stages.
  std::vector<float> logits_of(const nn::Tensor& x) {
    const nn::Tensor y = training().trainer().predict(x);
    std::vector<float> logits = y ? nn::to_floats(engine(), y) : std::vector<float>(x.shape()[0] * net_.config.classes);
    grid_.pipeline().broadcast(std::span(logits), grid_.shape().pipeline - 1);
    return logits;
  }

  void train_in_local_steps(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress);
  void settle_statistics(const train::SignOfLife& alive);
  Json test(const train::SignOfLife& alive);

  CnnSettings& settings_;
  const Options& options_;
  const data::DataSplits& data_;
  std::string data_hash_;  // of the training images, which the run's description needs first
  models::PixelScale scale_;
  models::Cnn net_;
  plan::FloatModel model_;
  mpi::Comm worker_;  // of a job in local steps
  mpi::Grid grid_;
  std::uint64_t steps_per_epoch_, steps_;
  std::unique_ptr<models::ImageBatches> batches_;
  bool is_trained_ = false;                  // by an earlier process
  std::optional<std::uint64_t> settled_at_;  // number of steps when statistics were taken
  std::optional<layerwise::Evaluation> tested_;
};

void TrainedCnn::describe(train::RunOptions& run) {
  run.may_be_done = !is_first_worker();  // while the first is not
  run.may_change_steps = run.may_change_steps || options_.is_asked_for("epochs");
  if (settings_.evaluate_every == 0) run.evaluate_every = std::max(steps_per_epoch_, run.evaluate_every);
  data_hash_ = content_hash(data_.train);
  Json identity = identity_of(settings_, net_.config, data_hash_);
  if (settings_.taught_share() > 0) {
    identity["soft_labels"] = data::soft_labels_hash(data_.train);
    if (!settings_.teacher.labels.empty()) run.files[soft_labels_name] = settings_.teacher.labels;
  }
  run.identity = identity.dump();
  run.operations_per_target = 3 * net_.cost();
  run.start = {{"net", architecture_of(net_.config)},
               {"parameters", net_.parameters()},
               {"activation_bits", net_.config.activation_bits},
               {"train_images", data_.train.size()},
               {"validation_images", data_.validation.size()},
               {"test_images", data_.test.size()},
               {"steps_per_epoch", steps_per_epoch_},
               {"operations_per_image", run.operations_per_target}};
  add_quantiser(net_.config.activation_quantiser, run.start);
}

void TrainedCnn::announce(double peak) {
  Terminal& terminal = session().terminal;
  terminal.print(
      "net '{}': {} parameters, {:.3f} G multiply-adds per image; data '{}': {} training, {} validation, {} test images",
      net_.config.name, format_count(net_.parameters()), 0.5e-9 * net_.cost(), data_.train.name, data_.train.size(),
      data_.validation.size(), data_.test.size());
  terminal.print("{}",
                 steps_text(settings_, steps_, "images", micro_batch(), grid_.shape().data, steps_per_epoch_, engine(), peak));
  if (const std::string layout = settings_.layout.described(grid_); !layout.empty()) terminal.print("{}", layout);
  if (settings_.local.is_local()) terminal.print("{}", settings_.local.described(net_.parameters()));
  terminal.print("memory: {}", memory_text(micro_batch()));
}

void TrainedCnn::add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) {
  if (data_.validation.size() != 0 && is_first_worker()) {
    hooks.evaluate = [this](const train::SignOfLife& alive) {
      if (settings_.local.is_local()) settle_statistics(alive);
      const layerwise::Evaluation found = classify(data_.validation, {.mirror = false, .shift = 0}, alive, true);
      return train::Evaluated{{found.loss * static_cast<double>(found.images), found.images}, found.accuracy()};
    };
  }
  if (data_.test.size() != 0 && is_first_worker()) hooks.after = [this](const train::SignOfLife& alive) { return test(alive); };
  if (settings_.local.is_local() && !is_trained_) train_in_local_steps(run, hooks, progress);
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, description()); };
}

void TrainedCnn::train_in_local_steps(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) {
  LocalTraining::add_to(run, hooks, session().comm, settings_.local, training().trainer(),
                        {.model = {{"net", architecture_of(net_.config)}, {"data", data_hash_}},
                         .field_name = &cnn_option,
                         .targets = settings_.batch,
                         .steps = steps_,
                         .out = settings_.out,
                         .resume = settings_.resume},
                        progress);
  hooks.join = [this, join = hooks.join](const train::SignOfLife& alive) {
    join(alive);
    if (training().trainer().steps() >= steps_) settle_statistics(alive);
  };
  hooks.after_step = [this, after = hooks.after_step](const train::StepReport& report, const train::SignOfLife& alive) {
    Json line = after(report, alive);
    if (training().trainer().steps() >= steps_) settle_statistics(alive);
    return line;
  };
}

// Moving statistics are of the parameters that this worker has had, which the exchange moves.
void TrainedCnn::settle_statistics(const train::SignOfLife& alive) {
  train::Trainer& trainer = training().trainer();
  if (settled_at_ == trainer.steps()) return;
  const std::size_t enough = std::max(settling_steps, (settling_images + settings_.batch - 1) / settings_.batch);
  trainer.settle_statistics(std::min<std::uint64_t>(enough, steps_per_epoch_), alive);
  settled_at_ = trainer.steps();
}

void TrainedCnn::sum_up(const std::function<void()>& summary) {
  if (!settings_.local.is_job()) return TrainedModel::sum_up(summary);
  LocalTraining::end_job(session().comm, summary);
}

void TrainedCnn::summarise(const train::RunResult& result) {
  Terminal& terminal = session().terminal;
  if (result.last_loss) {
    terminal.print("  {:<22}{:.2f}%, loss {:.4f}", "validation accuracy", 100 * result.last_accuracy.value_or(0),
                   *result.last_loss);
  }
  if (tested_) {
    const std::size_t count = view_count(views());
    terminal.print("  {:<22}{:.2f}% ({} of {} images, {} view{} each), loss {:.4f}", "test accuracy", 100 * tested_->accuracy(),
                   tested_->correct, tested_->images, count, count == 1 ? "" : "s", tested_->loss);
  }
}

// Classifies the test images by the model that was written, with test-time augmentation. Gives the metrics' line of it.
Json TrainedCnn::test(const train::SignOfLife& alive) {
  std::optional<TensorReader> file;
  mpi::Comm& comm = grid_.world();
  comm.together([&] {
    if (!comm.is_root()) return;
    const fs::path path = fs::path(settings_.out) / model_file;
    file = TensorReader::open(path, Checksum::required);
    TensorFile described;
    described.metadata = file->metadata;
    const models::CnnDescription trained = models::cnn_description_of(described, path.string());
    if (trained.scale.mean != scale_.mean || trained.scale.deviation != scale_.deviation ||
        trained.class_names != data_.train.class_names) {
      fail(ErrorKind::data, "--data: {}: other images than those that {} was trained on", settings_.data.spec, path.string());
    }
  });
  training().trainer().load_model(file ? &*file : nullptr);
  tested_ = classify(data_.test, views(), alive, false);
  return {{"event", "test"},
          {"accuracy", tested_->accuracy()},
          {"loss", tested_->loss},
          {"images", tested_->images},
          {"views", view_count(views())}};
}

}  // namespace

int train_cnn(Session& session, std::span<const std::string> args) {
  CnnSettings settings;
  Options options(
      "bitloom train cnn --data SPEC [--net NAME|FILE] [--out FOLDER] [options]",
      "Trains a convolutional net of floating-point numbers to classify images, and writes it to FOLDER/model.safetensors.\n"
      "Under mpirun the processes share the images of every step, or with --exchange local each trains by itself and they\n"
      "share what they learned; each needs the images, rank 0 has the run folder.\n"
      "Ctrl-C or SIGTERM leaves a checkpoint that `bitloom train cnn --resume --out FOLDER` continues to the same result,\n"
      "or with --exchange local to one like it.");
  settings.declare(options);
  const NeededOption needed[] = {{"--data", settings.data.spec, "synth, or a folder of images (see --help)"}};
  const std::optional<Threads> threads = begin_training(session, args, options, settings, settings.net, needed);
  if (!threads) return exit_done;
  settings.data.spec = absolute_spec(settings.data.spec);
  settings.teacher.net = kept_path(settings.teacher.net);
  const bool resumes = settings.resume;  // all processes, though workers of a job may have no run of their own yet
  settle_local(session, settings.local, settings.layout, settings.average, settings);
  data::DataSplits data = load_shared_data(session, settings.data, {}, 0);
  settings.check_evaluation(options, data.validation.size() != 0);
  settings.data.validation = fmt::format("{}", data.validation.size());
  require_classes(settings.data.spec, data.train);
  const NoticeWatch notice(settings.notice_command);
  TrainedCnn model(session, settings, options, data, *threads);
  if (is_finished(session, options, settings, model.steps(), settings.steps != 0 ? "--steps" : "--epochs")) return exit_done;
  if (!settings.teacher.net.empty()) {
    const int step = settings.teacher.step(options, data::parse_augment(settings.training.augment).crop_padding);
    settings.teacher.label(session, options, settings.out, resumes, step, data.train);
  }
  if (is_left_untested(session, options, settings, model.steps())) {
    model.make_up_for_test();
    FloatTraining training(model);
    if (model.is_first_worker()) {
      training.run_after();
    } else {
      LocalTraining::end_job(session.comm, [] {});
    }
  } else {
    FloatTraining(model).run();
  }
  return exit_done;
}

}  // namespace bitloom::cli
