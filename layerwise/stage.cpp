#include "layerwise/stage.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/random.h"
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

constexpr std::size_t head_chunk = 16;  // images per task of the heads

std::size_t thread_index() { return static_cast<std::size_t>(omp_get_thread_num()); }

}  // namespace

// What one thread needs while it works on an image.
struct Stage::ThreadState {
  StageInputs::Workspace input;
  CountCache::Scratch conv_counts;
  std::vector<std::int16_t> counts;
  std::vector<Rounding> rounding;
  std::vector<std::uint8_t> codes;
  std::vector<std::vector<float>> pixel_gradient;  // per trained layer with consumers or a class_conv head
  std::vector<float> input_gradient;
  std::vector<std::vector<float>> cell_gradient;  // per trained layer with cells: (cells, channels)
  std::vector<std::uint64_t> deciding;            // the window's bits that gradient reaches through OR
  BackwardScratch backward;
  std::vector<LayerSums> sums;  // per trained layer; statistics only
  std::vector<Head::Sums> head_sums;
  PhaseTimes times;
};

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
    const bool again = std::find(earlier.layers.begin(), earlier.layers.end(), name) != earlier.layers.end();
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
      if (found != earlier.heads->end() && found->second.spec() == spec.head) state.head->start_from(found->second);
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

// `same`: the layer's input holds this image already, but for what layers below that learn have made anew.
void Stage::forward_layer(std::size_t t, std::size_t local, ThreadState& thread, bool windowed, bool same) {
  LayerState& state = states_[t];
  const BinaryLayer& layer = layers_[state.index];
  const MapShape& in = layer.geometry().input;
  const MapShape& map = layer.geometry().output;
  LayerSums& sums = thread.sums[t];
  std::uint64_t* input = state.inputs.data() + local * in.size();
  std::uint64_t* output = state.outputs.data() + local * map.size();
  std::uint64_t* window = state.windows.data() + local * map.size();
  if (same) {
    inputs_->gather_trained(state.index, thread.input, input);
  } else {
    inputs_->gather(state.index, thread.input, input);
  }
  if (windowed && state.counts != nullptr && state.counts->mode() != CountMode::none) {
    state.counts->forward(kernels_, local, input, trainers_[t]->thresholds(), output, window, sums, thread.conv_counts);
  } else {
    simd::ConvOutput out;
    out.bits = output;
    out.bits_pitch = map.pitch();
    out.window = windowed ? window : nullptr;
    out.sum = sums.count().data();
    out.sum_of_squares = sums.count_squared().data();
    kernels_.conv(layer.conv_shape(), input, layer.conv_weights(), trainers_[t]->thresholds(), out);
  }
  thread.input.work.maps[state.index + 1] = output;

  thread.counts.resize(std::max(in.words(), map.words()) * word_bits);
  kernels_.pool_counts(input + in.interior(), in.height, in.width, in.words(), in.pitch(), 1, thread.counts.data());
  for (std::size_t c = 0; c < sums.in_channels; ++c) sums.input()[c] += thread.counts[c];
  if (!windowed) return;
  kernels_.pool_counts(window, map.height, map.width, map.words(), map.pitch(), 1, thread.counts.data());
  for (std::size_t o = 0; o < sums.channels; ++o) sums.active()[o] += thread.counts[o];
}

// Thresholds need statistics before they mean anything: layer by layer, each on the thresholds found for those below.
void Stage::initialise() {
  choose_images();
  const auto images = static_cast<std::ptrdiff_t>(local_images_);
  for (std::size_t t = 0; t < states_.size(); ++t) {
#pragma omp parallel for schedule(dynamic, 1)
    for (std::ptrdiff_t i = 0; i < images; ++i) {
      ThreadState& thread = *threads_[thread_index()];
      PhaseTimes ignored;
      inputs_->load(images_[static_cast<std::size_t>(i)], order_epoch_, thread.input, ignored);
      for (std::size_t s = 0; s <= t; ++s) forward_layer(s, static_cast<std::size_t>(i), thread, false, false);
    }
    LayerSums& sums = states_[t].sums;
    for (const auto& thread : threads_) {
      for (std::size_t k = 0; k < sums.statistics.size(); ++k) sums.statistics[k] += thread->sums[t].statistics[k];
      for (LayerSums& each : thread->sums) each.clear();
    }
    comm_.sum(std::span(sums.statistics));
    trainers_[t]->set_statistics(sums, batch_);
    sums.clear();
  }
  initialised_ = true;
}

