// The backward pass of a stage's step: gradients of the outputs of layers, image by image, and the sums that follow from them.
#include <algorithm>
#include <span>

#include "core/random.h"
#include "layerwise/stage_passes.h"
#include "layerwise/stage_thread.h"

namespace bitloom::layerwise {

// Where one other layer sends all gradient, per cell, no map of gradients per pixel is needed.
void StagePasses::find_cells(std::size_t t) {
  LayerMaps& maps = layer_maps_[t];
  if (!maps.has_consumers || !learners_.layers[t].heads.empty()) return;
  const LayerGeometry::Source* only = nullptr;
  const BinaryLayer* reader = nullptr;
  for (std::size_t above = t + 1; above < layer_maps_.size(); ++above) {
    if (!layer_maps_[above].backward_weights) continue;  // passes no gradient
    for (const LayerGeometry::Source& source : layer_of(above).geometry().sources) {
      if (source.layer != static_cast<int>(learners_.layers[t].index)) continue;
      if (only != nullptr) return;
      only = &source;
      reader = &layer_of(above);
    }
  }
  const Downsample pool = reader->spec().pool;
  if (only->factor > 1 && pool != Downsample::any && pool != Downsample::none) return;
  maps.cell_factor = only->factor;
  for (std::size_t y = 0; y < only->shape.height; ++y) {
    for (std::size_t x = 0; x < only->shape.width; ++x) {
      const std::size_t pixel = y / only->factor * reader->geometry().input.width + x / only->factor;
      maps.cell.push_back(static_cast<std::uint32_t>(pixel));
    }
  }
}

// The gradient of layer t's output bits that came per pixel, zero at first.
std::vector<float>& StagePasses::pixel_gradient(std::size_t t, Thread& thread) const {
  const MapShape& map = layer_of(t).geometry().output;
  std::vector<float>& gradient = thread.pixel_gradient[t];
  if (gradient.empty()) gradient.assign(map.height * map.width * map.words() * word_bits, 0.0F);
  return gradient;
}

// The image `local` of those that are there.
StagePasses::OutputGradient StagePasses::output_gradient(std::size_t t, std::size_t local, Thread& thread) const {
  const LayerMaps& maps = layer_maps_[t];
  const std::vector<std::size_t>& heads = learners_.layers[t].heads;
  const MapShape& map = layer_of(t).geometry().output;
  const std::size_t channels = map.words() * word_bits;
  const std::uint64_t* window = maps.windows.data() + local * map.size();
  if (!maps.cell.empty()) {
    thread.deciding.assign(window, window + map.size());
    clear_undecided(maps.outputs.data() + local * map.size(), map, maps.cell_factor, thread.deciding.data());
    return {thread.cell_gradient[t], maps.cell.data(), thread.deciding.data()};
  }
  const auto of_head = [&](std::size_t h) {
    const std::size_t features = learners_.heads[h].head->features();
    return std::span<const float>(head_maps_[h].gradient).subspan(local * features, features);
  };
  // One head whose gradient is constant over a cell, and nothing above: a gradient per cell instead of per pixel.
  if (!maps.has_consumers && heads.size() == 1 && head_maps_[heads[0]].region[0] < learners_.heads[heads[0]].head->regions()) {
    return {of_head(heads[0]), head_maps_[heads[0]].region.data(), window};
  }
  std::vector<float>& sum = pixel_gradient(t, thread);
  for (const std::size_t h : heads) {
    for (std::size_t p = 0; p < map.height * map.width; ++p) {
      learners_.heads[h].head->add_pixel_gradient(of_head(h).data(), p / map.width, p % map.width, sum.data() + p * channels);
    }
  }
  return {sum, maps.identity.data(), window};
}

// The image `local` of those that are there, which has this place in the minibatch.
void StagePasses::backward_image(std::size_t step, std::size_t place, std::size_t local, Thread& thread) {
  for (std::vector<float>& gradient : thread.pixel_gradient) gradient.clear();
  for (std::size_t t = layer_maps_.size(); t-- > 0;) {
    LayerMaps& maps = layer_maps_[t];
    const LayerTrainer& trainer = *learners_.trainers[t];
    const BinaryLayer& layer = trainer.layer();
    const MapShape& map = layer.geometry().output;
    const std::size_t channels = map.words() * word_bits;
    const OutputGradient output = output_gradient(t, local, thread);
    thread.rounding.resize(output.gradient.size());
    setup_.kernels.prepare_rounding(output.gradient.data(), trainer.slope().data(), output.gradient.size(), channels,
                                    1.0F / trainer.unit(), thread.rounding.data());
    // Also while no weights learn: thresholds may, and the units that gradients are rounded to settle.
    if (maps.backward_weights) thread.codes.resize(map.height * map.width * channels);
    const std::uint64_t key =
        Random(setup_.options.seed, Stream::gradient_rounding, setup_.id << 40U | step, place * 64 + t).next();
    const auto image_offset = static_cast<std::uint32_t>(local * layer.geometry().input.size());
    LayerSums& sums = thread.sums[t];
    sums.magnitude()[0] +=
        collect_components(output.window, map.height * map.width, map.words(), layer.channels(), thread.rounding.data(),
                           output.region, maps.patch_offset.data(), image_offset, key, maps.components[local],
                           sums.value().data(), maps.backward_weights ? thread.codes.data() : nullptr);
    if (maps.backward_weights) send_down(t, output.window, local, thread);
  }
}

// The gradient of layer t's input bits, from the codes of its windowed output bits, to the layers of the stage that it reads.
void StagePasses::send_down(std::size_t t, const std::uint64_t* window, std::size_t local, Thread& thread) {
  const BinaryLayer& layer = layer_of(t);
  const MapShape& input = layer.geometry().input;
  const std::size_t pixels = input.height * input.width;
  thread.input_gradient.resize(pixels * input.words() * word_bits);
  input_gradient(setup_.kernels, *layer_maps_[t].backward_weights, window, thread.codes.data(), learners_.trainers[t]->unit(),
                 thread.backward, thread.input_gradient.data());
  for (const LayerGeometry::Source& source : layer.geometry().sources) {
    for (std::size_t below = 0; below < t; ++below) {
      if (source.layer != static_cast<int>(learners_.layers[below].index)) continue;
      const LayerMaps& maps = layer_maps_[below];
      if (maps.cell.empty()) {
        place_backward(maps.outputs.data() + local * source.shape.size(), source.shape, layer.spec().pool, source.factor,
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

void StagePasses::run_backward(std::size_t step, const Places& places, bool weights) {
  for (const LayerMaps& maps : layer_maps_) {
    if (maps.backward_weights) maps.backward_weights->refresh();
  }
  const auto images = static_cast<std::ptrdiff_t>(places.count);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::ptrdiff_t i = 0; i < images; ++i) {
    const auto local = static_cast<std::size_t>(i);
    backward_image(step, places.first + local, local, *threads_[thread_index()]);
  }
  gather_statistics();
  if (!weights) return;
  for (std::size_t t = 0; t < layer_maps_.size(); ++t) {
    const LayerMaps& maps = layer_maps_[t];
    accumulate_weight_gradient(setup_.kernels, layer_of(t), maps.inputs.data(),
                               std::span<const ImageComponents>(maps.components).first(places.count),
                               learners_.layers[t].sums.weight.data());
  }
}

void StagePasses::run_exact(std::size_t images) {
  LayerMaps& maps = layer_maps_[0];
  maps.exact_head->refresh(*learners_.heads[0].head);
  const ExactBatch batch = {maps.inputs.data(),          maps.outputs.data(), maps.windows.data(),
                            head_maps_[0].counts.data(), labels_.data(),      images};
  maps.exact->add(setup_.kernels, *maps.exact_head, batch, learners_.layers[0].sums.exact);
}

}  // namespace bitloom::layerwise
