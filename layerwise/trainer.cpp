#include "layerwise/trainer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/metrics.h"
#include "layerwise/cache.h"

namespace bitloom::layerwise {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr const char* checkpoint_name = "checkpoint.safetensors";
constexpr const char* previous_name = "checkpoint.previous.safetensors";
constexpr const char* model_name = "model.safetensors";

// What one stage's result depends on: the data, the encoder, the options, its own description, and the stages that trained
// the layers below it. Stages with equal keys have equal results, whatever net they belong to.
std::vector<Hash128> stage_keys(const NetSpec& net, const TrainOptions& train, const std::string& data_hash) {
  const Json json = to_json(net);
  std::map<std::string, Hash128> trained_by;
  std::vector<Hash128> keys;
  for (std::size_t s = 0; s < net.stages.size(); ++s) {
    Hasher hasher;
    hasher.update(std::string_view("bitloom stage 1")).update(std::string_view(data_hash));
    hasher.update(std::string_view(json["encoder"].dump())).update(std::string_view(describe(train)));
    hasher.update(std::string_view(json["stages"][s].dump()));
    for (const std::string& name : net.stages[s].train) {
      for (const Json& layer : json["layers"]) {
        if (layer["name"] == name) hasher.update(std::string_view(layer.dump()));
      }
      for (const std::string& input : net.layer(name).inputs) {
        const auto below = trained_by.find(input);
        if (below != trained_by.end()) hasher.update(std::string_view(below->second.hex()));
      }
    }
    keys.push_back(hasher.finish());
    for (const std::string& name : net.stages[s].train) trained_by[name] = keys.back();
  }
  return keys;
}

// Everything that train() needs between its steps.
class Run {
 public:
  Run(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
      ProgressSink& progress);
  RunResult execute();

 private:
  void open_folder();
  void read_checkpoint();
  void write_checkpoint(const Stage* stage);
  bool reuse(std::size_t s);
  void train_stage(std::size_t s);
  void report_epoch(const Stage& stage, const StepResult& epoch, std::size_t steps, double seconds);
  void finish_stage(const Stage& stage);
  std::unique_ptr<Stage> make_stage(std::size_t s);
  void save_trained(TensorFile& file) const;
  void load_stage(const TensorFile& file, std::size_t s);
  Classifier classifier(const std::vector<std::string>& voters, bool mirror, const Stage* stage) const;
  double elapsed() const { return earlier_seconds_ + seconds_since(start_); }
  template <typename F>
  void on_root(F&& f) {
    comm_.together([&] {
      if (comm_.is_root()) f();
    });
  }

