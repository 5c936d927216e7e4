// The inputs that a stage's learning layers get from the encoder and frozen layers. They are the same whenever the same image
// comes again, so they can be kept as bits instead of being computed again; which of the two is cheaper depends on figures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/hash.h"
#include "layerwise/encoder.h"
#include "layerwise/forward.h"
#include "layerwise/layer.h"

namespace bitloom::layerwise {

// The frozen maps that a stage reads, each down-sampled as its readers want it, one after another: the record of an image.
class FrozenInputs {
 public:
  // `trained` are indices of layers, all others being frozen; `layers` must outlive this object.
  FrozenInputs(const std::vector<BinaryLayer>& layers, const std::vector<std::size_t>& trained);

  std::size_t words() const { return words_; }
  // The record, words() words, from work.maps of the encoder and of all frozen layers that are needed.
  void pack(const ForwardWorkspace& work, std::uint64_t* record) const;
  // As NetForward::gather_input, with what is frozen from the record.
  void gather(std::size_t layer, const std::uint64_t* record, const ForwardWorkspace& work, std::uint64_t* target) const;
  // The part of it that is not frozen; the rest of `target` stays.
  void gather_trained(std::size_t layer, const ForwardWorkspace& work, std::uint64_t* target) const;
  // Whether layer reads frozen maps only.
  bool covers(std::size_t layer) const;
  // Hash of everything that a record depends on besides the image: down-sampling, weights and thresholds below, the encoder.
  // Neither names nor the places of layers in the net count.
  Hash128 hash(const Encoder& encoder) const;

 private:
  struct Part {
    int layer;  // -1: the encoder
    MapShape source;
    Downsample pool;
    std::size_t factor;
    MapShape shape;  // after down-sampling, without border
    std::size_t begin;
    bool operator==(const Part& other) const { return layer == other.layer && pool == other.pool && factor == other.factor; }
  };
  bool is_trained(int layer) const;
  Part part_of(std::size_t reader, const LayerGeometry::Source& source) const;

  const std::vector<BinaryLayer>& layers_;
  std::vector<std::size_t> trained_;
  std::vector<Part> parts_;
  std::size_t words_ = 0;
};

// Costs that decide whether to cache. Seconds are those of one thread.
struct FrozenCosts {
  std::size_t images = 0;
  std::size_t copies = 1;          // augmented copies of each
  std::size_t epochs = 1;          // to come; a copy is used in every copies-th of them
  double filled = 0;               // the share of records that the cache has
  double compute_seconds = 0;      // per image: augment, encode, run the frozen layers
  double write_seconds = 0;        // per record
  double read_seconds = 0;         // per record
  double recompute_total() const;  // over all epochs
  double cache_total() const;      // over all epochs: the missing records once, and reading
};

}  // namespace bitloom::layerwise
