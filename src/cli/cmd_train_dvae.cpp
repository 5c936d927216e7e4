// bitloom train dvae: options, images and run folder in, train::Session, a summary out.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/dvae_evaluation.h"
#include "cli/dvae_options.h"
#include "cli/field_names.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/signals.h"
#include "cli/step_samples.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/version.h"
#include "data/pairs/pair_batches.h"
#include "models/dvae/model_file.h"
#include "train/memory.h"
#include "train/session.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t evaluations = 10;

// The options that set fields of the identity that are not called like them.
std::string dvae_option(const std::string& field) {
  static const FieldOptions named{{"net", "--net"},
                                  {"data", "the training images' content (--data, --validation, --split-seed)"}};
  return option_of_float_field(field, named);
}

class DvaeTraining {
 public:
  DvaeTraining(Session& session, DvaeSettings& settings, const Options& options, const data::PairSplits& data,
               const Threads& threads)
      : session_(session),
        settings_(settings),
        options_(options),
        data_(data),
        engine_(session.comm.together([&] { return choose_device(settings.device); }), settings.backend),
        values_(choose_dtype(engine_, settings.values)),
        schedule_(settings.make_schedule()),
        net_(session.comm.together([&] { return settings.make_config(); }), schedule_.course()),
        grid_(session.comm, {session.comm.size(), 1, 1}) {
    if (settings.memory != 0) engine_.pool().set_limit(settings.memory);
    if (settings.batch > data.train.size()) {
      fail(ErrorKind::usage, "--batch: {}; expected at most the {} training images", settings.batch, data.train.size());
    }
    const std::uint64_t memory = memory_for(settings, threads, engine_.device());
    train::Session::Options all;
    all.train = settings.make_options();
    all.batch = settings.batch;
    all.choose_micro_batch = [this, memory](std::size_t share) { return choose_micro_batch(share, memory); };
    all.memory_hint = [this](std::size_t images) {
      return fmt::format("{} images at once were predicted to take {}; expected a smaller --micro-batch, or a smaller net",
                         images, format_bytes(memory_of(images)));
    };
    all.make_task = [this](std::size_t images) { return make_task(images); };
    all.layout.grid = &grid_;
    training_ = std::make_unique<train::Session>(engine_, std::move(all));
    if (!settings.init.empty() && !training_->goes_on(settings.out, settings.resume)) {
      begin_with_model();
    }
  }

  void run();

 private:
  std::uint64_t memory_of(std::size_t images) {
    const nn::Shape input = net_.input(images);
    const train::MemoryNeeds needs = train::predict_memory(*net_.layers, input, settings_.make_options());
    // Two of the largest maps are on their way.
    std::size_t largest = input.size();
    nn::Shape shape = input;
    for (std::size_t i = 0; i < net_.layers->size(); ++i) {
      shape = (*net_.layers)[i].output(shape);
      largest = std::max(largest, shape.size());
    }
    return needs.total() + 3 * largest * dtype_size(values_);
  }

  std::size_t choose_micro_batch(std::size_t share, std::uint64_t memory) {
    return largest_micro_batch(settings_, share, memory, "image", "a smaller net takes less",
                               [this](std::size_t images) { return memory_of(images); });
  }

  std::unique_ptr<train::Task> make_task(std::size_t images) {
    data::PairBatches::Options options;
    options.batch = settings_.batch;
    options.micro_batch = images;
    options.side = net_.config.side;
    options.crop = data::parse_crop(settings_.crop);
    options.seed = settings_.seed;
    options.ranks = session_.comm.size();
    batches_ = std::make_unique<data::PairBatches>(data_.train, options);
    return std::make_unique<models::DvaeTask>(
        engine_, net_, values_, images, settings_.least_log_b,
        [this](std::uint64_t step, std::uint64_t micro_batch) { return batches_->get(step, micro_batch).images; });
  }

  // Rank 0 has the file.
  void begin_with_model() {
    std::optional<TensorFile> values;
    session_.on_root([&] {
      const fs::path path = find_model(settings_.init);
      const models::LoadedDvae other = models::load_dvae(engine_, path);
      Json before = architecture_of(other.description.config);
      Json now = architecture_of(net_.config);
      before.erase("name");
      now.erase("name");
      if (before != now) {
        fail(ErrorKind::data, "--init: {}: a net of other sizes: {}; expected {}", path.string(), before.dump(), now.dump());
      }
      values = models::save_dvae(engine_, *other.net, other.description);
    });
    training_->trainer().load_model(values ? &*values : nullptr);
  }

  models::DvaeDescription description() const { return {net_.config, settings_.least_log_b}; }

  Json identity() const;
  train::RunOptions run_options();
  void announce(double peak);
  train::Evaluated evaluate(const train::SignOfLife& alive);
  void choose_samples(train::RunOptions& run, train::RunHooks& hooks);
  Json draw_samples();
  void summarise(const train::RunResult& result);