  const simd::Kernels& kernels_;
  mpi::Comm& comm_;
  const RunOptions& options_;
  const data::DataSplits& data_;
  ProgressSink& progress_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<Cache> cache_;
  std::vector<Hash128> keys_;
  RunResult result_;
  std::size_t stage_ = 0;                  // stages finished
  std::optional<TensorFile> resume_from_;  // state of the stage under way
  Clock::time_point start_ = Clock::now();
  double earlier_seconds_ = 0;
};

Run::Run(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
         ProgressSink& progress)
    : kernels_(kernels), comm_(comm), options_(options), data_(data), progress_(progress) {
  result_.model.net = options.net;
  result_.model.class_names = data.train.class_names;
  keys_ = stage_keys(options.net, options.train, data::content_hash(data.train));
}

void Run::open_folder() {
  on_root([&] {
    const auto& folder = options_.folder;
    if (options_.resume && !std::filesystem::exists(folder)) {
      fail(ErrorKind::usage, "--resume: there is no run in {}", folder.string());
    }
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail(ErrorKind::io, "--out: {} cannot be created: {}", folder.string(), error.message());
    lock_ = std::make_unique<FileLock>(folder / ".lock");
    const bool has_run = std::filesystem::exists(folder / checkpoint_name) || std::filesystem::exists(folder / model_name) ||
                         std::filesystem::exists(folder / "metrics.jsonl");
    if (has_run && !options_.resume) {
      fail(ErrorKind::usage, "--out: {} already holds a run; continue it with --resume or choose another folder",
           folder.string());
    }
    if (options_.resume && std::filesystem::exists(folder / model_name)) {
      fail(ErrorKind::usage, "--resume: the run in {} is finished: {} is there", folder.string(), model_name);
    }
    const Json config = {{"net", to_json(options_.net)},
                         {"data", options_.data_name},
                         {"options", describe(options_.train)},
                         {"command", options_.command}};
    // A run that is continued keeps its own.
    if (!options_.resume) write_atomically(folder / "config.json", config.dump(2) + "\n");
    metrics_ = std::make_unique<MetricsWriter>(folder / "metrics.jsonl");
    if (!options_.cache.empty() && options_.cache_limit > 0) {
      cache_ = std::make_unique<Cache>(
          options_.cache, options_.cache_limit, [this](const std::filesystem::path& file, const std::string& reason) {
            progress_.line(fmt::format("cache: {} was damaged and is rebuilt: {}", file.string(), reason));
          });
    }
  });
}

void Run::save_trained(TensorFile& file) const {
  for (std::size_t s = 0; s < stage_; ++s) {
    for (const std::string& name : options_.net.stages[s].train) {
      for (const BinaryLayer& layer : result_.model.layers) {
        if (layer.spec().name == name) layer.save(file);
      }
    }
    for (const std::string& name : options_.net.stages[s].heads) result_.model.heads.at(name).save(file, name + ".head", false);
  }
}

// The layers and heads of finished stage s.
void Run::load_stage(const TensorFile& file, std::size_t s) {
  const StageSpec& spec = options_.net.stages[s];
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (BinaryLayer& layer : result_.model.layers) {
    const std::string& name = layer.spec().name;
    if (has(spec.train, name)) layer.load(file);
    if (!has(spec.heads, name)) continue;
    Head head(spec.head, layer.geometry().output, data_.train.classes(), 0, 0);
    head.load(file, name + ".head", false);
    result_.model.heads.insert_or_assign(name, std::move(head));
  }
}

void Run::write_checkpoint(const Stage* stage) {
  on_root([&] {
    TensorFile file;
    metrics_->sync();
    Json notes = {{"stage", stage_},
                  {"seconds", elapsed()},
                  {"images", result_.images},
                  {"metrics_bytes", metrics_->size()},
                  {"in_stage", stage != nullptr}};
    for (const StageSummary& summary : result_.stages) {
      notes["stages"].push_back({{"name", summary.name},
                                 {"seconds", summary.seconds},
                                 {"reused", summary.reused},
                                 {"validation_accuracy", summary.validation_accuracy}});
    }
    file.metadata["bitloom.checkpoint"] = notes.dump();
    file.metadata["bitloom.run"] = keys_.back().hex();
    result_.model.encoder.save(file);
    save_trained(file);
    if (stage != nullptr) stage->save(file);
    // The last good checkpoint stays until the new one is complete, and one more is kept.
    const auto path = options_.folder / checkpoint_name;
    const std::vector<std::byte> bytes = file.serialize();
    const auto next = options_.folder / "checkpoint.next.safetensors";
    write_atomically(next, bytes);
    std::error_code ignored;
    if (std::filesystem::exists(path)) std::filesystem::rename(path, options_.folder / previous_name, ignored);
    std::filesystem::rename(next, path);
  });
}

void Run::read_checkpoint() {
  std::vector<std::byte> bytes;
  on_root([&] {
    for (const char* name : {checkpoint_name, previous_name}) {
      const auto path = options_.folder / name;
      if (!std::filesystem::exists(path)) continue;
      try {
        bytes = read_bytes(path);
        const TensorFile file = TensorFile::parse(bytes, path.string(), Checksum::required);
        if (file.get_metadata("bitloom.run") != keys_.back().hex()) {
          fail(ErrorKind::usage, "--resume: the checkpoint in {} belongs to a run with other data, net or options",
               options_.folder.string());
        }
        return;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::data) throw;
        progress_.line(fmt::format("{}; trying the one before", error.what()));
        bytes.clear();
      }
    }
  });
  bytes = comm_.broadcast_bytes(std::move(bytes));
  if (bytes.empty()) {
    progress_.line("no usable checkpoint: training starts from the beginning");
    return;
  }
  TensorFile file = TensorFile::parse(bytes, checkpoint_name, Checksum::required);
  const Json notes = Json::parse(file.get_metadata("bitloom.checkpoint"));
  stage_ = notes["stage"];
  earlier_seconds_ = notes["seconds"];
  result_.images = notes["images"];
  for (const Json& each : notes.value("stages", Json::array())) {
    result_.stages.push_back({each["name"], each["seconds"], each["reused"], each["validation_accuracy"]});
  }
  for (std::size_t s = 0; s < stage_; ++s) load_stage(file, s);
  if (notes["in_stage"].get<bool>()) resume_from_ = std::move(file);
  if (comm_.is_root()) metrics_->truncate_to(notes["metrics_bytes"]);
}

