#include "layerwise/stage_passes.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "core/random.h"
#include "data/soft_labels.h"
#include "layerwise/bit_counts.h"
#include "layerwise/stage_thread.h"

namespace bitloom::layerwise {
namespace {

constexpr std::size_t head_chunk = 16;  // images per task of the heads

}  // namespace

StagePasses::StagePasses(const StageSetup& setup, const Encoder& encoder, Workers& workers, StageLearners& learners,
                         std::size_t at_once)
    : setup_(setup),
      workers_(workers),
      learners_(learners),
      at_once_(at_once),
      layer_maps_(learners.layers.size()),
      images_(at_once),
      labels_(at_once),
      soft_labels_(setup.options.teacher_share > 0 ? at_once * setup.train.classes() : 0) {
  std::vector<std::size_t> wanted;
  for (const LearningLayer& layer : learners.layers) wanted.push_back(layer.index);
  inputs_ =
      std::make_unique<StageInputs>(setup.kernels, encoder, setup.layers, wanted, setup.train, setup.options.input(), setup.id);
  for (std::size_t t = 0; t < learners.layers.size(); ++t) make_layer_maps(t);
  connect();
  for (std::size_t t = 0; t < learners.layers.size(); ++t) find_cells(t);
  for (const LearningHead& head : learners.heads) make_head_maps(head);
  if (setup.options.signal == "exact") {
    LayerMaps& maps = layer_maps_[0];
    maps.exact = std::make_unique<ExactSignal>(layer_of(0));
    maps.exact_head = std::make_unique<ExactHead>(*learners.heads[0].head, layer_of(0).geometry().output);
    learners.layers[0].sums.exact.assign(maps.exact->size(), 0);
  }
  for (int thread = 0; thread < omp_get_max_threads(); ++thread) make_thread();
}

StagePasses::~StagePasses() = default;

void StagePasses::make_layer_maps(std::size_t t) {
  const BinaryLayer& layer = layer_of(t);
  const LayerGeometry& geometry = layer.geometry();
  LayerMaps& maps = layer_maps_[t];
  maps.inputs = Buffer<std::uint64_t>(at_once_ * geometry.input.size());
  maps.outputs = Buffer<std::uint64_t>(at_once_ * geometry.output.size());
  maps.windows = Buffer<std::uint64_t>(at_once_ * geometry.output.size());
  const simd::ConvShape shape = layer.conv_shape();
  for (std::size_t y = 0; y < shape.out_height; ++y) {
    for (std::size_t x = 0; x < shape.out_width; ++x) {
      maps.patch_offset.push_back(static_cast<std::uint32_t>(y * shape.row_step + x * shape.column_step));
    }
  }
  maps.identity.resize(maps.patch_offset.size());
  std::iota(maps.identity.begin(), maps.identity.end(), 0U);
  maps.components.resize(at_once_);
  if (setup_.options.repeat > 1 && inputs_->all_frozen(learners_.layers[t].index) && CountCache::can_hold(layer)) {
    maps.counts = std::make_unique<CountCache>(layer, at_once_);
  }
}

void StagePasses::make_head_maps(const LearningHead& head) {
  HeadMaps& maps = head_maps_.emplace_back();
  maps.counts.resize(at_once_ * head.head->features());
  maps.gradient.resize(at_once_ * head.head->features());
  const MapShape& map = layer_of(head.layer).geometry().output;
  for (std::size_t y = 0; y < map.height; ++y) {
    for (std::size_t x = 0; x < map.width; ++x) {
      maps.region.push_back(static_cast<std::uint32_t>(head.head->region_of(y, x)));
    }
  }
}

// Finds who passes gradients to whom.
void StagePasses::connect() {
  for (std::size_t t = 0; t < layer_maps_.size(); ++t) {
    if (!setup_.spec.lets_pass(layer_of(t).spec())) continue;
    bool feeds_back = false;
    for (const LayerGeometry::Source& source : layer_of(t).geometry().sources) {
      for (std::size_t below = 0; below < layer_maps_.size(); ++below) {
        if (source.layer != static_cast<int>(learners_.layers[below].index)) continue;
        layer_maps_[below].has_consumers = true;
        feeds_back = true;
      }
    }
    if (feeds_back) layer_maps_[t].backward_weights = std::make_unique<BackwardWeights>(layer_of(t));
  }
}

void StagePasses::make_thread() {
  auto thread = std::make_unique<Thread>();
  thread->input = inputs_->make_workspace();
  for (const auto& trainer : learners_.trainers) {
    thread->sums.push_back(trainer->make_sums());
    thread->sums.back().weight = {};
  }
  for (const LearningHead& head : learners_.heads) thread->head_sums.push_back(head.head->make_sums());
  thread->pixel_gradient.resize(layer_maps_.size());
  thread->cell_gradient.resize(layer_maps_.size());
  threads_.push_back(std::move(thread));
}

void StagePasses::choose_images(std::size_t step, const Places& places) {
  const std::size_t epoch = step / setup_.steps_per_epoch();
  if (epoch != order_epoch_) {
    workers_.order(setup_.id, epoch, order_);
    order_epoch_ = epoch;
  }
  const std::size_t first = step % setup_.steps_per_epoch() / setup_.options.repeat * setup_.batch + places.first;
  const std::size_t classes = setup_.train.classes();
  for (std::size_t i = 0; i < places.count; ++i) {
    images_[i] = order_[first + i];
    labels_[i] = setup_.train.labels[images_[i]];
    if (!soft_labels_.empty()) {
      const data::Shift shift = inputs_->shift_of(images_[i], epoch);
      std::ranges::copy(data::soft_label(setup_.train, images_[i], shift), soft_labels_.data() + i * classes);
    }
  }
  // Those of the next minibatch come from the device while this one is computed.
  const std::size_t next = first + setup_.batch;
  for (std::size_t i = 0; i < places.count && next + i < order_.size(); ++i) inputs_->prefetch(order_[next + i]);
}

void StagePasses::compute(StageStep& step, const Places& places, bool weights, const std::function<void()>& poll) {
  choose_images(step.number, places);
  for (LearningLayer& layer : learners_.layers) layer.sums.clear();
  run_forward(step, places);
  setup_.train.check_reads();
  PhaseTimes& times = step.result.times;
  Clock::time_point clock = Clock::now();
  poll();
  lap(clock, times.reduce);
  run_heads(step, places);
  lap(clock, times.head);
  poll();
  lap(clock, times.reduce);
  run_backward(step.number, places, weights && !setup_.options.layer.exact);
  if (weights && setup_.options.layer.exact) run_exact(places.count);
  lap(clock, times.gradient);
}

void StagePasses::count_first(std::size_t t, std::size_t step, const Places& places) {
  for (std::size_t begin = 0; begin < places.count; begin += at_once_) {
    const Places part = {places.first + begin, std::min(at_once_, places.count - begin)};
    choose_images(step, part);
    const auto images = static_cast<std::ptrdiff_t>(part.count);
#pragma omp parallel for schedule(dynamic, 1)
    for (std::ptrdiff_t i = 0; i < images; ++i) {
      Thread& thread = *threads_[thread_index()];
      PhaseTimes ignored;
      inputs_->load(images_[static_cast<std::size_t>(i)], order_epoch_, thread.input, ignored);
      for (std::size_t s = 0; s <= t; ++s) forward_layer(s, static_cast<std::size_t>(i), thread, false, false);
    }
  }
  setup_.train.check_reads();
  std::vector<std::int64_t>& total = learners_.layers[t].sums.statistics;
  for (const auto& thread : threads_) {
    for (std::size_t k = 0; k < total.size(); ++k) total[k] += thread->sums[t].statistics[k];
    for (LayerSums& each : thread->sums) each.clear();
  }
}

// Moves the threads' statistics into those of the layers.
void StagePasses::gather_statistics() {
  for (const auto& thread : threads_) {
    for (std::size_t t = 0; t < learners_.layers.size(); ++t) {
      std::vector<std::int64_t>& total = learners_.layers[t].sums.statistics;
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += thread->sums[t].statistics[k];
      thread->sums[t].clear();
    }
  }
}

// `same`: the layer's input holds this image already, but for what layers below that learn have made anew.
void StagePasses::forward_layer(std::size_t t, std::size_t local, Thread& thread, bool windowed, bool same) {
  LayerMaps& maps = layer_maps_[t];
  const std::size_t index = learners_.layers[t].index;
  const LayerTrainer& trainer = *learners_.trainers[t];
  const BinaryLayer& layer = trainer.layer();
  const MapShape& in = layer.geometry().input;
  const MapShape& map = layer.geometry().output;
  LayerSums& sums = thread.sums[t];
  std::uint64_t* input = maps.inputs.data() + local * in.size();
  std::uint64_t* output = maps.outputs.data() + local * map.size();
  std::uint64_t* window = maps.windows.data() + local * map.size();
  if (same) {
    inputs_->gather_trained(index, thread.input, input);
  } else {
    inputs_->gather(index, thread.input, input);
  }
  if (windowed && maps.counts != nullptr && maps.counts->mode() != CountMode::none) {
    maps.counts->forward(setup_.kernels, local, input, trainer.thresholds(), output, window, sums, thread.conv_counts);
  } else {
    simd::ConvOutput out;
    out.bits = output;
    out.bits_pitch = map.pitch();
    out.window = windowed ? window : nullptr;
    out.sum = sums.count().data();
    out.sum_of_squares = sums.count_squared().data();
    setup_.kernels.conv(layer.conv_shape(), input, layer.conv_weights(), trainer.thresholds(), out);
  }
  thread.input.work.maps[index + 1] = output;

  add_bit_counts(setup_.kernels, in, input, thread.counts, sums.input());
  if (windowed) add_bit_counts(setup_.kernels, map, window, thread.counts, sums.active());
}

void StagePasses::run_forward(StageStep& step, const Places& places) {
  const std::size_t repeat = setup_.options.repeat;
  const Loaded wanted = {step.number / repeat, places.first};
  const bool same = loaded_ == wanted;
  const bool again = (step.number + 1) / repeat == wanted.minibatch;
  step.result.modes.clear();
  for (LayerMaps& maps : layer_maps_) {
    step.result.modes.push_back(maps.counts ? maps.counts->begin_step(same, again, setup_.options.counts_limit)
                                            : CountMode::none);
  }
  const auto images = static_cast<std::ptrdiff_t>(places.count);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::ptrdiff_t i = 0; i < images; ++i) {
    Thread& thread = *threads_[thread_index()];
    const auto local = static_cast<std::size_t>(i);
    if (!same) inputs_->load(images_[local], order_epoch_, thread.input, thread.times);
    Clock::time_point clock = Clock::now();
    for (std::size_t t = 0; t < layer_maps_.size(); ++t) forward_layer(t, local, thread, true, same);
    lap(clock, thread.times.forward);
    for (std::size_t h = 0; h < head_maps_.size(); ++h) {
      const LearningHead& head = learners_.heads[h];
      const std::uint64_t* bits =
          layer_maps_[head.layer].outputs.data() + local * layer_of(head.layer).geometry().output.size();
      head.head->count(setup_.kernels, bits, head_maps_[h].counts.data() + local * head.head->features());
    }
    lap(clock, thread.times.head);
  }
  add_times(step.result.times);
  gather_statistics();
  for (std::size_t t = 0; t < layer_maps_.size(); ++t) {
    CountCache* counts = layer_maps_[t].counts.get();
    if (counts != nullptr && counts->mode() != CountMode::none) counts->complete(learners_.layers[t].sums);
  }
  loaded_ = wanted;
}

