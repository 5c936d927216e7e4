// The passes of a stage's step over its images: forward, heads, backward.
#include <algorithm>
#include <array>
#include <span>

#include "core/random.h"
#include "layerwise/bit_counts.h"
#include "layerwise/stage.h"
#include "layerwise/stage_thread.h"

namespace bitloom::layerwise {
namespace {

constexpr std::size_t head_chunk = 16;  // images per task of the heads

}  // namespace

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

  add_bit_counts(kernels_, in, input, thread.counts, sums.input());
  if (windowed) add_bit_counts(kernels_, map, window, thread.counts, sums.active());
}

// Thresholds need statistics before they mean anything: layer by layer, each on the thresholds found for those below.
void Stage::initialise() {
  for (std::size_t t = 0; t < states_.size(); ++t) {
    for (std::size_t begin = 0; begin < places_.count; begin += most_images_) {
      const Places part = {places_.first + begin, std::min(most_images_, places_.count - begin)};
      choose_images(part);
      const auto images = static_cast<std::ptrdiff_t>(part.count);
#pragma omp parallel for schedule(dynamic, 1)
      for (std::ptrdiff_t i = 0; i < images; ++i) {
        ThreadState& thread = *threads_[thread_index()];
        PhaseTimes ignored;
        inputs_->load(images_[static_cast<std::size_t>(i)], order_epoch_, thread.input, ignored);
        for (std::size_t s = 0; s <= t; ++s) forward_layer(s, static_cast<std::size_t>(i), thread, false, false);
      }
    }
    train_.check_reads();
    LayerSums& sums = states_[t].sums;
    for (const auto& thread : threads_) {
      for (std::size_t k = 0; k < sums.statistics.size(); ++k) sums.statistics[k] += thread->sums[t].statistics[k];
      for (LayerSums& each : thread->sums) each.clear();
    }
    comm_.sum(std::span(sums.statistics));
    trainers_[t]->set_statistics(sums, batch_);
    if (server_ != nullptr) chooser(t).set_statistics(sums, batch_);
    sums.clear();
  }
  initialised_ = true;
}

// Moves the threads' statistics into those of the layers.
void Stage::gather_statistics() {
  for (const auto& thread : threads_) {
    for (std::size_t t = 0; t < states_.size(); ++t) {
      std::vector<std::int64_t>& total = states_[t].sums.statistics;
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += thread->sums[t].statistics[k];
      thread->sums[t].clear();
    }
  }
}

void Stage::run_forward(std::size_t count) {
  const std::size_t minibatch = step_ / options_.repeat;
  const bool same = loaded_ == minibatch;
  const bool again = (step_ + 1) / options_.repeat == minibatch;
  result_.modes.clear();
  for (LayerState& state : states_) {
    result_.modes.push_back(state.counts ? state.counts->begin_step(same, again, options_.counts_limit) : CountMode::none);
  }
  const auto images = static_cast<std::ptrdiff_t>(count);
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
  }
  gather_statistics();
  for (LayerState& state : states_) {
    if (state.counts && state.counts->mode() != CountMode::none) state.counts->complete(state.sums);
  }
  loaded_ = minibatch;
  PhaseTimes& times = result_.times;
  const double share = 1.0 / static_cast<double>(threads_.size());
  times.data += sum.data * share;
  times.encode += sum.encode * share;
  times.prefix += sum.prefix * share;
  times.forward += sum.forward * share;
  times.head += sum.head * share;
}