void Stage::run_forward(StepResult& result) {
  const std::size_t minibatch = step_ / options_.repeat;
  const bool same = loaded_ == minibatch;
  const bool again = (step_ + 1) / options_.repeat == minibatch;
  for (LayerState& state : states_) {
    result.modes.push_back(state.counts ? state.counts->begin_step(same, again, options_.counts_limit) : CountMode::none);
  }
  const auto images = static_cast<std::ptrdiff_t>(local_images_);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::ptrdiff_t i = 0; i < images; ++i) {
    ThreadState& thread = *threads_[thread_index()];
    const auto local = static_cast<std::size_t>(i);
    if (!same) inputs_->load(images_[local], order_epoch_, thread.input, thread.times);
    Clock::time_point clock = Clock::now();
    for (std::size_t t = 0; t < states_.size(); ++t) forward_layer(t, local, thread, true, same);
    lap(clock, thread.times.forward);
    for (HeadState& head : heads_) {
      const LayerState& state = states_[head.layer];
      const std::uint64_t* bits = state.outputs.data() + local * layers_[state.index].geometry().output.size();
      head.head->count(kernels_, bits, head.counts.data() + local * head.head->features());
    }
    lap(clock, thread.times.head);
  }
  PhaseTimes sum;
  for (const auto& thread : threads_) {
    sum += thread->times;
    thread->times = {};
    for (std::size_t t = 0; t < states_.size(); ++t) {
      std::vector<std::int64_t>& total = states_[t].sums.statistics;
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += thread->sums[t].statistics[k];
      thread->sums[t].clear();
    }
  }
  for (LayerState& state : states_) {
    if (state.counts && state.counts->mode() != CountMode::none) state.counts->complete(state.sums);
  }
  loaded_ = minibatch;
  PhaseTimes& times = result.times;
  const double share = 1.0 / static_cast<double>(threads_.size());
  times.data += sum.data * share;
  times.encode += sum.encode * share;
  times.prefix += sum.prefix * share;
  times.forward += sum.forward * share;
  times.head += sum.head * share;
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

void Stage::run_heads(StepResult& result) {
  std::vector<std::int64_t> totals(2 * heads_.size(), 0);
  const std::size_t chunks = (local_images_ + head_chunk - 1) / head_chunk;
  const auto tasks = static_cast<std::ptrdiff_t>(chunks * heads_.size());
  for (const auto& thread : threads_) {
    for (Head::Sums& sums : thread->head_sums) sums.clear();
  }
#pragma omp parallel
  {
    std::vector<std::int64_t> mine(totals.size(), 0);
#pragma omp for schedule(dynamic, 1)
    for (std::ptrdiff_t task = 0; task < tasks; ++task) {
      const std::size_t h = static_cast<std::size_t>(task) / chunks;
      const std::size_t begin = static_cast<std::size_t>(task) % chunks * head_chunk;
      const std::size_t count = std::min(head_chunk, local_images_ - begin);
      HeadState& head = heads_[h];
      const std::size_t f = head.head->features();
      std::array<std::uint64_t, head_chunk> keys;
      for (std::size_t i = 0; i < count; ++i) {
        keys[i] = Random(options_.seed, Stream::dropout, id_ << 40U | step_, (local_begin_ + begin + i) * 64 + h).next();
      }
      const Head::Objective objective = {options_.label_smoothing, options_.head_dropout, keys.data()};
      const Head::Loss loss =
          head.head->backward(kernels_, head.counts.data() + begin * f, labels_.data() + begin, count, objective,
                              threads_[thread_index()]->head_sums[h], head.gradient.data() + begin * f);
      mine[2 * h] += loss.micro_nats;
      mine[2 * h + 1] += static_cast<std::int64_t>(loss.correct);
    }
#pragma omp critical
    for (std::size_t k = 0; k < totals.size(); ++k) totals[k] += mine[k];
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    heads_[h].sums.clear();
    const auto total = heads_[h].sums.all();
    for (const auto& thread : threads_) {
      const auto part = thread->head_sums[h].all();
      for (std::size_t k = 0; k < total.size(); ++k) {
        for (std::size_t j = 0; j < total[k].size(); ++j) total[k][j] += part[k][j];
      }
    }
  }
  comm_.sum(std::span(totals));
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    result.loss.push_back(1e-6 * static_cast<double>(totals[2 * h]));
    result.correct.push_back(static_cast<std::size_t>(totals[2 * h + 1]));
  }
}