  Session& session_;
  DvaeSettings& settings_;
  const Options& options_;
  const data::PairSplits& data_;
  nn::Engine engine_;
  DType values_;
  models::DvaeSchedule schedule_;
  models::Dvae net_;
  mpi::Grid grid_;
  std::unique_ptr<data::PairBatches> batches_;
  std::unique_ptr<train::Session> training_;
  std::optional<models::DvaeEvaluation> evaluated_;
  std::optional<StepSamples> samples_;
  std::vector<std::uint8_t> originals_;  // (N,side,side,3), what they show again
};

// Lengths of courses as they were given: those in proportion to the run follow its number of steps.
Json DvaeTraining::identity() const {
  return {{"net", architecture_of(net_.config)},
          {"batch", settings_.batch},
          {"learning_rate", schedule_.rate},
          {"last_rate", settings_.last_rate},
          {"rate_steps", settings_.rate_steps},
          {"temperature", schedule_.temperature},
          {"temperature_steps", settings_.temperature_steps},
          {"kl_weight", schedule_.kl_weight},
          {"kl_steps", settings_.kl_steps},
          {"least_log_b", settings_.least_log_b},
          {"weight_decay", settings_.weight_decay},
          {"average", settings_.average},
          {"clip", settings_.clip},
          {"crop", settings_.crop},
          {"dtype", settings_.values},
          {"seed", settings_.seed},
          {"data", content_hash(data_.train)}};
}

train::RunOptions DvaeTraining::run_options() {
  train::RunOptions run = settings_.run_options(options_);
  run.steps = settings_.steps;
  run.may_change_steps = options_.is_asked_for("steps");
  if (run.evaluate_every == 0) run.evaluate_every = std::max<std::uint64_t>(1, run.steps / evaluations);
  run.identity = identity().dump();
  run.field_name = &dvae_option;
  run.unit = "images";
  run.operations_per_target = 3 * net_.cost();
  run.peak_operations = measured_peak(engine_, values_, session_.comm);
  run.start = {{"version", version},
               {"command", session_.command_line},
               {"kind", models::dvae_kind},
               {"net", architecture_of(net_.config)},
               {"parameters", net_.parameters()},
               {"batch", settings_.batch},
               {"micro_batch", training_->micro_batch()},
               {"processes", session_.comm.size()},
               {"dtype", settings_.values},
               {"train_images", data_.train.size()},
               {"validation_images", data_.validation.size()},
               {"peak_operations", run.peak_operations},
               {"operations_per_image", run.operations_per_target}};
  return run;
}

void DvaeTraining::announce(double peak) {
  Terminal& terminal = session_.terminal;
  const models::DvaeConfig& config = net_.config;
  terminal.print(
      "net '{}': {} + {} parameters, {:.3f} G multiply-adds per image; {} x {} pixels become {} x {} tokens of {} codes",
      config.name, format_count(net_.encoder_parameters()), format_count(net_.decoder_parameters()), 0.5e-9 * net_.cost(),
      config.side, config.side, config.grid(), config.grid(), config.codes);
  terminal.print("data '{}': {} training, {} validation images", settings_.data.spec, data_.train.size(),
                 data_.validation.size());
  const std::size_t micro_batch = training_->micro_batch();
  terminal.print("{}", steps_text(settings_, settings_.steps, "images", micro_batch, session_.comm.size(),
                                  batches_->steps_per_epoch(), engine_, peak));
  terminal.print("temperature 1 to {} in {} steps, weight of the divergence 0 to {} in {}, learning rate {} to {:.3g} in {}",
                 schedule_.temperature, schedule_.temperature_steps, schedule_.kl_weight, schedule_.kl_steps, schedule_.rate,
                 schedule_.last_rate, schedule_.rate_steps);
  terminal.print("memory: about {}", format_bytes(memory_of(micro_batch)));
}

train::Evaluated DvaeTraining::evaluate(const train::SignOfLife& alive) {
  const std::uint64_t step = training_->trainer().steps();
  models::DvaeCoder coder(engine_, net_, values_, std::min<std::size_t>(training_->micro_batch(), 32));
  const models::DvaeCoder::Measure measure{schedule_.temperature_at(step), settings_.least_log_b};
  training_->trainer().averaged([&] {
    evaluated_ = coder.evaluate(session_.comm, data_.validation, measure, [&] {
      alive();
      return true;
    });
  });
  Json more = evaluation_json(*evaluated_);
  more["temperature"] = measure.temperature;
  more["kl_weight"] = schedule_.kl_weight_at(step);
  const auto images = static_cast<double>(evaluated_->images);
  train::Evaluated found{{-evaluated_->hard_elb() * images, evaluated_->images}, {}, more, {}};
  found.text = fmt::format("PSNR {:.2f} dB, {} codes of perplexity {:.1f}", evaluated_->psnr(), evaluated_->codes_in_use(),
                           evaluated_->perplexity());
  // Few codes are used in the beginning.
  if (2 * step >= settings_.steps) session_.terminal.note(collapse_note(*evaluated_));
  return found;
}

