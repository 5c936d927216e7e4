// bitloom train dvae: options, images and run folder in, FloatTraining, a summary out.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/dvae_evaluation.h"
#include "cli/dvae_options.h"
#include "cli/field_names.h"
#include "cli/float_training.h"
#include "cli/model_source.h"
#include "cli/notice.h"
#include "cli/run_folder.h"
#include "cli/step_samples.h"
#include "core/error.h"
#include "data/pairs/pair_batches.h"
#include "models/dvae/model_file.h"
#include "train/memory.h"

namespace bitloom::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The options that set fields of the identity that are not called like them.
std::string dvae_option(const std::string& field) {
  static const FieldOptions named{{"net", "--net"},
                                  {"data", "the training images' content (--data, --validation, --split-seed)"}};
  return option_of_float_field(field, named);
}

constexpr TrainedModel::Traits dvae_traits{.kind = models::dvae_kind,
                                           .examples = "images",
                                           .targets = "images",
                                           .speed = "images/s",
                                           .loss_unit = "nats per number of an image",
                                           .savers = "a smaller --micro-batch, or a smaller net",
                                           .next =
                                               "bitloom eval {0}{1}\n  bitloom reconstruct {0}{1} --out grid.png\n"
                                               "  bitloom encode {0} --out tokens\n  bitloom report {0}",
                                           .option_of = &dvae_option,
                                           .evaluations = 10};

class TrainedDvae final : public TrainedModel {
 public:
  TrainedDvae(Session& session, DvaeSettings& settings, const Options& options, const data::PairSplits& data,
              const Threads& threads)
      : TrainedModel(dvae_traits, session, settings, options, threads),
        settings_(settings),
        data_(data),
        schedule_(settings.make_schedule()),
        net_(session.comm.together([&] { return settings.make_config(); }), schedule_.course()) {
    if (settings.batch > data.train.size()) {
      fail(ErrorKind::usage, "--batch: {}; expected at most the {} training images", settings.batch, data.train.size());
    }
  }

  train::TrainOptions train_options() const override { return settings_.make_options(); }
  std::uint64_t steps() const override { return settings_.steps; }

  std::size_t choose_micro_batch(std::size_t share, std::uint64_t memory) override {
    const std::size_t kept = kept_micro_batch(share);
    if (kept != 0 && memory_of(kept) <= memory) return kept;
    return largest_micro_batch(settings_, share, memory, "image", "a smaller net takes less",
                               [this](std::size_t images) { return memory_of(images); });
  }

  std::string memory_text(std::size_t images) override { return format_bytes(memory_of(images)); }

  std::unique_ptr<train::Task> make_task(std::size_t images) override {
    data::PairBatches::Options options;
    options.batch = settings_.batch;
    options.micro_batch = images;
    options.side = net_.config.side;
    options.crop = data::parse_crop(settings_.crop);
    options.seed = settings_.seed;
    options.ranks = session().comm.size();
    batches_ = std::make_unique<data::PairBatches>(data_.train, options);
    return std::make_unique<models::DvaeTask>(
        engine(), net_, values(), images, settings_.least_log_b,
        [this](std::uint64_t step, std::uint64_t micro_batch) { return batches_->get(step, micro_batch).images; });
  }

  std::unique_ptr<TensorSource> initial_values() override {
    const fs::path path = find_model(settings_.init);
    const models::LoadedDvae other = models::load_dvae(engine(), path);
    Json before = architecture_of(other.description.config);
    Json now = architecture_of(net_.config);
    before.erase("name");
    now.erase("name");
    if (before != now) {
      fail(ErrorKind::data, "--init: {}: a net of other sizes: {}; expected {}", path.string(), before.dump(), now.dump());
    }
    return std::make_unique<TensorFile>(models::save_dvae(engine(), *other.net, other.description));
  }

  void describe(train::RunOptions& run) override;
  void announce(double peak) override;
  void add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) override;
  bool holds_back() const override { return data_.validation.size() != 0; }
  void summarise(const train::RunResult& /*result*/) override {
    if (evaluated_) print_evaluation(session().terminal, "validation", *evaluated_);
  }

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
    return needs.total() + 3 * largest * dtype_size(values());
  }

  models::DvaeDescription description() const { return {net_.config, settings_.least_log_b}; }

  Json identity() const;
  train::Evaluated evaluate(const train::SignOfLife& alive);
  void choose_samples(train::RunOptions& run, train::RunHooks& hooks);
  Json draw_samples();

  DvaeSettings& settings_;
  const data::PairSplits& data_;
  models::DvaeSchedule schedule_;
  models::Dvae net_;
  std::unique_ptr<data::PairBatches> batches_;
  std::optional<models::DvaeEvaluation> evaluated_;
  std::optional<StepSamples> samples_;
  std::vector<std::uint8_t> originals_;  // (N,side,side,3), what they show again
};