std::unique_ptr<Stage> Run::make_stage(std::size_t s) {
  // 20 bits of the key separate the random streams of stages; equal stages of two nets draw equal numbers.
  return std::make_unique<Stage>(kernels_, comm_, options_.net.stages[s], result_.model.encoder, result_.model.layers,
                                 data_.train, options_.train, keys_[s].low & 0xFFFFF);
}

// Loads stage s from the cache if an equal one was trained before.
bool Run::reuse(std::size_t s) {
  std::vector<std::byte> bytes;
  on_root([&] {
    if (cache_ == nullptr) return;
    if (auto found = cache_->get(keys_[s].hex())) bytes = std::move(*found);
  });
  bytes = comm_.broadcast_bytes(std::move(bytes));
  if (bytes.empty()) return false;
  const TensorFile file = TensorFile::parse(bytes, "cached stage", Checksum::required);
  const StageSpec& spec = options_.net.stages[s];
  load_stage(file, s);
  StageSummary summary{spec.name, 0, true, std::stod(file.get_metadata("validation_accuracy"))};
  progress_.line(fmt::format("{}: taken from the cache (validation {:.2f}%)", spec.name, 100 * summary.validation_accuracy));
  if (comm_.is_root()) {
    metrics_->write({{"event", "stage"},
                     {"stage", spec.name},
                     {"seconds", 0.0},
                     {"reused", true},
                     {"validation_accuracy", summary.validation_accuracy}});
  }
  result_.stages.push_back(summary);
  return true;
}

// The heads of `voters`, those of the stage under way as they are now.
Classifier Run::classifier(const std::vector<std::string>& voters, bool mirror, const Stage* stage) const {
  std::vector<const Head*> heads;
  std::vector<std::size_t> head_layers;
  for (const std::string& name : voters) {
    for (std::size_t i = 0; i < result_.model.layers.size(); ++i) {
      if (result_.model.layers[i].spec().name == name) head_layers.push_back(i);
    }
    const Head* head = stage == nullptr ? &result_.model.heads.at(name) : nullptr;
    for (std::size_t h = 0; stage != nullptr && h < stage->heads(); ++h) {
      if (stage->head_layer(h) == name) head = &stage->head(h);
    }
    heads.push_back(head);
  }
  return Classifier(kernels_, result_.model.encoder, result_.model.layers, heads, head_layers, mirror);
}

