#include "layerwise/stage.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
#include "core/text.h"
#include "layerwise/stage_thread.h"
#include "optim/schedule.h"

namespace bitloom::layerwise {
namespace {

TrainOptions with_signal(TrainOptions options) {
  if (options.signal != "window" && options.signal != "exact") {
    fail(ErrorKind::usage, "--signal: '{}' is not a learning signal; expected window or exact", options.signal);
  }
  options.layer.exact = options.signal == "exact";
  return options;
}

}  // namespace

Stage::Stage(const simd::Kernels& kernels, mpi::Comm& comm, const StageSpec& spec, const Encoder& encoder,
             std::vector<BinaryLayer>& layers, const data::Dataset& train, const TrainOptions& options, std::uint64_t id,
             const Earlier& earlier)
    : kernels_(kernels),
      comm_(comm),
      spec_(spec),
      layers_(layers),
      train_(train),
      options_(with_signal(options)),
      id_(id),
      batch_(std::min(options.batch, train.size())) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  if (batch_ < ranks) {
    fail(ErrorKind::usage, "--batch: {} images cannot be shared among {} ranks; expected at least one each", batch_, ranks);
  }
  const auto rank = static_cast<std::size_t>(comm.rank());
  local_begin_ = rank * batch_ / ranks;
  local_images_ = (rank + 1) * batch_ / ranks - local_begin_;

  std::vector<std::size_t> wanted;
  for (const std::string& name : spec.train) {
    LayerState state;
    for (state.index = 0; layers[state.index].spec().name != name;) ++state.index;
    wanted.push_back(state.index);
    BinaryLayer& layer = layers[state.index];
    const LayerGeometry& geometry = layer.geometry();
    state.inputs = Buffer<std::uint64_t>(local_images_ * geometry.input.size());
    state.outputs = Buffer<std::uint64_t>(local_images_ * geometry.output.size());
    state.windows = Buffer<std::uint64_t>(local_images_ * geometry.output.size());
    if (state.inputs.size() >= (std::size_t{1} << entry_offset_bits)) {
      fail(ErrorKind::usage, "--batch: {} images of layer '{}' per rank are more than this build can index; use more ranks",
           local_images_, name);
    }
    const simd::ConvShape shape = layer.conv_shape();
    for (std::size_t y = 0; y < shape.out_height; ++y) {
      for (std::size_t x = 0; x < shape.out_width; ++x) {
        state.patch_offset.push_back(static_cast<std::uint32_t>(y * shape.row_step + x * shape.column_step));
      }
    }
    state.identity.resize(state.patch_offset.size());
    std::iota(state.identity.begin(), state.identity.end(), 0U);
    state.entries.resize(local_images_);
    const bool again = contains(earlier.layers, name);
    trainers_.push_back(std::make_unique<LayerTrainer>(layer, options_.layer, options.seed, id * 1000 + states_.size(), again));
    state.sums = trainers_.back()->make_sums();
    states_.push_back(std::move(state));
  }
  inputs_ = std::make_unique<StageInputs>(kernels, encoder, layers, wanted, train, options_.input(), id);
  if (spec.passes_gradient) {
    for (LayerState& state : states_) {
      for (const LayerGeometry::Source& source : layers[state.index].geometry().sources) {
        for (LayerState& below : states_) {
          if (source.layer != static_cast<int>(below.index)) continue;
          below.has_consumers = true;
          state.feeds_back = true;
        }
      }
    }
  }
  for (const std::string& name : spec.heads) {
    HeadState state;
    state.layer = position(name);
    const MapShape& map = layers[states_[state.layer].index].geometry().output;
    state.head = std::make_unique<Head>(spec.head, map, train.classes(), options.seed, id * 1000 + heads_.size());
    if (earlier.heads != nullptr) {
      const auto found = earlier.heads->find(name);
      if (found != earlier.heads->end()) state.head->start_from(found->second);
    }
    state.sums = state.head->make_sums();
    state.counts.resize(local_images_ * state.head->features());
    state.gradient.resize(local_images_ * state.head->features());
    for (std::size_t y = 0; y < map.height; ++y) {
      for (std::size_t x = 0; x < map.width; ++x)
        state.region.push_back(static_cast<std::uint32_t>(state.head->region_of(y, x)));
    }
    states_[state.layer].heads.push_back(heads_.size());
    heads_.push_back(std::move(state));
  }
  if (options.signal == "exact") {
    if (states_.size() != 1 || heads_.size() != 1) {
      fail(ErrorKind::usage, "--signal: stage '{}' trains {} layers under {} heads; 'exact' needs one of each", spec.name,
           states_.size(), heads_.size());
    }
    LayerState& state = states_[0];
    state.exact = std::make_unique<ExactSignal>(layers[state.index]);
    state.exact_head = std::make_unique<ExactHead>(*heads_[0].head, layers[state.index].geometry().output);
    state.sums.exact.assign(state.exact->size(), 0);
  }
  for (LayerState& state : states_) {
    const BinaryLayer& layer = layers[state.index];
    if (options.repeat > 1 && inputs_->all_frozen(state.index) && CountCache::can_hold(layer)) {
      state.counts = std::make_unique<CountCache>(layer, local_images_);
    }
  }
  for (std::size_t t = 0; t < states_.size(); ++t) find_cells(t);
  images_.resize(local_images_);
  labels_.resize(local_images_);

