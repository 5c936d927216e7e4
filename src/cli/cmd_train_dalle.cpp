// bitloom train dalle: options, pairs and run folder in, train::Session, a summary out.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/command.h"
#include "cli/dalle_options.h"
#include "cli/device.h"
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
#include "models/dalle/model_file.h"
#include "models/dalle/pairs.h"
#include "models/dalle/sampler.h"
#include "models/dvae/coder.h"
#include "models/dvae/model_file.h"
#include "models/model_kind.h"
#include "models/saved_values.h"
#include "train/memory.h"
#include "train/session.h"

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
                                  {"optimizer", "--beta1, --beta2, --weight-decay, --clip or --average"}};
  return option_of_float_field(field, named);
}

// Training pairs whose losses each evaluation measures beside those of the validation pairs: how far the two are apart.
constexpr std::size_t most_drawn = 128;

class DalleTraining {
 public:
  DalleTraining(Session& session, DalleSettings& settings, const Options& options, const data::PairSplits& data,
                const Threads& threads)
      : session_(session),
        settings_(settings),
        options_(options),
        data_(data),
        engine_(session.comm.together([&] { return choose_device(settings.device); }), settings.backend),
        values_(choose_dtype(engine_, settings.values)),
        dvae_(session.comm.together([&] { return models::load_dvae(engine_, find_model(settings.dvae), DType::f32); })),
        coder_(engine_, *dvae_.net, DType::f32),
        crops_vary_(find_crops_vary()),
        tokenizer_(settings.captions.make(session, data.train)),
        config_(session.comm.together([&] {
          const models::DvaeConfig& dvae = dvae_.description.config;
          return settings.make_config(tokenizer_->size(), dvae.grid(), dvae.codes);
        })),
        net_(config_),
        grid_(session.comm, {session.comm.size(), 1, 1}) {
    if (settings.memory != 0) engine_.pool().set_limit(settings.memory);
    const std::uint64_t memory = memory_for(settings, threads, engine_.device());
    train::Session::Options all;
    all.train = settings.make_options();
    all.batch = settings.batch;
    all.choose_micro_batch = [this, memory](std::size_t share) { return choose_micro_batch(share, memory); };
    all.memory_hint = [this](std::size_t pairs) {
      return fmt::format(
          "{} pairs at once were predicted to take {}; expected a smaller --micro-batch, --activation-bits, --recompute block, "
          "or a smaller net",
          pairs, format_bytes(memory_of(pairs)));
    };
    all.make_task = [this](std::size_t pairs) { return make_task(pairs); };
    all.layout.grid = &grid_;
    training_ = std::make_unique<train::Session>(engine_, std::move(all));
    if (!settings.init.empty() && !training_->goes_on(settings.out, settings.resume)) initialise();
  }

  void run();

 private:
  std::uint64_t memory_of(std::size_t pairs) {
    const nn::Shape ids = {pairs, config_.tokens()};
    const train::MemoryNeeds needs = train::predict_memory(net_.layers(), ids, settings_.make_options());
    const std::uint64_t hidden = ids.size() * config_.width * dtype_size(values_);
    const std::uint64_t logits = pairs * config_.image() * std::max(config_.codes, config_.text_vocabulary) * sizeof(float);
    return needs.total() + std::max(4 * hidden + logits, 10 * hidden);
  }

  std::size_t choose_micro_batch(std::size_t share, std::uint64_t memory) {
    return largest_micro_batch(settings_, share, memory, "pair",
                               "--recompute block, --activation-bits 3, --dtype bf16 or a smaller net take less",
                               [this](std::size_t pairs) { return memory_of(pairs); });
  }

  // Codes of the images, cut in the centre; every process makes a part of them.
  std::vector<std::int32_t> encode(const data::Pairs& pairs) {
    constexpr std::size_t at_once = 32;
    const std::size_t image = config_.image();
    const auto ranks = static_cast<std::size_t>(session_.comm.size());
    std::vector<std::int32_t> codes(pairs.size() * image);
    session_.comm.together([&] {
      for (std::size_t first = at_once * static_cast<std::size_t>(session_.comm.rank()); first < pairs.size();
           first += at_once * ranks) {
        std::vector<std::size_t> indexes(std::min(at_once, pairs.size() - first));
        std::iota(indexes.begin(), indexes.end(), first);
        const std::vector<std::int32_t> some =
            coder_.encode(data::centre_batch(pairs, indexes, dvae_.description.config.side).images);
        std::ranges::copy(some, codes.begin() + static_cast<std::ptrdiff_t>(first * image));
        session_.terminal.update(fmt::format("images become codes: {} of {}", first + indexes.size(), pairs.size()));
      }
    });
    // The others have zeros.
    constexpr std::size_t piece = std::size_t{1} << 24U;
    for (std::size_t begin = 0; begin < codes.size(); begin += piece) {
      session_.comm.sum(std::span(codes).subspan(begin, std::min(piece, codes.size() - begin)));
    }
    return codes;
  }

