#include "plan/virtual_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "core/text.h"
#include "layerwise/encoder.h"
#include "layerwise/stage.h"
#include "layerwise/trained_stages.h"
#include "layerwise/trainer.h"
#include "mpi/comm.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::plan {
namespace {

// The images again and again until there are `count`.
data::Dataset repeated(const data::Dataset& set, std::size_t count) {
  data::Dataset more = data::without_images(set);
  for (std::size_t i = 0; i < count; ++i) data::append_image(more, set, i % set.size());
  return more;
}

std::size_t find_stage(const layerwise::NetSpec& net, const std::string& name) {
  std::vector<std::string> names;
  for (std::size_t s = 0; s < net.stages.size(); ++s) {
    if (name.empty() || net.stages[s].name == name) return s;
    names.push_back(net.stages[s].name);
  }
  fail_field(ErrorKind::usage, "stage", "'{}' is not a stage of net '{}'; expected {}", name, net.name, fmt::join(names, ", "));
}

// A net before one of its stages.
class Below {
 public:
  Below(const simd::Kernels& kernels, const VirtualOptions& options, std::size_t stage, const data::Dataset& train,
        const layerwise::Model* lower)
      : encoder_(lower != nullptr ? lower->encoder : layerwise::Encoder::fit(options.net.encoder, train, options.train.seed)),
        id_(layerwise::stage_ids(options.net)[stage]) {
    const layerwise::MapShape input = encoder_.output();
    const auto geometry = layerwise::derive_geometry(options.net, input.height, input.width, input.channels);
    for (std::size_t i = 0; i < geometry.size(); ++i) layers_.emplace_back(options.net.layers[i], geometry[i]);
    TensorFile given;
    for (std::size_t i = 0; lower != nullptr && i < lower->layers.size(); ++i) lower->layers[i].save(given);
    for (std::size_t s = 0; s < stage; ++s) {
      const layerwise::StageSpec& spec = options.net.stages[s];
      if (lower != nullptr) {
        load(spec, *lower, given);
      } else {
        draw(kernels, options, spec, train, s);
      }
      earlier_.layers.insert(earlier_.layers.end(), spec.train.begin(), spec.train.end());
    }
  }

  const layerwise::Encoder& encoder() const { return encoder_; }
  std::vector<layerwise::BinaryLayer>& layers() { return layers_; }
  const layerwise::Earlier& earlier() const { return earlier_; }
  std::uint64_t id() const { return id_; }

 private:
  void load(const layerwise::StageSpec& spec, const layerwise::Model& model, const TensorFile& given) {
    for (layerwise::BinaryLayer& layer : layers_) {
      const std::string& name = layer.spec().name;
      if (!contains(spec.train, name) || contains(spec.discard, name)) continue;
      if (model.net.find(name) == nullptr) fail_field(ErrorKind::usage, "lower", "the model has no layer '{}'", name);
      layer.load(given);
    }
  }

  // Random weights, and the thresholds that suit them, come with a first step.
  void draw(const simd::Kernels& kernels, const VirtualOptions& options, const layerwise::StageSpec& spec,
            const data::Dataset& train, std::size_t s) {
    layerwise::TrainOptions training = layerwise::for_stage(options.train, spec);
    training.sparse = false;
    training.workers = 1;
    training.batch = std::min<std::size_t>(training.batch, 128);
    mpi::Comm comm;
    layerwise::Stage stage(kernels, comm, spec, encoder_, layers_, train, training, s, earlier_);
    stage.step();
  }

  layerwise::Encoder encoder_;
  std::vector<layerwise::BinaryLayer> layers_;
  layerwise::Earlier earlier_;
  std::uint64_t id_;
};

// Means of what comes without statistics, with those of fewer updates than usual, which comes at the start, and with usual
// ones.
struct Mean {
  struct Part {
    double sum = 0;
    std::size_t times = 0;
    double mean() const { return sum / static_cast<double>(times); }
  };
  std::array<Part, 3> parts;

