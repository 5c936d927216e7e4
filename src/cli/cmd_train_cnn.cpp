// bitloom train cnn: options, images and run folder in, train::Session, a summary out.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/cnn_options.h"
#include "cli/command.h"
#include "cli/device.h"
#include "cli/field_names.h"
#include "cli/image_evaluation.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/shared_data.h"
#include "cli/signals.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/version.h"
#include "models/cnn/evaluate.h"
#include "models/cnn/initial_values.h"
#include "models/cnn/model_file.h"
#include "nn/floats.h"
#include "plan/cnn_model.h"
#include "plan/float_grids.h"
#include "train/session.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t most_evaluations = 20;

// The options that set fields of the identity that are not called like them.
std::string cnn_option(const std::string& field) {
  static const FieldOptions named{{"data", "the training images' content (--data, --max-train, --validation, --split-seed)"},
                                  {"net", "--net or --activation"},
                                  {"decays_vectors", "decays_vectors of --net"}};
  return option_of_float_field(field, named);
}

Json identity_of(const CnnSettings& settings, const models::CnnConfig& config, const data::Dataset& train) {
  const models::CnnTraining& t = settings.training;
  return {{"net", architecture_of(config)},
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
          {"average", settings.average},
          {"clip", settings.clip},
          {"augment", t.augment},
          {"flip", t.flip},
          {"dtype", settings.values},
          {"seed", settings.seed},
          {"data", content_hash(train)}};
}

void check_images(const CnnSettings& settings, const data::Dataset& train) {
  std::vector<std::size_t> counts(train.classes());
  for (const std::uint16_t label : train.labels) ++counts[label];
  const auto present = std::ranges::count_if(counts, [](std::size_t count) { return count != 0; });
  if (present < 2) {
    fail(ErrorKind::data, "{}: images of {} class{} to train on; expected at least two classes", settings.data.spec, present,
         present == 1 ? "" : "es");
  }
}