  std::unique_ptr<train::Task> make_task(std::size_t pairs) {
    models::DallePairs::Options options;
    options.batch = settings_.batch;
    options.micro_batch = pairs;
    options.seed = settings_.seed;
    options.merge_dropout = tokenizer_->kind() == "bytes" ? 0 : settings_.merge_dropout;
    std::vector<std::int32_t> codes;
    if (crops_vary_) {
      data::PairBatches::Options cuts;
      cuts.batch = options.batch;
      cuts.micro_batch = options.micro_batch;
      cuts.side = dvae_.description.config.side;
      cuts.crop = data::parse_crop(settings_.crop);
      cuts.seed = options.seed;
      cuts.ranks = session_.comm.size();
      batches_ = std::make_unique<data::PairBatches>(data_.train, cuts);
      options.codes_of = [this](std::uint64_t step, std::uint64_t micro_batch) {
        return coder_.encode(batches_->get(step, micro_batch).images);
      };
    } else {
      codes = encode(data_.train);
    }
    train_ = std::make_unique<models::DallePairs>(config_, *tokenizer_, captions_of(data_.train), std::move(codes), options);
    if (data_.validation.size() != 0) {
      validation_ = in_order(data_.validation);
      measured_train_ = in_order(data_.train.select(spread(std::min(most_drawn, data_.validation.size()), data_.train.size())));
    }
    return std::make_unique<models::DalleTask>(
        net_, pairs, [this](std::uint64_t step, std::uint64_t micro_batch) { return train_->batch(step, micro_batch); },
        [this](std::uint64_t step) { return train_->tokens(step); });
  }

  // Whether the codes of an image may differ from one epoch to the next.
  bool find_crops_vary() const {
    for (std::size_t i = 0; i < data_.train.size(); ++i) {
      const data::Pair& pair = data_.train[i];
      if (data::crops_vary(data::parse_crop(settings_.crop), pair.height, pair.width, dvae_.description.config.side))
        return true;
    }
    return settings_.crop == "dvae";  // which mirrors
  }

  // Pairs as they are.
  std::unique_ptr<models::DallePairs> in_order(const data::Pairs& pairs) {
    models::DallePairs::Options options;
    options.batch = options.micro_batch = 1;
    return std::make_unique<models::DallePairs>(config_, *tokenizer_, captions_of(pairs), encode(pairs), options);
  }

  // Rank 0 has the file.
  void initialise() {
    std::optional<TensorFile> file;
    session_.on_root([&] {
      const fs::path path = find_model(settings_.init);
      const models::LoadedDalle other = models::load_dalle(engine_, path);
      if (to_json(other.net->config()) != to_json(config_)) {
        fail(ErrorKind::data, "--init: {}: a net of other sizes: {}; expected {}", path.string(),
             to_json(other.net->config()).dump(), to_json(config_).dump());
      }
      if (data::tokenizer_hash(*other.tokenizer) != data::tokenizer_hash(*tokenizer_) || other.dvae != dvae_.hash) {
        fail(ErrorKind::data, "--init: {}: its tokenizer or discrete VAE is another; expected those of --tokenizer and --dvae",
             path.string());
      }
      file.emplace();
      models::add_values(engine_, *file, other.net->layers(), DType::f32);
    });
    training_->trainer().load_model(file ? &*file : nullptr);
  }

  Json identity() const;
  train::RunOptions run_options();
  void announce(double peak);
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
  void summarise(const train::RunResult& result);

  Session& session_;
  DalleSettings& settings_;
  const Options& options_;
  const data::PairSplits& data_;
  nn::Engine engine_;
  DType values_;
  models::LoadedDvae dvae_;
  models::DvaeCoder coder_;
  bool crops_vary_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  models::DalleConfig config_;
  models::Dalle net_;
  mpi::Grid grid_;
  std::unique_ptr<data::PairBatches> batches_;
  std::unique_ptr<models::DallePairs> train_, validation_;
  std::unique_ptr<models::DallePairs> measured_train_;  // some of the training pairs, cut as the validation pairs are
  std::unique_ptr<train::Session> training_;
  std::optional<StepSamples> samples_;
  std::vector<std::int32_t> sample_texts_;  // tokens (N,text) of their captions
};