  // observed: updates that the statistics are of.
  void add(double value, std::size_t observed, std::size_t every) {
    Part& part = parts[observed == 0 ? 0 : observed < every ? 1 : 2];
    part.sum += value;
    ++part.times;
  }
  // If every `every`th has statistics.
  double over(std::size_t every) const {
    const Part& without = parts[0];
    const Part& with = parts[2].times > 0 ? parts[2] : parts[1];
    if (with.times == 0) return without.mean();
    if (without.times == 0) return with.mean();
    return without.mean() + (with.mean() - without.mean()) / static_cast<double>(every);
  }
};

// Over the updates of a run.
struct Sums {
  Mean worker_bytes, reply_bytes, fixed_bytes;
  mpi::ExchangeCounts counts;
  double compute = 0, encode = 0, choose = 0, apply = 0;
  std::size_t timed = 0;
  VirtualTree::Cost merging;

  void time(const layerwise::StepResult& step, const VirtualTree::Cost& cost, double seconds) {
    ++timed;
    const double filtering = step.exchange.encode - cost.finishing;  // `encode` counts finishing as well
    compute += step.times.computing();
    encode += filtering;
    apply += step.times.update;
    choose += std::max(0.0, seconds - step.times.computing() - filtering - step.times.update - cost.finishing);
    merging.merging += cost.merging;
    merging.bytes += cost.bytes;
  }
};

MessageLength length_of(double measured, double fixed, double budget) {
  if (!(budget > 0)) return {measured, measured, false};
  return {measured, std::max(budget, fixed), fixed < budget};
}

void add_levels(std::vector<LevelTraffic>& sums, const std::vector<LevelTraffic>& levels) {
  sums.resize(levels.size());
  for (std::size_t i = 0; i < levels.size(); ++i) {
    sums[i].ranks = levels[i].ranks;
    sums[i].bytes += levels[i].bytes;
    sums[i].largest = std::max(sums[i].largest, levels[i].largest);
  }
}

}  // namespace