void Stage::run_heads(const Places& places) {
  const std::size_t chunks = (places.count + head_chunk - 1) / head_chunk;
  const auto tasks = static_cast<std::ptrdiff_t>(chunks * heads_.size());
  for (const auto& thread : threads_) {
    for (Head::Sums& sums : thread->head_sums) sums.clear();
    thread->head_totals.assign(2 * heads_.size(), 0);
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (std::ptrdiff_t task = 0; task < tasks; ++task) {
    ThreadState& thread = *threads_[thread_index()];
    const std::size_t h = static_cast<std::size_t>(task) / chunks;
    const std::size_t begin = static_cast<std::size_t>(task) % chunks * head_chunk;
    const std::size_t count = std::min(head_chunk, places.count - begin);
    HeadState& head = heads_[h];
    const std::size_t f = head.head->features();
    std::array<std::uint64_t, head_chunk> keys{};
    for (std::size_t i = 0; i < count && options_.head_dropout > 0; ++i) {
      keys[i] = Random(options_.seed, Stream::dropout, id_ << 40U | step_, (places.first + begin + i) * 64 + h).next();
    }
    const Head::Objective objective = {options_.label_smoothing, options_.head_dropout, keys.data()};
    const Head::Loss loss = head.head->backward(kernels_, head.counts.data() + begin * f, labels_.data() + begin, count,
                                                objective, thread.head_sums[h], head.gradient.data() + begin * f);
    thread.head_totals[2 * h] += loss.micro_nats;
    thread.head_totals[2 * h + 1] += static_cast<std::int64_t>(loss.correct);
  }
  totals_.assign(2 * heads_.size(), 0);
  for (const auto& thread : threads_) {
    for (std::size_t k = 0; k < totals_.size(); ++k) totals_[k] += thread->head_totals[k];
  }
  totals_.push_back(request_.stop ? 1 : 0);
  totals_.push_back(request_.checkpoint ? 1 : 0);
  totals_.push_back(static_cast<std::int64_t>(places.count));
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
}

// The gradient of layer t's output bits that came per pixel, zero at first.
std::vector<float>& Stage::pixel_gradient(std::size_t t, ThreadState& thread) const {
  const MapShape& map = layers_[states_[t].index].geometry().output;
  std::vector<float>& gradient = thread.pixel_gradient[t];
  if (gradient.empty()) gradient.assign(map.height * map.width * map.words() * word_bits, 0.0F);
  return gradient;
}

// The image `local` of those that are there, which has this place in the minibatch.
void Stage::backward_image(std::size_t place, std::size_t local, ThreadState& thread) {
  for (std::vector<float>& gradient : thread.pixel_gradient) gradient.clear();
  for (std::size_t t = states_.size(); t-- > 0;) {
    LayerState& state = states_[t];
    const BinaryLayer& layer = layers_[state.index];
    const MapShape& map = layer.geometry().output;
    const std::size_t channels = map.words() * word_bits;
    const std::uint64_t* window = state.windows.data() + local * map.size();
    // One head whose gradient is constant over a cell, and nothing above: a gradient per cell instead of per pixel.
    const bool by_region = !state.has_consumers && state.heads.size() == 1 &&
                           heads_[state.heads[0]].region[0] < heads_[state.heads[0]].head->regions();
    std::span<const float> gradient;
    const std::uint32_t* region = nullptr;
    if (!state.cell.empty()) {
      gradient = thread.cell_gradient[t];
      region = state.cell.data();
      thread.deciding.assign(window, window + map.size());
      clear_undecided(state.outputs.data() + local * map.size(), map, state.cell_factor, thread.deciding.data());
      window = thread.deciding.data();
    } else if (by_region) {
      const HeadState& head = heads_[state.heads[0]];
      gradient = {head.gradient.data() + local * head.head->features(), head.head->features()};
      region = head.region.data();
    } else {
      std::vector<float>& sum = pixel_gradient(t, thread);
      for (const std::size_t h : state.heads) {
        const HeadState& head = heads_[h];
        for (std::size_t p = 0; p < map.height * map.width; ++p) {
          head.head->add_pixel_gradient(head.gradient.data() + local * head.head->features(), p / map.width, p % map.width,
                                        sum.data() + p * channels);
        }
      }
      gradient = sum;
      region = state.identity.data();
    }
    const LayerTrainer& trainer = *trainers_[t];
    thread.rounding.resize(gradient.size());
    kernels_.prepare_rounding(gradient.data(), trainer.slope().data(), gradient.size(), channels, 1.0F / trainer.unit(),
                              thread.rounding.data());
    // Also while no weights learn: thresholds may, and the units that gradients are rounded to settle.
    if (state.feeds_back) thread.codes.resize(map.height * map.width * channels);
    const std::uint64_t key = Random(options_.seed, Stream::gradient_rounding, id_ << 40U | step_, place * 64 + t).next();
    const auto image_offset = static_cast<std::uint32_t>(local * layer.geometry().input.size());
    LayerSums& sums = thread.sums[t];
    sums.magnitude()[0] +=
        collect_components(window, map.height * map.width, map.words(), layer.channels(), thread.rounding.data(), region,
                           state.patch_offset.data(), image_offset, key, state.components[local], sums.value().data(),
                           state.feeds_back ? thread.codes.data() : nullptr);
    if (state.feeds_back) send_down(t, local, window, thread);
  }
}

// The gradient of layer t's input bits, from the codes of its windowed output bits, to the layers of the stage that it reads.
void Stage::send_down(std::size_t t, std::size_t local, const std::uint64_t* window, ThreadState& thread) {
  const BinaryLayer& layer = layers_[states_[t].index];
  const MapShape& input = layer.geometry().input;
  const std::size_t pixels = input.height * input.width;
  thread.input_gradient.resize(pixels * input.words() * word_bits);
  input_gradient(kernels_, layer, window, thread.codes.data(), trainers_[t]->unit(), thread.backward,
                 thread.input_gradient.data());
  for (const LayerGeometry::Source& source : layer.geometry().sources) {
    for (std::size_t below = 0; below < t; ++below) {
      const LayerState& state = states_[below];
      if (source.layer != static_cast<int>(state.index)) continue;
      if (state.cell.empty()) {
        place_backward(state.outputs.data() + local * source.shape.size(), source.shape, layer.spec().pool, source.factor,
                       thread.input_gradient.data(), input, source.word, pixel_gradient(below, thread).data());
        continue;
      }
      const std::size_t channels = source.shape.words() * word_bits;
      std::vector<float>& cells = thread.cell_gradient[below];
      cells.resize(pixels * channels);
      for (std::size_t p = 0; p < pixels; ++p) {
        std::copy_n(thread.input_gradient.data() + (p * input.words() + source.word) * word_bits, channels,
                    cells.data() + p * channels);
      }
    }
  }
}

void Stage::run_backward(const Places& places, bool weights) {
  const auto images = static_cast<std::ptrdiff_t>(places.count);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::ptrdiff_t i = 0; i < images; ++i) {
    const auto local = static_cast<std::size_t>(i);
    backward_image(places.first + local, local, *threads_[thread_index()]);
  }
  gather_statistics();
  if (!weights) return;
  for (LayerState& state : states_) {
    accumulate_weight_gradient(kernels_, layers_[state.index], state.inputs.data(),
                               std::span<const ImageComponents>(state.components).first(places.count),
                               state.sums.weight.data());
  }
}

void Stage::run_exact(std::size_t images) {
  LayerState& state = states_[0];
  state.exact_head->refresh(*heads_[0].head);
  const ExactBatch batch = {state.inputs.data(),     state.outputs.data(), state.windows.data(),
                            heads_[0].counts.data(), labels_.data(),       images};
  state.exact->add(kernels_, *state.exact_head, batch, state.sums.exact);
}

}  // namespace bitloom::layerwise
