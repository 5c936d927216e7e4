// Results of a net's finished stages: its layers, its heads, and the accumulators that later stages go on with, in memory and
// as the bytes that checkpoints, the cache and other runs have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/safetensors.h"
#include "layerwise/model.h"
#include "layerwise/net.h"
#include "layerwise/stage.h"
#include "layerwise/train_options.h"
#include "mpi/comm.h"

namespace bitloom::layerwise {

// To be raised with every change of the program that changes what training gives: cached stages of before are not used.
inline constexpr const char* trainer_version = "bitloom stage 5";

// In the metadata of a stage's bytes: its StageHistory.
inline constexpr const char* history_key = "bitloom.history";
// There as well where a later stage had trained layers again by then: no accuracy of the stage can be measured with them.
inline constexpr const char* changed_key = "bitloom.changed";

// The `id` of each stage of a net, which separates the random streams of its stages: a function of the names of the layers that
// a stage trains and of how often they were trained before, and of nothing else. Two runs of one seed that differ in options or
// sizes draw the same numbers for the same purpose, so that their difference is that of the options (paired comparisons). Under
// 2^20, all different within a net.
std::vector<std::uint64_t> stage_ids(const NetSpec& net);

// Hash of all that a stage's result depends on: data, encoder as fitted, options, its own description, and the stages that
// trained the layers below it, or its own layers before. Stages with equal keys have equal results, whatever net they belong
// to. soft_labels_hash: empty without soft labels.
std::vector<Hash128> stage_keys(const NetSpec& net, const TrainOptions& train, const std::string& data_hash,
                                const std::string& soft_labels_hash, const Hash128& encoder);

class TrainedStages {
 public:
  // model: with all layers of the net once there are any; it has the results. All of them outlive this.
  TrainedStages(const NetSpec& net, const TrainOptions& train, Model& model) : net_(net), train_(train), model_(model) {}

  // Results that stage s begins with: those of the stages before it, without accumulators that do not suit its dead zone.
  Earlier before(std::size_t s);
  // Drops the accumulators of the layers of stage s, which has them from here on.
  void hand_over(std::size_t s);
  // Collective: takes over what a stage gave when it is done, accumulators for the cache and for later stages.
  void take(mpi::Comm& comm, const Stage& stage, std::size_t s);
  // Those accumulators that no stage after s reads.
  void drop_states(std::size_t s);

  // The bytes that load() reads: the layers and heads of finished stage s as they are now, when `begun` stages have ended or
  // begun.
  std::vector<std::byte> bytes(std::size_t s, std::size_t begun, const std::string& history) const;
  // Adds the results of the first `stages` stages.
  void save(TensorFile& file, std::size_t stages) const;
  // The layers and heads of finished stage s. Throws Error(data) for missing or misshapen tensors.
  void load(const TensorFile& file, std::size_t s);
  // A layer that learns again without a head loses the one that read what it gave before.
  void drop_outdated_heads(std::size_t s);

 private:
  // Whether a stage after s, of all or of those that have begun, trains a layer.
  bool trains_again(const std::string& layer, std::size_t s) const;
  bool trains_again(const std::string& layer, std::size_t s, std::size_t begun) const;
  bool is_changed(std::size_t s, std::size_t begun) const;
  void drop_states_of_other_zones(std::size_t s);

  const NetSpec& net_;
  const TrainOptions& train_;
  Model& model_;
  WeightStates states_;  // of weights that a later stage trains again, as an earlier one left them
};

}  // namespace bitloom::layerwise