VirtualResult run_virtual(const simd::Kernels& kernels, const VirtualOptions& options, const data::Dataset& given,
                          const layerwise::Model* lower, ProgressSink& progress) {
  if (given.size() == 0) fail_field(ErrorKind::data, "data", "no training images");
  const std::size_t s = find_stage(options.net, options.stage);
  layerwise::StageSpec spec = options.net.stages[s];
  layerwise::TrainOptions training = layerwise::for_stage(options.train, spec);
  const std::size_t workers = training.workers;
  training.warmup_steps = std::min(training.warmup_steps, options.updates / 5);
  training.exchange.last_messages = 1;  // these few updates stand for all
  layerwise::forget_peak_memory();      // an earlier stage may have kept more
  VirtualResult result;
  result.images = training.batch;
  result.total_updates = std::max(1.0, std::floor(static_cast<double>(given.size()) / static_cast<double>(training.batch))) *
                         static_cast<double>(spec.epochs);

  Below below(kernels, options, s, given, lower);
  data::Dataset more;
  if (given.size() < training.batch) more = repeated(given, training.batch);
  const data::Dataset& train = given.size() < training.batch ? more : given;
  const std::size_t per_epoch = train.size() / training.batch;
  spec.epochs = std::max(spec.epochs, (options.updates + per_epoch - 1) / per_epoch);

  result.error_feedback_bytes =
      layerwise::bytes_kept_by_worker(kernels, spec, below.encoder(), below.layers(), train, training);
  if (const std::uint64_t kept = result.error_feedback_bytes * workers;
      options.memory_limit != 0 && kept > options.memory_limit) {
    fail_field(ErrorKind::usage, "workers",
               "what {} workers keep takes {} ({} each), more than `memory_limit` allows, {}; use fewer, a smaller net, or "
               "`error_feedback` none",
               workers, format_bytes(kept), format_bytes(result.error_feedback_bytes), format_bytes(options.memory_limit));
  }
  mpi::Comm comm;
  layerwise::Stage stage(kernels, comm, spec, below.encoder(), below.layers(), train, training, below.id(), below.earlier());
  const std::size_t every = training.exchange.exact() ? 1 : stage.statistics_every();
  auto owned = std::make_unique<VirtualTree>(workers, options.ranks, training.exchange.tree.fan_in);
  VirtualTree& tree = *owned;
  stage.exchange()->set_merger(std::move(owned));

  Sums sums;
  for (std::size_t n = 0; n < options.updates; ++n) {
    if (n + 1 == options.updates) tree.measure_merging();
    const Clock::time_point start = Clock::now();
    const layerwise::StepResult& step = stage.step();
    VirtualUpdate update;
    update.seconds = seconds_since(start);
    update.worker_bytes = step.exchange.worker_bytes;
    update.reply_bytes = step.exchange.reply_bytes;
    update.statistics = stage.statistics_due(n);
    update.learns = stage.learns(n);
    const std::vector<LevelTraffic> levels = tree.take_levels();
    for (const LevelTraffic& level : levels) update.level_bytes.push_back(level.bytes);
    for (const std::size_t flips : step.flips) update.flips += flips;
    const auto images = std::max(1.0, static_cast<double>(step.images));
    update.loss = step.loss.back() / images;
    update.accuracy = static_cast<double>(step.correct.back()) / images;
    const auto each = static_cast<double>(update.worker_bytes) / static_cast<double>(workers);
    progress.update(fmt::format("update {}/{}: {:.1f} s, {:.0f} bytes per worker, server reply {} bytes, {} flips, loss {:.3f}",
                                n + 1, options.updates, update.seconds, each, update.reply_bytes, update.flips, update.loss));
    const VirtualTree::Cost cost = tree.take_cost();
    result.peak_memory = layerwise::peak_memory();
    result.dense_f32_bytes =
        std::max(result.dense_f32_bytes, 4 * static_cast<double>(step.exchange.elements) / static_cast<double>(workers));
    // The first also looks for thresholds to begin with.
    if (n > 0 || options.updates == 1) sums.time(step, cost, update.seconds);
    if (update.learns || n + 1 == options.updates) {
      ++result.counted;
      add_levels(result.levels, levels);
      sums.counts += step.exchange;
      const std::size_t observed = !update.statistics ? 0 : training.exchange.keeps() ? stage.steps_observed(n) : every;
      sums.worker_bytes.add(each, observed, every);
      sums.reply_bytes.add(static_cast<double>(update.reply_bytes), observed, every);
      // Statistics and totals.
      double fixed = each;
      for (const auto& [part, bytes] : stage.bytes_by_part(step.exchange)) fixed -= part == "statistics" ? 0 : bytes;
      sums.fixed_bytes.add(fixed, observed, every);
    }
    result.updates.push_back(std::move(update));
  }
  result.by_part = stage.bytes_by_part(sums.counts);
  result.merging = tree.merging();
  const double last = static_cast<double>(result.updates.back().worker_bytes) / static_cast<double>(workers);
  result.budget = stage.exchange()->budget(static_cast<std::uint64_t>(result.dense_f32_bytes / 4));
  const double fixed = sums.fixed_bytes.over(every);
  result.up = length_of(sums.worker_bytes.over(every), fixed, result.budget);
  result.down = length_of(sums.reply_bytes.over(every), fixed, result.budget);
  for (MergedMessage& message : result.merging) message.bytes *= result.up.expected / last;
  result.dense_bytes = static_cast<double>(stage.dense_bytes());
  for (std::size_t t = 0; t < spec.train.size(); ++t) {
    const auto& layer = stage.trainers()[t]->layer();
    result.weights[spec.train[t]] = layer.weights();
  }
  const auto timed = static_cast<double>(sums.timed);
  result.compute = sums.compute / timed / static_cast<double>(workers);
  result.encode = sums.encode / timed / static_cast<double>(workers);
  result.choose = sums.choose / timed;
  result.apply = sums.apply / timed;
  result.merge_per_byte = sums.merging.bytes == 0 ? 0 : sums.merging.merging / static_cast<double>(sums.merging.bytes);
  result.message_bytes = tree.most_message_bytes();
  return result;
}

}  // namespace bitloom::plan