Json DalleTraining::identity() const {
  Json json = settings_.identity(training_->train_options());
  json["net"] = to_json(config_);
  json["activation_bits"] = config_.activation_bits;
  json["merge_dropout"] = settings_.merge_dropout;
  json["tokenizer"] = data::tokenizer_hash(*tokenizer_);
  json["dvae"] = dvae_.hash;
  if (crops_vary_) json["crop"] = settings_.crop;
  json["data"] = content_hash(data_.train);
  return json;
}

train::RunOptions DalleTraining::run_options() {
  train::RunOptions run = settings_.run_options(options_);
  run.steps = settings_.steps;
  run.may_change_steps = options_.is_asked_for("steps");
  if (run.evaluate_every == 0) run.evaluate_every = std::max<std::size_t>(1, settings_.steps / 20);
  run.identity = identity().dump();
  run.field_name = &dalle_option;
  run.unit = "image tokens";
  run.operations_per_target = 3 * net_.cost(1) / static_cast<double>(config_.image());
  run.peak_operations = measured_peak(engine_, values_, session_.comm);
  run.start = {{"version", version},
               {"command", session_.command_line},
               {"kind", models::dalle_kind},
               {"net", to_json(config_)},
               {"parameters", config_.parameters()},
               {"activation_bits", config_.activation_bits},
               {"batch", settings_.batch},
               {"micro_batch", training_->micro_batch()},
               {"processes", session_.comm.size()},
               {"dtype", settings_.values},
               {"train_pairs", data_.train.size()},
               {"validation_pairs", data_.validation.size()},
               {"peak_operations", run.peak_operations},
               {"operations_per_token", run.operations_per_target}};
  return run;
}

void DalleTraining::announce(double peak) {
  Terminal& terminal = session_.terminal;
  terminal.print(
      "net '{}': {} parameters, {} layers of width {}; {} text tokens of {} ({} tokenizer), {} x {} image tokens of {} codes",
      settings_.net, format_count(config_.parameters()), config_.layers, config_.width, config_.text, config_.text_vocabulary,
      tokenizer_->kind(), config_.grid, config_.grid, config_.codes);
  terminal.print("data '{}': {} training, {} validation pairs; discrete VAE {}, codes {}", settings_.data.spec,
                 data_.train.size(), data_.validation.size(), settings_.dvae,
                 crops_vary_ ? "of other parts of the images in every epoch" : "the same in every epoch");
  const std::size_t micro_batch = training_->micro_batch();
  terminal.print("{}", steps_text(settings_, settings_.steps, "pairs", micro_batch, session_.comm.size(),
                                  train_->steps_per_epoch(), engine_, peak));
  terminal.print("memory: about {}", format_bytes(memory_of(micro_batch)));
}

DalleTraining::Losses DalleTraining::measure(const models::DallePairs& pairs, const train::SignOfLife& alive) {
  const std::size_t at_once = std::min<std::size_t>(training_->micro_batch(), 32);
  const auto ranks = static_cast<std::size_t>(session_.comm.size());
  // In millionths, added as whole numbers: the same for any number of ranks.
  std::array<std::int64_t, 3> sums{};  // of text, of images, text tokens
  std::size_t batch = 0;
  for (std::size_t first = 0; first < pairs.size(); first += at_once, ++batch) {
    if (batch % ranks != static_cast<std::size_t>(session_.comm.rank())) continue;
    const models::DalleBatch some = pairs.range(first, std::min(at_once, pairs.size() - first));
    const models::PairNats nats = models::pair_nats(engine_, net_, some);
    for (const double each : nats.text) sums[0] += std::llround(1e6 * each);
    for (const double each : nats.image) sums[1] += std::llround(1e6 * each);
    sums[2] += static_cast<std::int64_t>(models::text_tokens_of(config_, some.text));
    alive();
  }
  session_.comm.sum(std::span(sums));
  return {1e-6 * static_cast<double>(sums[0]) / static_cast<double>(std::max<std::int64_t>(1, sums[2])),
          1e-6 * static_cast<double>(sums[1]) / static_cast<double>(pairs.size() * config_.image())};
}