void Run::report_epoch(const Stage& stage, const StepResult& epoch, std::size_t steps, double seconds) {
  const std::size_t number = stage.step_number() / stage.steps_per_epoch();
  const auto images = static_cast<double>(epoch.images);
  Json line = {{"event", "epoch"},
               {"stage", stage.spec().name},
               {"epoch", number},
               {"epochs", stage.spec().epochs},
               {"step", stage.step_number()},
               {"steps", stage.total_steps()},
               {"seconds", elapsed()},
               {"rate", stage.rate()},
               {"images_per_second", images / std::max(seconds, 1e-9)}};
  std::string text = fmt::format("{} epoch {}/{}:", stage.spec().name, number, stage.spec().epochs);
  std::vector<double> validation;
  if (data_.validation.size() != 0) {
    validation = classifier(stage.spec().heads, false, &stage).head_accuracies(comm_, data_.validation);
  }
  for (std::size_t h = 0; h < stage.heads(); ++h) {
    const double loss = epoch.loss[h] / images;
    const double accuracy = static_cast<double>(epoch.correct[h]) / images;
    Json head = {{"layer", stage.head_layer(h)}, {"loss", loss}, {"train_accuracy", accuracy}};
    text += fmt::format(" {} loss {:.3f}, training {:.1f}%", stage.head_layer(h), loss, 100 * accuracy);
    if (!validation.empty()) {
      head["validation_accuracy"] = validation[h];
      text += fmt::format(", validation {:.1f}%", 100 * validation[h]);
    }
    line["heads"].push_back(head);
  }
  for (std::size_t t = 0; t < stage.trainers().size(); ++t) {
    const LayerTrainer& trainer = *stage.trainers()[t];
    const double flips = static_cast<double>(epoch.flips[t]) / static_cast<double>(steps);
    line["layers"].push_back(
        {{"layer", trainer.layer().spec().name},
         {"flips_per_step", flips},
         {"flip_share", flips / static_cast<double>(trainer.layer().channels() * trainer.layer().geometry().valid_bits)},
         {"active_share", epoch.active_share[t] / static_cast<double>(steps)},
         {"offset", trainer.mean_offset()},
         {"window", trainer.mean_window()}});
  }
  const PhaseTimes& times = epoch.times;
  line["times"] = {{"data", times.data}, {"encode", times.encode},     {"prefix", times.prefix}, {"forward", times.forward},
                   {"head", times.head}, {"gradient", times.gradient}, {"reduce", times.reduce}, {"update", times.update}};
  if (comm_.is_root()) metrics_->write(line);
  progress_.line(text + fmt::format(", {:.0f} images/s", images / std::max(seconds, 1e-9)));
}

void Run::finish_stage(const Stage& stage) {
  const StageSpec& spec = stage.spec();
  for (std::size_t h = 0; h < stage.heads(); ++h) result_.model.heads.insert_or_assign(stage.head_layer(h), stage.head(h));
  StageSummary summary;
  summary.name = spec.name;
  if (data_.validation.size() != 0) {
    summary.validation_accuracy =
        classifier(spec.heads, options_.net.mirror, nullptr).evaluate(comm_, data_.validation).accuracy();
  }
  summary.seconds = elapsed();
  for (const StageSummary& earlier : result_.stages) summary.seconds -= earlier.seconds;
  result_.stages.push_back(summary);
  on_root([&] {
    metrics_->write({{"event", "stage"},
                     {"stage", spec.name},
                     {"seconds", summary.seconds},
                     {"reused", false},
                     {"validation_accuracy", summary.validation_accuracy}});
    if (cache_ == nullptr) return;
    TensorFile file;
    for (const auto& trainer : stage.trainers()) trainer->layer().save(file);
    for (std::size_t h = 0; h < stage.heads(); ++h) stage.head(h).save(file, stage.head_layer(h) + ".head", false);
    file.metadata["validation_accuracy"] = fmt::format("{:.17g}", summary.validation_accuracy);
    cache_->put(keys_[stage_].hex(), file.serialize());
  });
  progress_.line(fmt::format("{}: done in {}, validation {:.2f}%", spec.name, format_duration(summary.seconds),
                             100 * summary.validation_accuracy));
}

