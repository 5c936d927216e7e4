#include "layerwise/flip_study.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "core/bits.h"
#include "core/error.h"
#include "core/softmax.h"
#include "layerwise/exact_signal.h"
#include "layerwise/forward.h"

namespace bitloom::layerwise {
namespace {

constexpr std::size_t studied_at_once = 64;

// The inputs of a layer for all images of a set, which do not change when its weights do.
class LayerInputs {
 public:
  LayerInputs(const simd::Kernels& kernels, const Model& model, std::size_t index, const data::Dataset& set)
      : set_(set), map_(model.layers[index].geometry().input), inputs_(set.size() * map_.size()) {
    const NetForward forward(kernels, model.encoder, model.layers);
    const std::vector<bool> needed = needed_layers(model.layers, {index});
    const auto count = static_cast<std::ptrdiff_t>(set.size());
#pragma omp parallel
    {
      ForwardWorkspace work = forward.make_workspace(needed);
      std::vector<std::uint8_t> room;
#pragma omp for schedule(dynamic, 4)
      for (std::ptrdiff_t i = 0; i < count; ++i) {
        const auto k = static_cast<std::size_t>(i);
        forward.encode(set.image(k, room).data(), work);
        for (std::size_t l = 0; l < index; ++l) {
          if (needed[l]) forward.run_layer(l, work);
        }
        forward.gather_input(index, work, inputs_.data() + k * map_.size());
      }
    }
    set.check_reads();
  }

  std::size_t size() const { return set_.size(); }
  const std::uint16_t* labels() const { return set_.labels.data(); }
  const std::uint64_t* of(std::size_t image) const { return inputs_.data() + image * map_.size(); }

 private:
  const data::Dataset& set_;
  MapShape map_;
  Buffer<std::uint64_t> inputs_;
};

// Mean loss in nats.
double loss_of(const simd::Kernels& kernels, const BinaryLayer& layer, const Head& head, const LayerInputs& inputs) {
  const auto count = static_cast<std::ptrdiff_t>(inputs.size());
  std::int64_t sum = 0;  // millionths of a nat, whatever the order
#pragma omp parallel reduction(+ : sum)
  {
    Buffer<std::uint64_t> output(layer.geometry().output.size());
    std::vector<std::int16_t> counts(head.features());
    std::vector<float> logits(head.classes());
#pragma omp for schedule(dynamic, 4)
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      const auto k = static_cast<std::size_t>(i);
      layer.forward(kernels, inputs.of(k), output.data());
      head.count(kernels, output.data(), counts.data());
      head.predict(kernels, counts.data(), 1, logits.data());
      sum += micro_nats(cross_entropy(logits, inputs.labels()[k])).value_or(largest_micro_nats);
    }
  }
  return 1e-6 * static_cast<double>(sum) / static_cast<double>(inputs.size());
}

std::vector<std::int64_t> changes_of(const simd::Kernels& kernels, const BinaryLayer& layer, const Head& head,
                                     const LayerInputs& inputs, const std::function<void(double)>& progress) {
  ExactSignal signal(layer);
  ExactHead exact(head, layer.geometry().output);
  exact.refresh(head);
  const MapShape& map = layer.geometry().output;
  // Only the counts that one flip moves across the threshold.
  Buffer<std::int32_t> low(layer.padded_channels()), high(layer.padded_channels());
  for (std::size_t o = 0; o < layer.padded_channels(); ++o) {
    low[o] = o < layer.channels() ? layer.thresholds()[o] : 1;
    high[o] = o < layer.channels() ? low[o] + 1 : 0;
  }
  std::vector<std::int64_t> changes(signal.size());
  Buffer<std::uint64_t> outputs(studied_at_once * map.size()), edges(studied_at_once * map.size());
  std::vector<std::int16_t> counts(studied_at_once * head.features());
  for (std::size_t first = 0; first < inputs.size(); first += studied_at_once) {
    const std::size_t n = std::min(studied_at_once, inputs.size() - first);
#pragma omp parallel for schedule(dynamic, 4)
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(n); ++i) {
      const auto k = static_cast<std::size_t>(i);
      simd::ConvOutput out;
      out.bits = outputs.data() + k * map.size();
      out.bits_pitch = map.pitch();
      out.window = edges.data() + k * map.size();
      kernels.conv(layer.conv_shape(), inputs.of(first + k), layer.conv_weights(),
                   {layer.thresholds().data(), low.data(), high.data()}, out);
      head.count(kernels, out.bits, counts.data() + k * head.features());
    }
    ExactBatch batch;
    batch.inputs = inputs.of(first);
    batch.outputs = outputs.data();
    batch.edges = edges.data();
    batch.counts = counts.data();
    batch.labels = inputs.labels() + first;
    batch.images = n;
    signal.add(kernels, exact, batch, changes);
    if (progress) progress(static_cast<double>(first + n) / static_cast<double>(inputs.size()));
  }
  return changes;
}

