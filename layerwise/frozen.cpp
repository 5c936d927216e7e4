#include "layerwise/frozen.h"

#include <algorithm>

namespace bitloom::layerwise {
namespace {

template <typename T>
void hash_words(Hasher& hasher, const Buffer<T>& words) {
  hasher.update(words.size()).update(std::as_bytes(words.span()));
}

}  // namespace

FrozenInputs::FrozenInputs(const std::vector<BinaryLayer>& layers, const std::vector<std::size_t>& trained)
    : layers_(layers), trained_(trained) {
  for (const std::size_t reader : trained_) {
    for (const LayerGeometry::Source& source : layers_[reader].geometry().sources) {
      if (is_trained(source.layer)) continue;
      Part part = part_of(reader, source);
      if (std::find(parts_.begin(), parts_.end(), part) != parts_.end()) continue;
      part.begin = words_;
      words_ += part.shape.size();
      parts_.push_back(part);
    }
  }
}

bool FrozenInputs::is_trained(int layer) const {
  return layer >= 0 && std::find(trained_.begin(), trained_.end(), static_cast<std::size_t>(layer)) != trained_.end();
}

FrozenInputs::Part FrozenInputs::part_of(std::size_t reader, const LayerGeometry::Source& source) const {
  const Downsample pool = source.factor == 1 ? Downsample::none : layers_[reader].spec().pool;  // equal parts, once
  const MapShape shape = {source.shape.height / source.factor, source.shape.width / source.factor,
                          downsampled_channels(source.shape.words(), pool, source.factor), 0};
  return {source.layer, source.shape, pool, source.factor, shape, 0};
}

bool FrozenInputs::covers(std::size_t layer) const {
  const auto& sources = layers_[layer].geometry().sources;
  return std::none_of(sources.begin(), sources.end(), [&](const auto& source) { return is_trained(source.layer); });
}

void FrozenInputs::pack(const ForwardWorkspace& work, std::uint64_t* record) const {
  for (const Part& part : parts_) {
    place(work.maps[static_cast<std::size_t>(part.layer + 1)], part.source, part.pool, part.factor, record + part.begin,
          part.shape, 0);
  }
}

void FrozenInputs::gather(std::size_t layer, const std::uint64_t* record, const ForwardWorkspace& work,
                          std::uint64_t* target) const {
  const LayerGeometry& geometry = layers_[layer].geometry();
  for (const LayerGeometry::Source& source : geometry.sources) {
    if (is_trained(source.layer)) continue;
    const Part& part = *std::find(parts_.begin(), parts_.end(), part_of(layer, source));
    place(record + part.begin, part.shape, Downsample::none, 1, target, geometry.input, source.word);
  }
  gather_trained(layer, work, target);
}

void FrozenInputs::gather_trained(std::size_t layer, const ForwardWorkspace& work, std::uint64_t* target) const {
  const LayerGeometry& geometry = layers_[layer].geometry();
  for (const LayerGeometry::Source& source : geometry.sources) {
    if (!is_trained(source.layer)) continue;
    place(work.maps[static_cast<std::size_t>(source.layer + 1)], source.shape, layers_[layer].spec().pool, source.factor,
          target, geometry.input, source.word);
  }
}

Hash128 FrozenInputs::hash(const Encoder& encoder) const {
  TensorFile encoder_file;
  encoder.save(encoder_file);
  std::vector<Hash128> maps = {hash_bytes(encoder_file.serialize())};  // hashes of the encoder and of each layer
  for (const BinaryLayer& layer : layers_) {
    const LayerSpec& spec = layer.spec();
    Hasher hasher;
    hasher.update(to_string(spec.pool)).update(spec.kernel).update(spec.stride).update(spec.padding).update(spec.width);
    hasher.update(spec.ternary).update(layer.geometry().sources.size());
    for (const LayerGeometry::Source& source : layer.geometry().sources) {
      hasher.update(maps[static_cast<std::size_t>(source.layer + 1)].hex()).update(source.factor);
    }
    hash_words(hasher, layer.rows());
    hash_words(hasher, layer.nonzero_rows());
    hash_words(hasher, layer.thresholds());
    maps.push_back(hasher.finish());
  }
  Hasher hasher;
  hasher.update(parts_.size());
  for (const Part& part : parts_) {
    hasher.update(maps[static_cast<std::size_t>(part.layer + 1)].hex()).update(to_string(part.pool)).update(part.factor);
  }
  return hasher.finish();
}

double FrozenCosts::recompute_total() const { return static_cast<double>(images * epochs) * compute_seconds; }

double FrozenCosts::cache_total() const {
  const double missing = static_cast<double>(std::min(epochs, copies)) * (1 - filled);
  return static_cast<double>(images) *
         (missing * (compute_seconds + write_seconds) + static_cast<double>(epochs) * read_seconds);
}

}  // namespace bitloom::layerwise