void Run::train_stage(std::size_t s) {
  const std::unique_ptr<Stage> stage = make_stage(s);
  std::size_t bits = 0;
  for (const auto& trainer : stage->trainers()) bits = std::max(bits, trainer->state_bits_per_weight());
  if (resume_from_) {
    stage->load(*resume_from_);
    resume_from_.reset();
  }
  progress_.line(fmt::format("{}: {} steps of {} images, {} bits of training state per weight", stage->spec().name,
                             stage->total_steps(), std::min(options_.train.batch, data_.train.size()), bits));
  StepResult epoch;
  std::size_t epoch_steps = 0;
  double epoch_seconds = 0;
  Clock::time_point last_checkpoint = Clock::now();
  while (!stage->finished()) {
    const Clock::time_point before = Clock::now();
    const StepResult step = stage->step();
    epoch_seconds += seconds_since(before);
    ++epoch_steps;
    ++result_.steps;
    result_.images += step.images;
    const auto add = [](auto& total, const auto& part) {
      total.resize(part.size());
      for (std::size_t i = 0; i < part.size(); ++i) total[i] += part[i];
    };
    epoch.images += step.images;
    epoch.times += step.times;
    add(epoch.loss, step.loss);
    add(epoch.correct, step.correct);
    add(epoch.flips, step.flips);
    add(epoch.active_share, step.active_share);

    const std::size_t done = stage->step_number();
    const double rate = static_cast<double>(epoch.images) / std::max(epoch_seconds, 1e-9);
    const double left = static_cast<double>((stage->total_steps() - done) * step.images) / rate;
    progress_.update(fmt::format(
        "{} step {}/{}: loss {:.3f}, training {:.1f}%, {:.0f} images/s, stage ends in {}", stage->spec().name, done,
        stage->total_steps(), epoch.loss.back() / static_cast<double>(epoch.images),
        100.0 * static_cast<double>(epoch.correct.back()) / static_cast<double>(epoch.images), rate, format_duration(left)));
    if (done % stage->steps_per_epoch() == 0) {
      peak_memory();
      report_epoch(*stage, epoch, epoch_steps, epoch_seconds);
      epoch = {};
      epoch_steps = 0;
      epoch_seconds = 0;
    }
    const bool asked =
        (options_.stop && options_.stop()) || (options_.stop_after_steps != 0 && result_.steps >= options_.stop_after_steps);
    if (comm_.flag_any(asked) && !stage->finished()) {
      write_checkpoint(stage.get());
      fail(ErrorKind::interrupted, "interrupted at step {} of stage '{}'; everything is in {}", done, stage->spec().name,
           options_.folder.string());
    }
    const bool due = comm_.is_root() && seconds_since(last_checkpoint) >= options_.checkpoint_seconds;
    if (comm_.flag_any(due) && !stage->finished()) {
      write_checkpoint(stage.get());
      last_checkpoint = Clock::now();
    }
  }
  finish_stage(*stage);
}