class CnnTraining {
 public:
  CnnTraining(Session& session, CnnSettings& settings, const Options& options, const data::DataSplits& data,
              const Threads& threads)
      : session_(session),
        settings_(settings),
        options_(options),
        data_(data),
        engine_(session.comm.together([&] { return choose_device(settings.device); }), settings.backend),
        values_(choose_dtype(engine_, settings.values)),
        scale_(session.comm.together([&] { return models::fit_pixel_scale(data.train); })),
        net_(session.comm.together([&] { return config_for(settings, options, data); })),
        model_(plan::describe_cnn(net_.config, values_)),
        grid_(settings.layout.make_grid(session.comm)) {
    if (settings.memory != 0) engine_.pool().set_limit(settings.memory);
    steps_per_epoch_ = data.train.size() / settings.batch;
    steps_ = settings.steps != 0
                 ? settings.steps
                 : std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(settings.training.epochs *
                                                                                      static_cast<double>(steps_per_epoch_))));
    const std::uint64_t memory = memory_for(settings, threads, engine_.device());
    std::uint64_t before = 0;
    session.on_root([&] { before = settings.resume ? micro_batch_of_run(settings.out, settings.batch) : 0; });
    session.comm.broadcast(std::span<std::uint64_t>(&before, 1));
    micro_batch_before_ = before;
    train::Session::Options all;
    all.train = settings.make_options(steps_);
    all.batch = settings.batch;
    all.choose_micro_batch = [this, memory](std::size_t share) { return choose_micro_batch(share, memory); };
    all.memory_hint = [this](std::size_t images) {
      return fmt::format(
          "{} images at once were predicted to take {}; expected a smaller --micro-batch, --activation-bits, or "
          "a smaller net",
          images, memory_text(memory_of(images)));
    };
    all.make_task = [this](std::size_t images) { return make_task(images); };
    all.layout = settings.layout.make_layout(grid_, *net_.layers);
    training_ = std::make_unique<train::Session>(engine_, std::move(all));
    if (!training_->goes_on(settings.out, settings.resume)) initialise();
  }

  std::uint64_t steps() const { return steps_; }
  void run();

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

  plan::FloatOptions plan_options(std::size_t images) const {
    plan::FloatOptions options;
    options.batch = settings_.batch;
    options.micro_batch = images;
    options.train = settings_.make_options(steps_);
    settings_.layout.add_to(options, *net_.layers);
    return options;
  }

  // Of the process that takes most.
  plan::FloatMemory memory_of(std::size_t images) const {
    return plan::plan_grid(model_, grid_.shape(), plan_options(images), plan::FloatCluster()).memory();
  }

  std::size_t choose_micro_batch(std::size_t share, std::uint64_t memory) const {
    std::size_t images = settings_.micro_batch_of(share).value_or(micro_batch_before_);
    if (images != 0 && share % images != 0) {
      fail(ErrorKind::usage,
           "the run in {} has micro-batches of {} images, whose statistics batch norm takes; a process's share of the batch "
           "would be {}. Expected another number of processes, or --micro-batch",
           settings_.out, images, share);
    }
    plan::FloatCluster cluster;
    cluster.memory = memory;
    return plan::choose_micro_batch(model_, grid_.shape(), plan_options(images), cluster, share,
                                    "`activation_bits` 3, `dtype` bf16 or a smaller net take less");
  }

  std::unique_ptr<train::Task> make_task(std::size_t images) {
    models::ImageBatches::Options options;
    options.batch = settings_.batch;
    options.micro_batch = images;
    options.augment = data::parse_augment(settings_.training.augment);
    options.flip = models::parse_flip(settings_.training.flip);
    options.seed = settings_.seed;
    options.ranks = grid_.shape().data;
    batches_ = std::make_unique<models::ImageBatches>(data_.train, scale_, options);
    return std::make_unique<train::Classification>(
        net_.layers, net_.input(images),
        [this](std::uint64_t step, std::uint64_t micro_batch) {
          const models::ImageBatch batch = batches_->get(step, micro_batch);
          const std::size_t count = batch.labels.size();
          return train::Classification::Batch{
              nn::from_floats(engine_, batch.images, net_.input(count), values_, nn::Use::data),
              engine_.from(std::span<const std::int32_t>(batch.labels), {count}, nn::Use::data)};
        },
        settings_.training.label_smoothing);
  }

  // Rank 0 has them whole.
  void initialise() {
    std::optional<TensorFile> values;
    session_.on_root([&] {
      values = settings_.init.empty() ? models::initial_values(engine_, net_.config, data_.train, scale_, settings_.seed)
                                      : read_initial_values();
    });
    training_->trainer().load_model(values ? &*values : nullptr);
  }

  TensorFile read_initial_values() {
    const fs::path path = find_model(settings_.init);
    const models::LoadedCnn loaded = models::load_cnn(engine_, path);
    Json before = architecture_of(loaded.description.config);
    Json now = architecture_of(net_.config);
    before.erase("name");
    now.erase("name");
    if (before != now) {
      fail(ErrorKind::data, "--init: {}: a net of other layers: {}; expected {}", path.string(), before.dump(), now.dump());
    }
    return models::save_cnn(engine_, *loaded.net, DType::f32, loaded.description);
  }

  models::CnnDescription description() const { return {net_.config, scale_, data_.train.class_names}; }

  // By the averaged parameters, if there are any, or as they are.
  layerwise::Evaluation classify(const data::Dataset& set, const models::CnnViews& views, const train::SignOfLife& alive,
                                 bool averaged) {
    // No more images at once than in training, for which there is memory.
    const std::size_t at_once = std::min<std::size_t>(training_->micro_batch(), 256);
    models::CnnClassifier classifier(engine_, net_, scale_, values_, views, at_once,
                                     [this](const nn::Tensor& x) { return logits_of(x); });
    layerwise::Evaluation result;
    const auto evaluate = [&] {
      result = classifier.evaluate(grid_.data(), set, [&](std::size_t) {
        alive();
        return true;
      });
    };
    averaged ? training_->trainer().averaged(evaluate) : evaluate();
    return result;
  }

  // On all stages.
  std::vector<float> logits_of(const nn::Tensor& x) {
    const nn::Tensor y = training_->trainer().predict(x);
    std::vector<float> logits = y ? nn::to_floats(engine_, y) : std::vector<float>(x.shape()[0] * net_.config.classes);
    grid_.pipeline().broadcast(std::span(logits), grid_.shape().pipeline - 1);
    return logits;
  }

  train::RunOptions run_options();
  void announce(double peak);
  void test(const train::SignOfLife& alive);
  void summarise(const train::RunResult& result);

  Session& session_;
  CnnSettings& settings_;
  const Options& options_;
  const data::DataSplits& data_;
  nn::Engine engine_;
  DType values_;
  models::PixelScale scale_;
  models::Cnn net_;
  plan::FloatModel model_;
  mpi::Grid grid_;
  std::size_t micro_batch_before_ = 0;  // of the run that goes on; 0: none
  std::uint64_t steps_per_epoch_ = 1, steps_ = 1;
  std::unique_ptr<models::ImageBatches> batches_;
  std::unique_ptr<train::Session> training_;
  std::optional<layerwise::Evaluation> tested_;
};

