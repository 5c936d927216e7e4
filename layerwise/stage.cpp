#include "layerwise/stage.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "core/text.h"
#include "layerwise/stage_thread.h"
#include "optim/schedule.h"

namespace bitloom::layerwise {
namespace {

TrainOptions with_signal(TrainOptions options) {
  options.layer.exact = options.signal == "exact";
  return options;
}

const BinaryLayer& layer_named(const std::vector<BinaryLayer>& layers, const std::string& name) {
  return *std::find_if(layers.begin(), layers.end(), [&](const BinaryLayer& layer) { return layer.spec().name == name; });
}

constexpr std::size_t largest_sum = 0x7FFFFFFF;  // largest value in LayerSums::weight

// The largest share of a batch that a rank gets.
std::size_t images_per_rank(std::size_t batch, std::size_t ranks) { return (batch + ranks - 1) / ranks; }

}  // namespace

void check_stage(const StageSpec& spec, const std::vector<BinaryLayer>& layers, const data::Dataset& train,
                 const TrainOptions& options, std::size_t ranks) {
  const std::size_t batch = std::min(options.batch, train.size());
  if (batch < ranks) {
    fail_field(ErrorKind::usage, "batch", "{} images cannot be shared among {} ranks; expected at least one each", batch,
               ranks);
  }
  check_workers(options.workers, batch);
  if (options.sparse) {
    mpi::check(options.exchange);
    if (options.workers < ranks) {
      fail_field(ErrorKind::usage, "workers", "{} logical workers on {} ranks; expected at least one each", options.workers,
                 ranks);
    }
    if (options.signal == "exact")
      fail_field(ErrorKind::usage, "signal", "'exact' needs dense sums; expected window with `exchange` sparse");
    if (options.repeat != 1)
      fail_field(ErrorKind::usage, "repeat", "{} needs dense sums; expected 1 with `exchange` sparse", options.repeat);
  }
  if (spec.heads.empty()) {
    fail(ErrorKind::usage, "stage '{}': heads: expected at least one of its layers; without a head it learns nothing",
         spec.name);
  }
  try {
    data::check_augment(options.augment, train.shape);
  } catch (const Error& error) {
    fail(ErrorKind::usage, "stage '{}': {}", spec.name, error.what());
  }
  if (options.signal != "window" && options.signal != "exact") {
    fail_field(ErrorKind::usage, "signal", "'{}' is not a learning signal; expected window or exact", options.signal);
  }
  if (options.signal == "exact") {
    if (spec.train.size() != 1 || spec.heads.size() != 1) {
      fail_field(ErrorKind::usage, "signal", "stage '{}' trains {} layers under {} heads; 'exact' needs one of each", spec.name,
                 spec.train.size(), spec.heads.size());
    }
    // It is the loss of what the net says.
    if (options.label_smoothing > 0 || options.head_dropout > 0) {
      fail_field(ErrorKind::usage, "signal", "'exact' takes no label smoothing ({:g}) and no head dropout ({:g}) in stage '{}'",
                 options.label_smoothing, options.head_dropout, spec.name);
    }
  }
  // That are in one sum, and in memory, at once.
  const std::size_t together = options.sparse ? (batch + options.workers - 1) / options.workers : batch;
  const std::size_t held = options.sparse ? together : images_per_rank(batch, ranks);
  for (const std::string& name : spec.train) {
    const BinaryLayer& layer = layer_named(layers, name);
    if (held * layer.geometry().input.size() >= (std::size_t{1} << component_offset_bits)) {
      fail_field(ErrorKind::usage, "batch",
                 "{} images of layer '{}' per rank are more than this build can index; use more ranks", held, name);
    }
    if (layer.channels() * layer.patch_words() >= (std::size_t{1} << component_offset_bits)) {
      fail(ErrorKind::usage, "layer '{}': {} weights are more than this build can index", name,
           layer.channels() * layer.patch_bits());
    }
    const MapShape& map = layer.geometry().output;
    const std::size_t most = largest_sum / (map.height * map.width * largest_code);
    if (together > most) {
      fail_field(ErrorKind::usage, "batch", "{} images of layer '{}' could overflow sums of 32 bits; expected at most {}{}",
                 together, name, most, options.sparse ? " per worker" : "");
    }
    check_rule(options.layer.rule, layer.spec());
    if (options.layer.flip_limit != 0 && (options.layer.rule.name != "accumulate" || layer.spec().ternary)) {
      fail_field(ErrorKind::usage, "flip_limit",
                 "{} for layer '{}' of {} weights under `rule` {}; expected 0, or binary weights "
                 "under accumulate",
                 options.layer.flip_limit, name, layer.spec().ternary ? "ternary" : "binary", options.layer.rule.name);
    }
  }
  for (const std::string& name : spec.heads) {
    try {
      check_head(spec.head, layer_named(layers, name).geometry().output);
    } catch (const Error& error) {
      fail(ErrorKind::usage, "stage '{}', layer '{}': {}", spec.name, name, error.what());
    }
  }
}

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
      batch_(std::min(options.batch, train.size())),
      workers_(options.workers, train.size(), batch_, options.seed) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  check_stage(spec, layers, train, options, ranks);
  const auto rank = static_cast<std::size_t>(comm.rank());
  if (options.sparse) {
    const auto [first, last] = workers_.on_rank(rank, ranks);
    const std::size_t begin = workers_.first_place(first);
    places_ = {begin, workers_.first_place(last) - begin};
  } else {
    const std::size_t begin = rank * batch_ / ranks;
    places_ = {begin, (rank + 1) * batch_ / ranks - begin};
  }
  most_images_ = options.sparse ? workers_.most_places() : places_.count;

