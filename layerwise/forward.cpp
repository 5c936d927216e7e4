#include "layerwise/forward.h"

namespace bitloom::layerwise {

ForwardWorkspace NetForward::make_workspace(const std::vector<bool>& needed) const {
  ForwardWorkspace work;
  work.owned.resize(layers_.size() + 1);
  work.inputs.resize(layers_.size());
  work.maps.assign(layers_.size() + 1, nullptr);
  work.owned[0] = Buffer<std::uint64_t>(encoder_.output().size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!needed.empty() && !needed[i]) continue;
    work.owned[i + 1] = Buffer<std::uint64_t>(layers_[i].geometry().output.size());
    work.inputs[i] = Buffer<std::uint64_t>(layers_[i].geometry().input.size());
  }
  return work;
}

void NetForward::encode(const std::uint8_t* image, ForwardWorkspace& work) const {
  encoder_.encode(kernels_, image, work.owned[0].data(), work.scratch);
  work.maps[0] = work.owned[0].data();
}

void NetForward::encode_moved(const std::uint8_t* image, const std::uint64_t* unmoved, int down, int across,
                              ForwardWorkspace& work) const {
  encoder_.encode_moved(kernels_, image, unmoved, down, across, work.owned[0].data(), work.scratch);
  work.maps[0] = work.owned[0].data();
}

void NetForward::run_layer(std::size_t i, ForwardWorkspace& work) const {
  gather_input(i, work, work.inputs[i].data());
  layers_[i].forward(kernels_, work.inputs[i].data(), work.owned[i + 1].data());
  work.maps[i + 1] = work.owned[i + 1].data();
}

void NetForward::gather_input(std::size_t i, const ForwardWorkspace& work, std::uint64_t* target) const {
  const LayerGeometry& geometry = layers_[i].geometry();
  for (const LayerGeometry::Source& source : geometry.sources) {
    place(work.maps[static_cast<std::size_t>(source.layer + 1)], source.shape, layers_[i].spec().pool, source.factor, target,
          geometry.input, source.word);
  }
}

std::vector<bool> needed_layers(const std::vector<BinaryLayer>& layers, const std::vector<std::size_t>& wanted) {
  std::vector<bool> needed(layers.size(), false);
  for (const std::size_t i : wanted) needed[i] = true;
  for (std::size_t i = layers.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (const LayerGeometry::Source& source : layers[i].geometry().sources) {
      if (source.layer >= 0) needed[static_cast<std::size_t>(source.layer)] = true;
    }
  }
  return needed;
}

}  // namespace bitloom::layerwise