train::RunOptions CnnTraining::run_options() {
  train::RunOptions run = settings_.run_options(options_);
  run.steps = steps_;
  run.may_change_steps = options_.is_asked_for("steps") || options_.is_asked_for("epochs");
  if (run.evaluate_every == 0) run.evaluate_every = std::max(steps_per_epoch_, steps_ / most_evaluations);
  run.identity = identity_of(settings_, net_.config, data_.train).dump();
  run.field_name = &cnn_option;
  run.unit = "images";
  run.operations_per_target = 3 * net_.cost();
  run.peak_operations = measured_peak(engine_, values_, session_.comm);
  run.start = {{"version", version},
               {"command", session_.command_line},
               {"kind", models::cnn_kind},
               {"net", architecture_of(net_.config)},
               {"parameters", net_.parameters()},
               {"activation_bits", net_.config.activation_bits},
               {"batch", settings_.batch},
               {"micro_batch", training_->micro_batch()},
               {"processes", session_.comm.size()},
               {"dtype", settings_.values},
               {"train_images", data_.train.size()},
               {"validation_images", data_.validation.size()},
               {"test_images", data_.test.size()},
               {"steps_per_epoch", steps_per_epoch_},
               {"peak_operations", run.peak_operations},
               {"operations_per_image", run.operations_per_target}};
  return run;
}

void CnnTraining::announce(double peak) {
  Terminal& terminal = session_.terminal;
  terminal.print(
      "net '{}': {} parameters, {:.3f} G multiply-adds per image; data '{}': {} training, {} validation, {} test images",
      net_.config.name, format_count(net_.parameters()), 0.5e-9 * net_.cost(), data_.train.name, data_.train.size(),
      data_.validation.size(), data_.test.size());
  const std::size_t micro_batch = training_->micro_batch();
  terminal.print("{}",
                 steps_text(settings_, steps_, "images", micro_batch, grid_.shape().data, steps_per_epoch_, engine_, peak));
  if (const std::string layout = settings_.layout.described(grid_); !layout.empty()) terminal.print("{}", layout);
  terminal.print("memory: {}", memory_text(memory_of(micro_batch)));
}