// Adds the threads' mean times to `times`.
void StagePasses::add_times(PhaseTimes& times) {
  PhaseTimes sum;
  for (const auto& thread : threads_) {
    sum += thread->times;
    thread->times = {};
  }
  const double share = 1.0 / static_cast<double>(threads_.size());
  times.data += sum.data * share;
  times.encode += sum.encode * share;
  times.prefix += sum.prefix * share;
  times.forward += sum.forward * share;
  times.head += sum.head * share;
}

void StagePasses::run_heads(const StageStep& step, const Places& places) {
  const std::size_t heads = learners_.heads.size();
  const std::size_t chunks = (places.count + head_chunk - 1) / head_chunk;
  const auto tasks = static_cast<std::ptrdiff_t>(chunks * heads);
  const TrainOptions& options = setup_.options;
  for (const auto& thread : threads_) {
    thread->has_head_sums.assign(heads, false);
    thread->head_totals.assign(2 * heads, 0);
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (std::ptrdiff_t task = 0; task < tasks; ++task) {
    Thread& thread = *threads_[thread_index()];
    const std::size_t h = static_cast<std::size_t>(task) / chunks;
    const std::size_t begin = static_cast<std::size_t>(task) % chunks * head_chunk;
    const std::size_t count = std::min(head_chunk, places.count - begin);
    const Head& head = *learners_.heads[h].head;
    if (!thread.has_head_sums[h]) thread.head_sums[h].clear();
    thread.has_head_sums[h] = true;
    HeadMaps& maps = head_maps_[h];
    const std::size_t f = head.features();
    std::array<std::uint64_t, head_chunk> keys{};
    for (std::size_t i = 0; i < count && options.head_dropout > 0; ++i) {
      const std::uint64_t counter = (places.first + begin + i) * 64 + h;
      keys[i] = Random(options.seed, Stream::dropout, setup_.id << 40U | step.number, counter).next();
    }
    const std::uint8_t* soft_labels = soft_labels_.empty() ? nullptr : soft_labels_.data() + begin * head.classes();
    const Head::Objective objective = {options.label_smoothing, options.head_dropout, keys.data(), options.teacher_share,
                                       soft_labels};
    const Head::Loss loss = head.backward(setup_.kernels, maps.counts.data() + begin * f, labels_.data() + begin, count,
                                          objective, thread.head_sums[h], maps.gradient.data() + begin * f);
    thread.head_totals[2 * h] += loss.micro_nats;
    thread.head_totals[2 * h + 1] += static_cast<std::int64_t>(loss.correct);
  }
  sum_heads(step.request, places.count);
}

// Sums what the threads have of heads, and adds the requests and the number of images to the totals.
void StagePasses::sum_heads(const StepRequest& request, std::size_t images) {
  std::vector<std::int64_t>& totals = learners_.totals;
  totals.assign(2 * learners_.heads.size(), 0);
  for (const auto& thread : threads_) {
    for (std::size_t k = 0; k < totals.size(); ++k) totals[k] += thread->head_totals[k];
  }
  totals.push_back(request.stop ? 1 : 0);
  totals.push_back(request.checkpoint ? 1 : 0);
  totals.push_back(static_cast<std::int64_t>(images));
  for (std::size_t h = 0; h < learners_.heads.size(); ++h) {
    Head::Sums& sums = learners_.heads[h].sums;
    sums.clear();
    const auto total = sums.all();
#pragma omp parallel
    for (std::size_t k = 0; k < total.size(); ++k) {
      const std::span<std::int64_t> sum = total[k];
      for (const auto& thread : threads_) {
        if (!thread->has_head_sums[h]) continue;
        const std::span<const std::int64_t> part = thread->head_sums[h].all()[k];
        // The same thread has the same elements every time.
#pragma omp for schedule(static) nowait
        for (std::ptrdiff_t j = 0; j < static_cast<std::ptrdiff_t>(sum.size()); ++j) {
          sum[static_cast<std::size_t>(j)] += part[static_cast<std::size_t>(j)];
        }
      }
    }
  }
}

}  // namespace bitloom::layerwise