void Stage::backward_image(std::size_t local, ThreadState& thread) {
  for (std::vector<float>& gradient : thread.pixel_gradient) gradient.clear();
  const auto pixel_gradient = [&](std::size_t t) -> std::vector<float>& {
    const MapShape& map = layers_[states_[t].index].geometry().output;
    std::vector<float>& gradient = thread.pixel_gradient[t];
    if (gradient.empty()) gradient.assign(map.height * map.width * map.words() * word_bits, 0.0F);
    return gradient;
  };
  for (std::size_t t = states_.size(); t-- > 0;) {
    LayerState& state = states_[t];
    LayerTrainer& trainer = *trainers_[t];
    const BinaryLayer& layer = layers_[state.index];
    const MapShape& map = layer.geometry().output;
    const std::size_t channels = map.words() * word_bits;
    const std::uint64_t* window = state.windows.data() + local * map.size();
    const std::uint64_t key =
        Random(options_.seed, Stream::gradient_rounding, id_ << 40U | step_, (local_begin_ + local) * 64 + t).next();
    const float inverse_unit = 1.0F / trainer.unit();
    const std::uint32_t* region = nullptr;
    // One head whose gradient is constant over a cell, and nothing above: a gradient per cell instead of per pixel.
    const bool by_region = !state.has_consumers && state.heads.size() == 1 &&
                           heads_[state.heads[0]].region[0] < heads_[state.heads[0]].head->regions();
    const float* gradient = nullptr;
    std::size_t size = 0;
    if (!state.cell.empty()) {
      size = thread.cell_gradient[t].size();
      gradient = thread.cell_gradient[t].data();
      region = state.cell.data();
      thread.deciding.assign(window, window + map.size());
      clear_undecided(state.outputs.data() + local * map.size(), map, state.cell_factor, thread.deciding.data());
      window = thread.deciding.data();
    } else if (by_region) {
      const HeadState& head = heads_[state.heads[0]];
      size = head.head->features();
      gradient = head.gradient.data() + local * size;
      region = head.region.data();
    } else {
      std::vector<float>& sum = pixel_gradient(t);
      for (const std::size_t h : state.heads) {
        const HeadState& head = heads_[h];
        for (std::size_t p = 0; p < map.height * map.width; ++p) {
          head.head->add_pixel_gradient(head.gradient.data() + local * head.head->features(), p / map.width, p % map.width,
                                        sum.data() + p * channels);
        }
      }
      size = sum.size();
      gradient = sum.data();
      region = state.identity.data();
    }
    thread.rounding.resize(size);
    kernels_.prepare_rounding(gradient, trainer.slope().data(), size, channels, inverse_unit, thread.rounding.data());
    // Also while no weights learn: thresholds may, and the units that gradients are rounded to settle.
    const bool feeds_back = state.feeds_back;
    if (feeds_back) thread.codes.resize(map.height * map.width * channels);
    const auto image_offset = static_cast<std::uint32_t>(local * layer.geometry().input.size());
    LayerSums& sums = thread.sums[t];
    sums.magnitude()[0] +=
        collect_entries(window, map.height * map.width, map.words(), layer.channels(), thread.rounding.data(), region,
                        state.patch_offset.data(), image_offset, key, state.entries[local], sums.value().data(),
                        feeds_back ? thread.codes.data() : nullptr);
    if (!feeds_back) continue;
    const MapShape& input = layer.geometry().input;
    thread.input_gradient.resize(input.height * input.width * input.words() * word_bits);
    input_gradient(kernels_, layer, window, thread.codes.data(), trainer.unit(), thread.backward, thread.input_gradient.data());
    for (const LayerGeometry::Source& source : layer.geometry().sources) {
      for (std::size_t below = 0; below < t; ++below) {
        if (source.layer != static_cast<int>(states_[below].index)) continue;
        if (!states_[below].cell.empty()) {
          const std::size_t width = source.shape.words() * word_bits;
          std::vector<float>& cells = thread.cell_gradient[below];
          cells.resize(input.height * input.width * width);
          for (std::size_t p = 0; p < input.height * input.width; ++p) {
            std::copy_n(thread.input_gradient.data() + (p * input.words() + source.word) * word_bits, width,
                        cells.data() + p * width);
          }
          continue;
        }
        place_backward(states_[below].outputs.data() + local * source.shape.size(), source.shape, layer.spec().pool,
                       source.factor, thread.input_gradient.data(), input, source.word, pixel_gradient(below).data());
      }
    }
  }
}

void Stage::run_backward(bool weights) {
  const auto images = static_cast<std::ptrdiff_t>(local_images_);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::ptrdiff_t i = 0; i < images; ++i) backward_image(static_cast<std::size_t>(i), *threads_[thread_index()]);
  for (const auto& thread : threads_) {
    for (std::size_t t = 0; t < states_.size(); ++t) {
      std::vector<std::int64_t>& total = states_[t].sums.statistics;
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += thread->sums[t].statistics[k];
      thread->sums[t].clear();
    }
  }
  if (!weights) return;
  for (LayerState& state : states_) {
    accumulate_weight_gradient(kernels_, layers_[state.index], state.inputs.data(), state.entries, state.sums.weight.data());
  }
}

void Stage::run_exact() {
  LayerState& state = states_[0];
  state.exact_head->refresh(*heads_[0].head);
  const ExactBatch batch = {state.inputs.data(),     state.outputs.data(), state.windows.data(),
                            heads_[0].counts.data(), labels_.data(),       local_images_};
  state.exact->add(kernels_, *state.exact_head, batch, state.sums.exact);
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