void CnnTraining::run() {
  const train::RunOptions options = run_options();
  announce(options.peak_operations);
  train::RunHooks hooks;
  if (data_.validation.size() != 0) {
    hooks.evaluate = [this](const train::SignOfLife& alive) {
      const layerwise::Evaluation found = classify(data_.validation, {.mirror = false, .shift = 0}, alive, true);
      return train::Evaluated{{found.loss * static_cast<double>(found.images), found.images}, found.accuracy()};
    };
  }
  if (data_.test.size() != 0) hooks.after = [this](const train::SignOfLife& alive) { test(alive); };
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, description()); };
  session_.continuation = continuation_of("cnn", settings_.out);
  LoggedProgress progress(session_.terminal, fs::path(settings_.out) / log_file);
  const train::RunResult result = training_->run(options, hooks, progress);
  session_.on_root([&] { summarise(result); });
  session_.terminal.print("next:\n  bitloom eval {0}\n  bitloom predict {0} IMAGE...\n  bitloom report {0}", settings_.out);
  for (const std::string& note : engine_.take_notes()) session_.terminal.note(note);
}

void CnnTraining::summarise(const train::RunResult& result) {
  Terminal& terminal = session_.terminal;
  terminal.print("\ndone in {}: {} images, {:.0f} images/s over all", format_duration(result.seconds),
                 format_count(result.targets), static_cast<double>(result.targets) / std::max(result.seconds, 1e-9));
  terminal.print("  {:<22}{:.4f} nats", "training loss", result.training_loss);
  if (result.last_loss) {
    terminal.print("  {:<22}{:.2f}%, loss {:.4f}", "validation accuracy", 100 * result.last_accuracy.value_or(0),
                   *result.last_loss);
  }
  if (tested_) {
    const std::size_t count = view_count({settings_.mirror == "on", settings_.shift});
    terminal.print("  {:<22}{:.2f}% ({} of {} images, {} view{} each), loss {:.4f}", "test accuracy", 100 * tested_->accuracy(),
                   tested_->correct, tested_->images, count, count == 1 ? "" : "s", tested_->loss);
  }
  print_model_and_memory(terminal, settings_.out, engine_, result);
}

// Classifies the test images by the model that was written, with test-time augmentation.
void CnnTraining::test(const train::SignOfLife& alive) {
  const bool is_best = settings_.keep == "best" && data_.validation.size() != 0;
  if (is_best) {
    std::optional<TensorReader> file;
    session_.on_root([&] { file = TensorReader::open(fs::path(settings_.out) / model_file, Checksum::required); });
    training_->trainer().load_model(file ? &*file : nullptr);
  }
  tested_ = classify(data_.test, {settings_.mirror == "on", settings_.shift}, alive, !is_best);
}

}  // namespace

int train_cnn(Session& session, std::span<const std::string> args) {
  CnnSettings settings;
  Options options(
      "bitloom train cnn --data SPEC [--net NAME|FILE] [--out FOLDER] [options]",
      "Trains a convolutional net of floating-point numbers to classify images, and writes it to FOLDER/model.safetensors.\n"
      "Under mpirun the processes share the images of every step; rank 0 has the run folder.\n"
      "Ctrl-C or SIGTERM leaves a checkpoint that `bitloom train cnn --resume --out FOLDER` continues to the same result.");
  settings.declare(options);
  if (!read_with_resume(session, args, options)) return exit_done;
  if (settings.data.spec.empty()) {
    fail(ErrorKind::usage, "--data: missing; expected synth, or a folder of images (see --help)");
  }
  if (settings.out.empty()) settings.out = default_folder(settings.net);
  session.on_root([&] { train::check_run_folder(settings.out, settings.resume); });
  settings.data.spec = absolute_spec(settings.data.spec);
  const Threads threads = choose_threads(session.comm);
  catch_stop_signals();
  const data::DataSplits data = load_shared_data(session, settings.data, {}, 0);
  settings.data.validation = fmt::format("{}", data.validation.size());
  check_images(settings, data.train);
  const NoticeWatch notice(settings.notice_command);
  CnnTraining training(session, settings, options, data, threads);
  if (is_finished(session, options, settings, training.steps(), "--epochs")) return exit_done;
  training.run();
  return exit_done;
}

}  // namespace bitloom::cli