  std::vector<std::size_t> wanted;
  for (const std::string& name : spec.train) {
    LayerState state;
    state.index = static_cast<std::size_t>(&layer_named(layers, name) - layers.data());
    wanted.push_back(state.index);
    BinaryLayer& layer = layers[state.index];
    const LayerGeometry& geometry = layer.geometry();
    state.inputs = Buffer<std::uint64_t>(most_images_ * geometry.input.size());
    state.outputs = Buffer<std::uint64_t>(most_images_ * geometry.output.size());
    state.windows = Buffer<std::uint64_t>(most_images_ * geometry.output.size());
    const simd::ConvShape shape = layer.conv_shape();
    for (std::size_t y = 0; y < shape.out_height; ++y) {
      for (std::size_t x = 0; x < shape.out_width; ++x) {
        state.patch_offset.push_back(static_cast<std::uint32_t>(y * shape.row_step + x * shape.column_step));
      }
    }
    state.identity.resize(state.patch_offset.size());
    std::iota(state.identity.begin(), state.identity.end(), 0U);
    state.components.resize(most_images_);
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
    state.counts.resize(most_images_ * state.head->features());
    state.gradient.resize(most_images_ * state.head->features());
    for (std::size_t y = 0; y < map.height; ++y) {
      for (std::size_t x = 0; x < map.width; ++x)
        state.region.push_back(static_cast<std::uint32_t>(state.head->region_of(y, x)));
    }
    states_[state.layer].heads.push_back(heads_.size());
    heads_.push_back(std::move(state));
  }
  if (options.signal == "exact") {
    LayerState& state = states_[0];
    state.exact = std::make_unique<ExactSignal>(layers[state.index]);
    state.exact_head = std::make_unique<ExactHead>(*heads_[0].head, layers[state.index].geometry().output);
    state.sums.exact.assign(state.exact->size(), 0);
  }
  for (LayerState& state : states_) {
    const BinaryLayer& layer = layers[state.index];
    if (options.repeat > 1 && inputs_->all_frozen(state.index) && CountCache::can_hold(layer)) {
      state.counts = std::make_unique<CountCache>(layer, most_images_);
    }
  }
  for (std::size_t t = 0; t < states_.size(); ++t) find_cells(t);
  images_.resize(most_images_);
  labels_.resize(most_images_);

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
  if (options.sparse) make_exchange();
}

Stage::~Stage() = default;

void StepResult::clear(std::size_t heads, std::size_t layers) {
  images = 0;
  loss.assign(heads, 0);
  correct.assign(heads, 0);
  flips.assign(layers, 0);
  active_share.assign(layers, 0);
  modes.clear();
  times = {};
  exchange = {};
  stop = checkpoint = false;
}