RunResult Run::execute() {
  open_folder();
  Model& model = result_.model;
  // Fitted by rank 0 alone, so that no float of the fit can differ between machines.
  TensorFile encoder;
  on_root([&] { Encoder::fit(options_.net.encoder, data_.train, options_.train.seed).save(encoder); });
  const std::vector<std::byte> encoder_bytes =
      comm_.broadcast_bytes(comm_.is_root() ? encoder.serialize() : std::vector<std::byte>{});
  model.encoder = Encoder::load(TensorFile::parse(encoder_bytes, "encoder"));
  const MapShape input = model.encoder.output();
  const auto geometry = derive_geometry(options_.net, input.height, input.width, input.channels);
  for (std::size_t i = 0; i < geometry.size(); ++i) model.layers.emplace_back(options_.net.layers[i], geometry[i]);
  if (options_.resume) read_checkpoint();
  while (stage_ < options_.net.stages.size()) {
    if (resume_from_.has_value() || !reuse(stage_)) train_stage(stage_);
    ++stage_;
    if (stage_ < options_.net.stages.size()) write_checkpoint(nullptr);
  }
  const Classifier voters = classifier(model.net.classifier, model.net.mirror, nullptr);
  if (data_.validation.size() != 0) result_.validation = voters.evaluate(comm_, data_.validation);
  if (data_.test.size() != 0) result_.test = voters.evaluate(comm_, data_.test);
  result_.seconds = elapsed();
  model.notes = {{"data", options_.data_name},
                 {"seed", fmt::format("{}", options_.train.seed)},
                 {"options", describe(options_.train)},
                 {"validation_accuracy", fmt::format("{:.4f}", result_.validation.accuracy())},
                 {"test_accuracy", fmt::format("{:.4f}", result_.test.accuracy())},
                 {"training_seconds", fmt::format("{:.1f}", result_.seconds)}};
  // Auxiliary layers that only their stage used are not part of the result.
  model.net = without_discarded(model.net);
  TensorFile trained;
  for (const BinaryLayer& layer : model.layers) layer.save(trained);
  const auto kept = derive_geometry(model.net, input.height, input.width, input.channels);
  model.layers.clear();
  for (std::size_t i = 0; i < kept.size(); ++i) {
    model.layers.emplace_back(model.net.layers[i], kept[i]);
    model.layers.back().load(trained);
  }
  std::erase_if(model.heads, [&](const auto& head) { return model.net.find(head.first) == nullptr; });
  on_root([&] {
    const auto path = options_.folder / model_name;
    model.save(path);
    const std::size_t classes = model.class_names.size();
    Json confusion = Json::array();
    for (std::size_t l = 0; l < classes && !result_.test.confusion.empty(); ++l) {
      const auto row = result_.test.confusion.begin() + static_cast<std::ptrdiff_t>(l * classes);
      confusion.push_back(std::vector<std::int64_t>(row, row + static_cast<std::ptrdiff_t>(classes)));
    }
    metrics_->write({{"event", "result"},
                     {"validation_accuracy", result_.validation.accuracy()},
                     {"test_accuracy", result_.test.accuracy()},
                     {"images", result_.test.images},
                     {"confusion", confusion},
                     {"classes", model.class_names},
                     {"seconds", result_.seconds},
                     {"peak_memory_bytes", peak_memory()},
                     {"model_bytes", std::filesystem::file_size(path)},
                     {"weight_bits", model.weight_bits()},
                     {"bit_macs", model.bit_macs()}});
    // The model says it all now.
    std::error_code ignored;
    std::filesystem::remove(options_.folder / checkpoint_name, ignored);
    std::filesystem::remove(options_.folder / previous_name, ignored);
  });
  return std::move(result_);
}

}  // namespace

RunResult train(const simd::Kernels& kernels, mpi::Comm& comm, const RunOptions& options, const data::DataSplits& data,
                ProgressSink& progress) {
  return Run(kernels, comm, options, data, progress).execute();
}

std::string describe(const TrainOptions& options) {
  const LayerOptions& layer = options.layer;
  const RuleOptions& rule = layer.rule;
  const Json json = {{"batch", options.batch},
                     {"seed", options.seed},
                     {"signal", options.signal},
                     {"augment", data::to_string(options.augment)},
                     {"head_rate", options.head_rate},
                     {"head_decay", options.head_decay},
                     {"label_smoothing", options.label_smoothing},
                     {"final_rate", options.final_rate},
                     {"warmup_steps", options.warmup_steps},
                     {"offset_rate", layer.offset_rate},
                     {"initial_offset", layer.initial_offset},
                     {"active_share", layer.active_share},
                     {"initial_window", layer.initial_window},
                     {"code_target", layer.code_target},
                     {"learn_weights", layer.learn_weights},
                     {"rule", rule.name},
                     {"learning_rate", rule.learning_rate},
                     {"momentum", rule.momentum},
                     {"flip_share", rule.flip_share},
                     {"flip_threshold", rule.flip_threshold},
                     {"flip_rate", rule.flip_rate},
                     {"dead_zone", rule.dead_zone}};
  return json.dump();
}

std::uint64_t peak_memory() {
  // VmHWM would count file pages that the kernel can drop; RssAnon is what the process really needs.
  static std::atomic<std::uint64_t> peak = 0;
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) peak = std::max<std::uint64_t>(peak, std::stoull(line.substr(8)) * 1024);
  }
  return peak;
}

}  // namespace bitloom::layerwise