train::Evaluated DalleTraining::evaluate(const train::SignOfLife& alive) {
  Losses validation;
  Losses train;
  training_->trainer().averaged([&] {
    validation = measure(*validation_, alive);
    train = measure(*measured_train_, alive);
  });
  const std::uint64_t tokens = validation_->size() * config_.image();
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
void DalleTraining::choose_samples(train::RunOptions& run, train::RunHooks& hooks) {
  std::vector<std::size_t> chosen;
  std::vector<std::string> captions = settings_.samples.prompts;
  if (captions.empty() && validation_ != nullptr) {
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

void DalleTraining::begin_samples(std::uint64_t step, std::span<const std::size_t> chosen) {
  session_.on_root([&] {
    samples_->begin(step);
    if (chosen.empty()) return;
    const std::vector<std::uint8_t> images = data::centre_batch(data_.validation, chosen, dvae_.description.config.side).images;
    samples_->write_originals(images, coder_.decode(coder_.encode(images)));
  });
}

// The same random numbers at every step.
Json DalleTraining::draw_samples(const train::SignOfLife& alive) {
  Json line;
  training_->trainer().averaged([&] {
    session_.on_root([&] {
      models::ImageOptions options;
      options.at_once = std::min(samples_->captions().size(), training_->micro_batch());
      std::vector<std::int32_t> codes;
      for (const auto& image : models::sample_images(engine_, net_, sample_texts_, {}, options, [&](std::size_t, std::size_t) {
             alive();
             return true;
           })) {
        codes.insert(codes.end(), image.begin(), image.end());
      }
      line = samples_->write(training_->trainer().steps(), coder_.decode(codes));
    });
  });
  return line;
}

void DalleTraining::run() {
  train::RunOptions options = run_options();
  announce(options.peak_operations);
  train::RunHooks hooks;
  if (validation_ != nullptr) hooks.evaluate = [this](const train::SignOfLife& alive) { return evaluate(alive); };
  hooks.describe_model = [this](TensorFile& file) { models::add_description(file, config_, *tokenizer_, dvae_.hash); };
  choose_samples(options, hooks);
  session_.continuation = continuation_of("dalle", settings_.out);
  LoggedProgress progress(session_.terminal, fs::path(settings_.out) / log_file);
  const train::RunResult result = training_->run(options, hooks, progress);
  session_.on_root([&] { summarise(result); });
  for (const std::string& note : engine_.take_notes()) session_.terminal.note(note);
}

void DalleTraining::summarise(const train::RunResult& result) {
  Terminal& terminal = session_.terminal;
  terminal.print("\ndone in {}: {} image tokens, {:.0f} of them per second over all", format_duration(result.seconds),
                 format_count(result.targets), static_cast<double>(result.targets) / std::max(result.seconds, 1e-9));
  terminal.print("  {:<22}{:.4f} nats, an eighth the text's", "training loss", result.training_loss);
  if (result.last_loss) {
    terminal.print("  {:<22}{:.4f}; best {:.4f} after step {}", "validation loss", *result.last_loss, *result.best_loss,
                   result.best_step);
  }
  print_model_and_memory(terminal, settings_.out, engine_, result);
  terminal.print(
      "next:\n  bitloom sample {0} --prompt TEXT --count 16 --out grid.png\n  bitloom eval {0}\n  bitloom report {0}",
      settings_.out);
}

}  // namespace

int train_dalle(Session& session, std::span<const std::string> args) {
  DalleSettings settings;
  Options options(
      "bitloom train dalle --data PATH --dvae RUN [--net NAME] [--out FOLDER] [options]",
      "Trains a transformer to tell the next token of captions and of their images, which a discrete VAE makes tokens of\n"
      "(`bitloom train dvae`), and writes it to FOLDER/model.safetensors; `bitloom sample` draws images from it. Under\n"
      "mpirun the processes share the pairs of every step; rank 0 has the run folder. Ctrl-C or SIGTERM leaves a\n"
      "checkpoint that `bitloom train dalle --resume --out FOLDER` continues to the same result.");
  settings.declare(options);
  if (!read_with_resume(session, args, options)) return exit_done;
  if (settings.data.spec.empty()) fail(ErrorKind::usage, "--data: missing; expected a folder of images with captions");
  if (settings.dvae.empty()) fail(ErrorKind::usage, "--dvae: missing; expected a run or model of `bitloom train dvae`");
  if (settings.out.empty()) settings.out = default_folder(settings.net);
  session.on_root([&] { train::check_run_folder(settings.out, settings.resume); });
  for (std::string* path : {&settings.data.spec, &settings.dvae}) *path = fs::absolute(*path).lexically_normal().string();
  const Threads threads = choose_threads(session.comm);
  catch_stop_signals();
  const data::PairSplits data = session.comm.together([&] { return load_pairs(settings.data, session.terminal); });
  if (is_finished(session, options, settings, settings.steps, "--steps")) return exit_done;
  const NoticeWatch notice(settings.notice_command);
  DalleTraining(session, settings, options, data, threads).run();
  return exit_done;
}

}  // namespace bitloom::cli