// Some of the held-out images, which the pictures in samples show again.
void DvaeTraining::choose_samples(train::RunOptions& run, train::RunHooks& hooks) {
  const std::vector<std::size_t> chosen = spread(sample_count, data_.validation.size());
  // A forward pass is a third of a training step on an image.
  const double cost = static_cast<double>(chosen.size()) / (3 * static_cast<double>(settings_.batch));
  run.sample_every = settings_.samples.steps_between(settings_.steps, cost);
  settings_.samples.require(chosen.size());
  if (chosen.empty() || run.sample_every == 0) return;
  std::vector<std::string> captions;
  for (const std::size_t index : chosen) captions.push_back(data_.validation[index].caption);
  samples_.emplace(settings_.out, std::move(captions), net_.config.side);
  hooks.begin = [this, chosen](std::uint64_t step) {
    session_.on_root([&] {
      originals_ = data::centre_batch(data_.validation, chosen, net_.config.side).images;
      samples_->begin(step);
      samples_->write_originals(originals_);
    });
  };
  hooks.sample = [this](const train::SignOfLife& /*alive*/) { return draw_samples(); };
}

Json DvaeTraining::draw_samples() {
  Json line;
  training_->trainer().averaged([&] {
    session_.on_root([&] {
      models::DvaeCoder coder(engine_, net_, values_, std::min(training_->micro_batch(), sample_count));
      line = samples_->write(training_->trainer().steps(), coder.decode(coder.encode(originals_)));
    });
  });
  return line;
}

void DvaeTraining::run() {
  train::RunOptions options = run_options();
  announce(options.peak_operations);
  train::RunHooks hooks;
  if (data_.validation.size() != 0) {
    hooks.evaluate = [this](const train::SignOfLife& alive) { return evaluate(alive); };
  }
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, description()); };
  choose_samples(options, hooks);
  session_.continuation = continuation_of("dvae", settings_.out);
  LoggedProgress progress(session_.terminal, fs::path(settings_.out) / log_file);
  const train::RunResult result = training_->run(options, hooks, progress);
  session_.on_root([&] { summarise(result); });
  session_.terminal.print(
      "next:\n  bitloom eval {0}\n  bitloom reconstruct {0} --out grid.png\n  bitloom encode {0} --out tokens\n  bitloom "
      "report {0}",
      settings_.out);
  for (const std::string& note : engine_.take_notes()) session_.terminal.note(note);
}

void DvaeTraining::summarise(const train::RunResult& result) {
  Terminal& terminal = session_.terminal;
  terminal.print("\ndone in {}: {} images, {:.0f} images/s over all", format_duration(result.seconds),
                 format_count(result.targets), static_cast<double>(result.targets) / std::max(result.seconds, 1e-9));
  terminal.print("  {:<22}{:.4f} nats per number of an image", "training loss", result.training_loss);
  if (evaluated_) print_evaluation(terminal, "validation", *evaluated_);
  print_model_and_memory(terminal, settings_.out, engine_, result);
}

}  // namespace

int train_dvae(Session& session, std::span<const std::string> args) {
  DvaeSettings settings;
  Options options(
      "bitloom train dvae --data PATH [--net NAME|FILE] [--out FOLDER] [options]",
      "Trains a discrete variational autoencoder, which makes a few tokens of an image and the image of the tokens again,\n"
      "and writes it to FOLDER/model.safetensors. Under mpirun the processes share the images of every step; rank 0 has\n"
      "the run folder. Ctrl-C or SIGTERM leaves a checkpoint that `bitloom train dvae --resume --out FOLDER` continues to\n"
      "the same result.");
  settings.declare(options);
  if (!read_with_resume(session, args, options)) return exit_done;
  if (settings.data.spec.empty()) fail(ErrorKind::usage, "--data: missing; expected a folder of images with captions");
  if (settings.out.empty()) settings.out = default_folder(settings.net);
  session.on_root([&] { train::check_run_folder(settings.out, settings.resume); });
  settings.data.spec = fs::absolute(settings.data.spec).lexically_normal().string();
  const Threads threads = choose_threads(session.comm);
  catch_stop_signals();
  const data::PairSplits data = session.comm.together([&] { return load_pairs(settings.data, session.terminal); });
  const NoticeWatch notice(settings.notice_command);
  DvaeTraining training(session, settings, options, data, threads);
  if (is_finished(session, options, settings, settings.steps, "--steps")) return exit_done;
  training.run();
  return exit_done;
}

}  // namespace bitloom::cli
