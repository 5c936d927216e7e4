#include "layerwise/net.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/suggest.h"

namespace bitloom::layerwise {
namespace {

std::size_t index_of(const NetSpec& net, const std::string& name) {
  for (std::size_t i = 0; i < net.layers.size(); ++i) {
    if (net.layers[i].name == name) return i;
  }
  return net.layers.size();
}

}  // namespace

const LayerSpec* NetSpec::find(const std::string& wanted) const {
  const std::size_t i = index_of(*this, wanted);
  return i < layers.size() ? &layers[i] : nullptr;
}

const LayerSpec& NetSpec::layer(const std::string& wanted) const {
  if (const LayerSpec* found = find(wanted)) return *found;
  std::vector<std::string> known;
  for (const LayerSpec& each : layers) known.push_back(each.name);
  fail(ErrorKind::usage, "net '{}' has no layer '{}'{}", name, wanted, did_you_mean(wanted, known));
}

NetSpec without_discarded(const NetSpec& net) {
  std::set<std::string> gone;
  for (const StageSpec& stage : net.stages) gone.insert(stage.discard.begin(), stage.discard.end());
  const auto goes = [&](const std::string& name) { return gone.contains(name); };
  NetSpec kept = net;
  std::erase_if(kept.layers, [&](const LayerSpec& layer) { return goes(layer.name); });
  for (const LayerSpec& layer : kept.layers) {
    for (const std::string& input : layer.inputs) {
      if (goes(input)) fail(ErrorKind::usage, "layer '{}' reads layer '{}', which a stage discards", layer.name, input);
    }
  }
  for (const std::string& name : kept.classifier) {
    if (goes(name)) fail(ErrorKind::usage, "classifier: layer '{}' is discarded by its stage; expected one that stays", name);
  }
  for (StageSpec& stage : kept.stages) {
    std::erase_if(stage.train, goes);
    std::erase_if(stage.heads, goes);
    stage.discard.clear();
  }
  std::erase_if(kept.stages, [](const StageSpec& stage) { return stage.train.empty(); });
  return kept;
}

std::vector<LayerGeometry> derive_geometry(const NetSpec& net, std::size_t height, std::size_t width,
                                           std::size_t input_channels) {
  std::vector<LayerGeometry> geometries;
  for (const LayerSpec& layer : net.layers) {
    LayerGeometry geometry;
    std::size_t smallest = ~std::size_t{0};
    for (const std::string& name : layer.inputs) {
      LayerGeometry::Source source;
      source.shape = {height, width, input_channels, 0};
      if (name != "input") {
        source.layer = static_cast<int>(index_of(net, name));
        source.shape = geometries[static_cast<std::size_t>(source.layer)].output;
        source.planes = net.layers[static_cast<std::size_t>(source.layer)].thresholds;
      }
      smallest = std::min(smallest, source.shape.height);
      geometry.sources.push_back(source);
    }
    const std::size_t target_height = smallest / layer.pool_factor;
    std::size_t channels = 0;
    std::size_t valid = 0;
    std::size_t target_width = 0;
    for (LayerGeometry::Source& source : geometry.sources) {
      source.factor = target_height == 0 ? 0 : source.shape.height / target_height;
      if (source.factor == 0 || source.shape.height % target_height != 0 || source.shape.width % source.factor != 0 ||
          (target_width != 0 && source.shape.width / source.factor != target_width)) {
        fail(ErrorKind::usage, "layer '{}': an input of {}x{} pixels cannot be reduced to {} rows", layer.name,
             source.shape.height, source.shape.width, target_height);
      }
      target_width = source.shape.width / source.factor;
      source.word = channels / word_bits;
      const std::size_t copies = layer.pool == Downsample::space_to_depth ? source.factor * source.factor : 1;
      channels += source.shape.words() * word_bits * copies;
      valid += source.shape.channels * copies;
    }
    geometry.input = {target_height, target_width, channels, layer.padding};
    const std::size_t padded_height = target_height + 2 * layer.padding;
    const std::size_t padded_width = target_width + 2 * layer.padding;
    if (padded_height < layer.kernel || padded_width < layer.kernel) {
      fail(ErrorKind::usage, "layer '{}': kernel {} is larger than its input of {}x{} pixels", layer.name, layer.kernel,
           target_height, target_width);
    }
    geometry.output = {(padded_height - layer.kernel) / layer.stride + 1, (padded_width - layer.kernel) / layer.stride + 1,
                       layer.channels(), 0};
    // A head's sums over the pixels of one image stay within 32 bits (head.cpp).
    constexpr std::size_t most_pixels = 512 * 512;
    for (const MapShape& map : {geometry.input, geometry.output}) {
      if (map.height * map.width > most_pixels) {
        fail(ErrorKind::usage, "layer '{}': a map of {}x{} pixels; expected at most {} pixels", layer.name, map.height,
             map.width, most_pixels);
      }
    }
    geometry.patch_words = layer.kernel * layer.kernel * geometry.input.words();
    geometry.valid_bits = layer.kernel * layer.kernel * valid;
    if (layer.channels() * geometry.patch_words >= most_weight_words) {
      fail(ErrorKind::usage, "layer '{}': {} weights are more than this build can index", layer.name,
           layer.channels() * geometry.patch_words * word_bits);
    }
    geometries.push_back(std::move(geometry));
  }
  return geometries;
}

}  // namespace bitloom::layerwise