// Makes move `m` of weight k in row o.
void make_move(const BinaryLayer& layer, std::size_t o, std::size_t k, std::size_t m, std::vector<std::uint64_t>& sign,
               std::vector<std::uint64_t>& nonzero) {
  const std::size_t place = o * layer.patch_bits() + k;
  if (!layer.spec().ternary) {
    set_bit(sign.data(), place, !get_bit(sign.data(), place));
    return;
  }
  const int value = trit_value(sign.data(), nonzero.data(), place);
  const int moved = trit_moves(value)[m];
  set_bit(nonzero.data(), place, moved != 0);
  set_bit(sign.data(), place, moved < 0);
}

}  // namespace

FlipStudy study_flips(const simd::Kernels& kernels, const Model& model, const std::string& name, const data::Dataset& images,
                      const data::Dataset& others, const std::function<void(double share)>& progress) {
  const auto found = std::find_if(model.layers.begin(), model.layers.end(),
                                  [&](const BinaryLayer& layer) { return layer.spec().name == name; });
  if (found == model.layers.end() || !model.heads.contains(name)) {
    fail(ErrorKind::usage, "layer '{}': {}", name, found == model.layers.end() ? "the net has none" : "it has no head");
  }
  if (found->ties().any()) {
    fail(ErrorKind::usage, "layer '{}': its weights are tied (several thresholds): no flip is a single one", name);
  }
  if (images.size() == 0 || others.size() == 0) fail(ErrorKind::usage, "layer '{}': no images to study it with", name);
  const auto index = static_cast<std::size_t>(found - model.layers.begin());
  const Head& head = model.heads.at(name);
  const LayerInputs inputs(kernels, model, index, images);
  const LayerInputs other_inputs(kernels, model, index, others);
  BinaryLayer layer = *found;
  const std::vector<std::int64_t> changes = changes_of(kernels, layer, head, inputs, progress);

  FlipStudy study;
  study.layer = name;
  study.loss = loss_of(kernels, layer, head, inputs);
  study.others_loss = loss_of(kernels, layer, head, other_inputs);
  const std::size_t bits = layer.patch_bits();
  const std::size_t moves = moves_per_weight(layer);
  std::vector<std::size_t> best;  // places in `changes`: of the better move of each weight that has one
  for (std::size_t o = 0; o < layer.channels(); ++o) {
    for (std::size_t k = 0; k < bits; ++k) {
      if (!get_bit(layer.valid_bits().data(), k)) continue;
      ++study.weights;
      study.moves += moves;
      std::size_t better = 0;
      for (std::size_t m = 0; m < moves; ++m) {
        const std::size_t place = (o * moves + m) * bits + k;
        study.lower += changes[place] < 0 ? 1 : 0;
        study.neutral += changes[place] == 0 ? 1 : 0;
        if (m == 0 || changes[place] < changes[better]) better = place;
      }
      if (changes[better] < 0) best.push_back(better);
    }
  }
  std::stable_sort(best.begin(), best.end(), [&](std::size_t a, std::size_t b) { return changes[a] < changes[b]; });

  std::vector<std::size_t> sizes;
  for (std::size_t size = 1; size < best.size(); size *= 10) {
    sizes.push_back(size);
    if (3 * size < best.size()) sizes.push_back(3 * size);
  }
  if (!best.empty()) sizes.push_back(best.size());
  std::vector<std::uint64_t> sign(layer.rows().begin(), layer.rows().end());
  std::vector<std::uint64_t> nonzero;
  if (layer.spec().ternary) nonzero.assign(layer.nonzero_rows().begin(), layer.nonzero_rows().end());
  std::int64_t predicted = 0;
  std::size_t made = 0;
  for (const std::size_t size : sizes) {
    for (; made < size; ++made) {
      const std::size_t place = best[made];
      predicted += changes[place];
      make_move(layer, place / (moves * bits), place % bits, place / bits % moves, sign, nonzero);
    }
    for (std::size_t o = 0; o < layer.channels(); ++o) {
      layer.set_row(o, sign.data() + o * layer.patch_words(),
                    nonzero.empty() ? nullptr : nonzero.data() + o * layer.patch_words());
    }
    study.together.push_back({size, static_cast<double>(predicted) / exact_steps / static_cast<double>(images.size()),
                              loss_of(kernels, layer, head, inputs) - study.loss,
                              loss_of(kernels, layer, head, other_inputs) - study.others_loss});
  }
  return study;
}

}  // namespace bitloom::layerwise