std::size_t Stage::position(const std::string& layer) const {
  const auto found = std::find(spec_.train.begin(), spec_.train.end(), layer);
  return static_cast<std::size_t>(found - spec_.train.begin());
}

double Stage::rate(std::size_t step) const { return cosine_decay(progress(step), options_.final_rate); }

double Stage::progress(std::size_t step) const {
  return static_cast<double>(step) / static_cast<double>(std::max<std::size_t>(total_steps(), 1));
}

void Stage::choose_images(const Places& places) {
  const std::size_t epoch = step_ / steps_per_epoch();
  if (epoch != order_epoch_) {
    workers_.order(id_, epoch, order_);
    order_epoch_ = epoch;
  }
  const std::size_t first = step_ % steps_per_epoch() / options_.repeat * batch_ + places.first;
  for (std::size_t i = 0; i < places.count; ++i) {
    images_[i] = order_[first + i];
    labels_[i] = train_.labels[images_[i]];
  }
  // Those of the next minibatch come from the device while this one is computed.
  const std::size_t next = first + batch_;
  for (std::size_t i = 0; i < places.count && next + i < order_.size(); ++i) inputs_->prefetch(order_[next + i]);
}

std::vector<std::uint64_t> Stage::records_to_read() const {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  // By whole sums, every rank gets any image.
  const auto [first, last] = options_.sparse ? workers_.on_rank(static_cast<std::size_t>(comm_.rank()), ranks)
                                             : std::pair<std::size_t, std::size_t>(0, workers_.count());
  const std::size_t begin = step_ / steps_per_epoch();
  const std::size_t end = std::min(begin + inputs_->copies(), spec_.epochs);
  std::vector<std::uint64_t> records;
  for (const std::uint32_t image : workers_.images(first, last)) {
    for (std::size_t epoch = begin; epoch < end; ++epoch) records.push_back(inputs_->record_of(image, epoch));
  }
  std::sort(records.begin(), records.end());
  return records;
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

void Stage::reduce(bool weights) {
  for (LayerState& state : states_) {
    if (weights) comm_.sum(std::span(state.sums.weight));
    comm_.sum(std::span(state.sums.exact));
    comm_.sum(std::span(state.sums.statistics));
  }
  for (HeadState& head : heads_) {
    for (const std::span<std::int64_t> part : head.sums.all()) comm_.sum(part);
  }
  comm_.sum(std::span(totals_));
}

// The heads' learning rate rises at the start of a stage.
double Stage::head_rate(std::size_t step) const {
  const std::size_t rise = std::clamp<std::size_t>(options_.head_warmup_steps, 1, std::max<std::size_t>(total_steps() / 5, 1));
  return options_.head_rate * std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(rise)) * rate(step);
}

std::size_t Stage::dense_bytes() const {
  const std::size_t totals = 2 * heads_.size() + 3;
  std::size_t bytes = totals * sizeof(std::int64_t);
  for (const LayerState& state : states_) {
    bytes += (state.exact ? 0 : state.sums.weight.size() * sizeof(std::int32_t));
    bytes += (state.sums.exact.size() + state.sums.statistics.size()) * sizeof(std::int64_t);
  }
  for (const HeadState& head : heads_) {
    Head::Sums sums = head.sums;
    for (const std::span<std::int64_t> part : sums.all()) bytes += part.size_bytes();
  }
  return bytes;
}

bool Stage::learns(std::size_t step) const { return step >= std::min(options_.warmup_steps, total_steps() / 10); }

// Reports the results of a step's images, now that the sums are those of all ranks. observed: number of images in the layers'
// statistics; 0 if there are none.
void Stage::report_sums(std::size_t observed) {
  const std::size_t heads = heads_.size();
  result_.images += images_in_totals();
  for (std::size_t t = 0; t < states_.size() && observed > 0; ++t) {
    const MapShape& map = layers_[states_[t].index].geometry().output;
    std::int64_t active = 0;
    for (const std::int64_t channel : states_[t].sums.active()) active += channel;
    states_[t].active_share =
        static_cast<double>(active) / static_cast<double>(observed * map.height * map.width * map.channels);
  }
  for (std::size_t h = 0; h < heads; ++h) {
    result_.loss[h] += 1e-6 * static_cast<double>(totals_[2 * h]);
    result_.correct[h] += static_cast<std::size_t>(totals_[2 * h + 1]);
  }
  result_.stop |= totals_[2 * heads] != 0;
  result_.checkpoint |= totals_[2 * heads + 1] != 0;
}

