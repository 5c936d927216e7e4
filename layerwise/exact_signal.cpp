#include "layerwise/exact_signal.h"

#include <omp.h>

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "layerwise/exact_channel.h"

namespace bitloom::layerwise {
namespace {

constexpr std::size_t chunk_images = 64;  // bounds the lists of edge pixels

}  // namespace

// The edge pixels of one image: channel o has entries begin[o] .. begin[o + 1] - 1, each pixel << 1 | (d == T + 1).
struct ExactSignal::Edges {
  std::vector<std::uint32_t> entries, begin, position;

  std::span<const std::uint32_t> of(std::size_t o) const { return {entries.data() + begin[o], begin[o + 1] - begin[o]}; }
};

void ExactSignal::find_edges(const ExactBatch& batch, std::size_t image, Edges& edges) const {
  const MapShape& map = layer_.geometry().output;
  const std::size_t words = map.words();
  const std::size_t pixels = map.height * map.width;
  const std::uint64_t* window = batch.edges + image * pixels * words;
  const std::uint64_t* output = batch.outputs + image * map.size();
  edges.begin.assign(words * word_bits + 1, 0);
  for (std::size_t i = 0; i < pixels * words; ++i) {
    for (std::uint64_t bits = window[i]; bits != 0; bits &= bits - 1) {
      ++edges.begin[i % words * word_bits + static_cast<std::size_t>(std::countr_zero(bits)) + 1];
    }
  }
  for (std::size_t o = 0; o < words * word_bits; ++o) edges.begin[o + 1] += edges.begin[o];
  edges.position.assign(edges.begin.begin(), edges.begin.end() - 1);
  edges.entries.resize(edges.begin.back());
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t w = 0; w < words; ++w) {
      const std::uint64_t on = ~output[p * words + w];
      for (std::uint64_t bits = window[p * words + w]; bits != 0; bits &= bits - 1) {
        const auto b = static_cast<std::size_t>(std::countr_zero(bits));
        edges.entries[edges.position[w * word_bits + b]++] = static_cast<std::uint32_t>(p << 1 | ((on >> b) & 1U));
      }
    }
  }
}

ExactSignal::ExactSignal(const BinaryLayer& layer) : layer_(layer) {
  for (std::size_t k = 0; k < layer.patch_bits(); ++k) {
    if (get_bit(layer.valid_bits().data(), k)) weights_.push_back(static_cast<std::uint32_t>(k));
  }
}

ExactSignal::~ExactSignal() = default;

ExactStatistics ExactSignal::add(const simd::Kernels& kernels, const ExactHead& head, const ExactBatch& batch,
                                 std::span<std::int64_t> deltas) {
  if (deltas.size() != size()) fail(ErrorKind::usage, "deltas: {} elements, expected {}", deltas.size(), size());
  if (head.zone_of_pixel().size() != layer_.geometry().output.height * layer_.geometry().output.width) {
    fail(ErrorKind::usage, "head: made for a map of {} pixels, expected the {}x{} of layer '{}'", head.zone_of_pixel().size(),
         layer_.geometry().output.height, layer_.geometry().output.width, layer_.spec().name);
  }
  edges_.resize(std::min(chunk_images, batch.images));
  images_.resize(edges_.size());
  workers_.resize(static_cast<std::size_t>(omp_get_max_threads()));
  const auto channels = static_cast<std::ptrdiff_t>(layer_.channels());
  const std::size_t input_size = layer_.geometry().input.size();
  for (std::size_t first = 0; first < batch.images; first += chunk_images) {
    const auto n = static_cast<std::ptrdiff_t>(std::min(chunk_images, batch.images - first));
#pragma omp parallel
    {
#pragma omp for schedule(dynamic, 1)
      for (std::ptrdiff_t i = 0; i < n; ++i) {
        const auto local = static_cast<std::size_t>(i);
        find_edges(batch, first + local, edges_[local]);
        head.prepare(kernels, batch.counts + (first + local) * head.features(), batch.labels[first + local], images_[local]);
      }
      Channel& worker = workers_[static_cast<std::size_t>(omp_get_thread_num())];
#pragma omp for schedule(dynamic, 1)
      for (std::ptrdiff_t o = 0; o < channels; ++o) {
        const auto channel = static_cast<std::size_t>(o);
        worker.start(layer_, weights_, channel, deltas.data() + channel * moves() * layer_.patch_bits());
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
          worker.add(kernels, head, images_[i], batch.inputs + (first + i) * input_size, edges_[i].of(channel));
        }
      }
    }
  }
  ExactStatistics total;
  for (Channel& worker : workers_) {
    total.edge_pixels += worker.statistics.edge_pixels;
    total.moves += worker.statistics.moves;
    total.distinct += worker.statistics.distinct;
    worker.statistics = {};
  }
  return total;
}

}  // namespace bitloom::layerwise