  for (int t = 0; t < omp_get_max_threads(); ++t) {
    auto thread = std::make_unique<ThreadState>();
    thread->input = inputs_->make_workspace();
    for (std::size_t s = 0; s < states_.size(); ++s) {
      thread->sums.push_back(trainers_[s]->make_sums());
      thread->sums.back().weight = {};
    }
    for (const HeadState& head : heads_) thread->head_sums.push_back(head.head->make_sums());
    thread->pixel_gradient.resize(states_.size());
    thread->cell_gradient.resize(states_.size());
    threads_.push_back(std::move(thread));
  }
}

Stage::~Stage() = default;

std::size_t Stage::position(const std::string& layer) const {
  const auto found = std::find(spec_.train.begin(), spec_.train.end(), layer);
  return static_cast<std::size_t>(found - spec_.train.begin());
}

double Stage::rate() const {
  return cosine_decay(static_cast<double>(step_) / static_cast<double>(std::max<std::size_t>(total_steps(), 1)),
                      options_.final_rate);
}

void Stage::choose_images() {
  const std::size_t epoch = step_ / steps_per_epoch();
  if (epoch != order_epoch_) {
    order_.resize(train_.size());
    std::iota(order_.begin(), order_.end(), 0U);
    shuffle(order_.data(), order_.size(), Random(options_.seed, Stream::shuffle, id_, epoch));
    order_epoch_ = epoch;
  }
  const std::size_t first = step_ % steps_per_epoch() / options_.repeat * batch_ + local_begin_;
  for (std::size_t i = 0; i < local_images_; ++i) {
    images_[i] = order_[first + i];
    labels_[i] = train_.labels[images_[i]];
  }
}

// Where one other layer sends all gradient, per cell, no map of gradients per pixel is needed.
void Stage::find_cells(std::size_t t) {
  LayerState& state = states_[t];
  if (!state.has_consumers || !state.heads.empty()) return;
  const LayerGeometry::Source* only = nullptr;
  const BinaryLayer* reader = nullptr;
  for (const LayerState& above : states_) {
    for (const LayerGeometry::Source& source : layers_[above.index].geometry().sources) {
      if (source.layer != static_cast<int>(state.index)) continue;
      if (only != nullptr) return;
      only = &source;
      reader = &layers_[above.index];
    }
  }
  const Downsample pool = reader->spec().pool;
  if (only->factor > 1 && pool != Downsample::any && pool != Downsample::none) return;
  state.cell_factor = only->factor;
  for (std::size_t y = 0; y < only->shape.height; ++y) {
    for (std::size_t x = 0; x < only->shape.width; ++x) {
      const std::size_t pixel = y / only->factor * reader->geometry().input.width + x / only->factor;
      state.cell.push_back(static_cast<std::uint32_t>(pixel));
    }
  }
}

void Stage::reduce() {
  for (LayerState& state : states_) {
    comm_.sum(std::span(state.sums.weight));
    comm_.sum(std::span(state.sums.exact));
    comm_.sum(std::span(state.sums.statistics));
  }
  for (HeadState& head : heads_) {
    for (const std::span<std::int64_t> part : head.sums.all()) comm_.sum(part);
  }
}

StepResult Stage::step() {
  if (!initialised_) initialise();
  StepResult result;
  result.images = batch_;
  choose_images();
  for (LayerState& state : states_) state.sums.clear();
  const std::size_t warmup = std::min(options_.warmup_steps, total_steps() / 10);
  const bool learn = step_ >= warmup;
  const bool weights = learn && options_.layer.learn_weights;
  run_forward(result);
  Clock::time_point clock = Clock::now();
  run_heads(result);
  lap(clock, result.times.head);
  run_backward(weights && !options_.layer.exact);
  if (weights && options_.layer.exact) run_exact();
  lap(clock, result.times.gradient);
  reduce();
  lap(clock, result.times.reduce);
  const double now = rate();
  for (std::size_t t = 0; t < states_.size(); ++t) {
    const MapShape& map = layers_[states_[t].index].geometry().output;
    const LayerSums& sums = states_[t].sums;
    std::int64_t active = 0;
    for (const std::int64_t channel : sums.active()) active += channel;
    result.active_share.push_back(static_cast<double>(active) /
                                  static_cast<double>(batch_ * map.height * map.width * map.channels));
    result.flips.push_back(trainers_[t]->update(sums, batch_, now, learn, step_));
  }
  const std::size_t rise = std::clamp<std::size_t>(options_.head_warmup_steps, 1, std::max<std::size_t>(total_steps() / 5, 1));
  const double risen = std::min(1.0, static_cast<double>(step_ + 1) / static_cast<double>(rise));
  for (HeadState& head : heads_) {
    head.head->update(head.sums, batch_, options_.head_rate * risen * now, options_.head_decay);
  }
  lap(clock, result.times.update);
  ++step_;
  return result;
}

void Stage::save(TensorFile& file) const {
  for (const auto& trainer : trainers_) {
    trainer->layer().save(file);
    trainer->save(file);
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].head->save(file, spec_.heads[h] + ".head", true);
  file.put("stage.progress", {2}, std::vector<std::uint64_t>{step_, initialised_ ? 1U : 0U});
}

void Stage::load(const TensorFile& file) {
  const auto progress = file.get("stage.progress", DType::u64, {2}).as<std::uint64_t>();
  for (const auto& trainer : trainers_) trainer->load(file);
  for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].head->load(file, spec_.heads[h] + ".head", true);
  step_ = progress[0];
  loaded_ = ~std::size_t{0};
  initialised_ = progress[1] != 0;
}

}  // namespace bitloom::layerwise