// Computes the sums over the images of this rank or of one of its workers.
void Stage::compute(const Places& places, bool weights) {
  choose_images(places);
  for (LayerState& state : states_) state.sums.clear();
  run_forward(places.count);
  train_.check_reads();
  Clock::time_point clock = Clock::now();
  const auto poll = [&] {
    if (exchange_ != nullptr) exchange_->poll();
    lap(clock, result_.times.reduce);
  };
  poll();
  run_heads(places);
  lap(clock, result_.times.head);
  poll();
  run_backward(places, weights && !options_.layer.exact);
  if (weights && options_.layer.exact) run_exact(places.count);
  lap(clock, result_.times.gradient);
}

// Waits until this share of the pace's time is over.
void Stage::keep_pace(Clock::time_point start, double share) {
  if (request_.pace_seconds <= 0) return;
  Clock::time_point clock = Clock::now();
  std::this_thread::sleep_until(
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(share * request_.pace_seconds)));
  lap(clock, result_.times.forward);
}

// A step by whole sums.
void Stage::step_dense() {
  const bool weights = learns_weights(step_);
  const Clock::time_point start = Clock::now();
  compute(places_, weights);
  keep_pace(start, 1);
  Clock::time_point clock = Clock::now();
  reduce(weights && !options_.layer.exact);
  lap(clock, result_.times.reduce);
  report_sums(images_in_totals());
  for (std::size_t t = 0; t < states_.size(); ++t) {
    result_.flips[t] = trainers_[t]->update(states_[t].sums, batch_, rate(), learns(step_), step_);
  }
  for (HeadState& head : heads_) head.head->update(head.sums, batch_, head_rate(step_), options_.head_decay);
  lap(clock, result_.times.update);
}

const StepResult& Stage::step(const StepRequest& request) {
  if (!initialised_) initialise();
  request_ = request;
  result_.clear(heads_.size(), states_.size());
  if (exchange_ != nullptr) {
    step_sparse();
  } else {
    step_dense();
  }
  for (std::size_t t = 0; t < states_.size(); ++t) result_.active_share[t] = states_[t].active_share;
  ++step_;
  return result_;
}

void Stage::save(TensorFile& file) {
  cancel_save();
  begin_save(file);
  if (exchange_ != nullptr) exchange_->wait_for_save();
  if (comm_.is_root()) end_save(file);
}

void Stage::end_save(TensorFile& file) {
  if (exchange_ != nullptr) exchange_->end_save(file, exchange_name);
}

void Stage::cancel_save() {
  if (exchange_ != nullptr) exchange_->cancel_save();
}

void Stage::begin_save(TensorFile& file) {
  for (const auto& trainer : trainers_) {
    trainer->layer().save(file);
    trainer->save(file);
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].head->save(file, spec_.heads[h] + ".head", true);
  std::vector<double> shares;
  for (const LayerState& state : states_) shares.push_back(state.active_share);
  file.put("stage.active_share", {shares.size()}, shares);
  file.put("stage.progress", {2}, std::vector<std::uint64_t>{step_, initialised_ ? 1U : 0U});
  if (exchange_ == nullptr) return;
  exchange_->begin_save(file, exchange_name);
  save_server(file);
}

void Stage::load(const TensorFile& file) {
  const auto progress = file.get("stage.progress", DType::u64, {2}).as<std::uint64_t>();
  const auto shares = file.get("stage.active_share", DType::f64, {states_.size()}).as<double>();
  for (std::size_t t = 0; t < states_.size(); ++t) states_[t].active_share = shares[t];
  for (const auto& trainer : trainers_) trainer->load(file);
  for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].head->load(file, spec_.heads[h] + ".head", true);
  step_ = resumed_at_ = progress[0];
  loaded_ = ~std::size_t{0};
  initialised_ = progress[1] != 0;
  if (exchange_ != nullptr) load_exchange(file);
}

}  // namespace bitloom::layerwise