// Lengths of courses as they were given: those in proportion to the run follow its number of steps.
Json TrainedDvae::identity() const {
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
          {"average", average_identity(settings_.average)},
          {"clip", settings_.clip},
          {"crop", settings_.crop},
          {"dtype", settings_.values},
          {"seed", settings_.seed},
          {"data", content_hash(data_.train)}};
}

void TrainedDvae::describe(train::RunOptions& run) {
  run.identity = identity().dump();
  run.operations_per_target = 3 * net_.cost();
  run.start = {{"net", architecture_of(net_.config)},
               {"parameters", net_.parameters()},
               {"train_images", data_.train.size()},
               {"validation_images", data_.validation.size()},
               {"operations_per_image", run.operations_per_target}};
}

void TrainedDvae::announce(double peak) {
  Terminal& terminal = session().terminal;
  const models::DvaeConfig& config = net_.config;
  terminal.print(
      "net '{}': {} + {} parameters, {:.3f} G multiply-adds per image; {} x {} pixels become {} x {} tokens of {} codes",
      config.name, format_count(net_.encoder_parameters()), format_count(net_.decoder_parameters()), 0.5e-9 * net_.cost(),
      config.side, config.side, config.grid(), config.grid(), config.codes);
  terminal.print("data '{}': {} training, {} validation images", settings_.data.spec, data_.train.size(),
                 data_.validation.size());
  terminal.print("{}", steps_text(settings_, settings_.steps, "images", micro_batch(), session().comm.size(),
                                  batches_->steps_per_epoch(), engine(), peak));
  terminal.print("temperature 1 to {} in {} steps, weight of the divergence 0 to {} in {}, learning rate {} to {:.3g} in {}",
                 schedule_.temperature, schedule_.temperature_steps, schedule_.kl_weight, schedule_.kl_steps, schedule_.rate,
                 schedule_.last_rate, schedule_.rate_steps);
  terminal.print("memory: about {}", format_bytes(memory_of(micro_batch())));
}

train::Evaluated TrainedDvae::evaluate(const train::SignOfLife& alive) {
  const std::uint64_t step = training().trainer().steps();
  models::DvaeCoder coder(engine(), net_, values(), std::min<std::size_t>(micro_batch(), 32));
  const models::DvaeCoder::Measure measure{schedule_.temperature_at(step), settings_.least_log_b};
  training().trainer().averaged([&] {
    evaluated_ = coder.evaluate(session().comm, data_.validation, measure, [&] {
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
  if (2 * step >= settings_.steps) session().terminal.note(collapse_note(*evaluated_));
  return found;
}

// Some of the held-out images, which the pictures in samples show again.
void TrainedDvae::choose_samples(train::RunOptions& run, train::RunHooks& hooks) {
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
    session().on_root([&] {
      originals_ = data::centre_batch(data_.validation, chosen, net_.config.side).images;
      samples_->begin(step);
      samples_->write_originals(originals_);
    });
  };
  hooks.sample = [this](const train::SignOfLife& /*alive*/) { return draw_samples(); };
}

Json TrainedDvae::draw_samples() {
  Json line = Json::object();
  training().trainer().averaged([&] {
    session().on_root([&] {
      models::DvaeCoder coder(engine(), net_, values(), std::min(micro_batch(), sample_count));
      std::vector<std::uint8_t> images;
      try {
        images = coder.decode(coder.encode(originals_));
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::data) throw;
        session().terminal.note(fmt::format("no samples of step {}: {}", training().trainer().steps(), error.what()));
        return;  // training may go on, with a smaller scale of its loss
      }
      line = samples_->write(training().trainer().steps(), images);
    });
  });
  return line;
}

void TrainedDvae::add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& /*progress*/) {
  if (data_.validation.size() != 0) hooks.evaluate = [this](const train::SignOfLife& alive) { return evaluate(alive); };
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, description()); };
  choose_samples(run, hooks);
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
  const NeededOption needed[] = {{"--data", settings.data.spec, "a folder of images with captions"}};
  const std::optional<Threads> threads = begin_training(session, args, options, settings, settings.net, needed);
  if (!threads) return exit_done;
  if (!settings.resume && settings.kl_weight == 0 && options.asks_for_other("kl-steps", "kl-weight")) {
    fail(ErrorKind::usage, "--kl-steps: {} has no effect; it needs another --kl-weight than 0", settings.kl_steps);
  }
  settings.data.spec = kept_path(settings.data.spec);
  const data::PairSplits data = session.comm.together([&] { return load_pairs(settings.data, session.terminal); });
  settings.check_evaluation(options, data.validation.size() != 0);
  const NoticeWatch notice(settings.notice_command);
  TrainedDvae model(session, settings, options, data, *threads);
  FloatTraining training(model);
  if (is_finished(session, options, settings, settings.steps, "--steps")) return exit_done;
  training.run();
  return exit_done;
}

}  // namespace bitloom::cli
