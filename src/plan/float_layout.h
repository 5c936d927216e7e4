// A float model on a grid of ranks: the parts of its stages, and what a rank has of them, from the shapes of layers alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mpi/grid.h"
#include "plan/float_compression.h"
#include "plan/float_model.h"
#include "plan/float_plan.h"
#include "train/parallel/partition.h"
#include "train/parallel/schedule.h"

namespace bitloom::plan {

// Counts of grids are ints.
inline std::size_t to_size(int count) { return static_cast<std::size_t>(count); }

// State that data ranks divide (train/parallel/sharding.h). Gradients that are divided are summed after every
// micro-batch; parameters that are divided are gathered for every pass.
struct Divided {
  bool optimizer = false, gradients = false, parameters = false;
};

// Parameters, in elements, that a rank of a tensor group has.
struct RankParameters {
  std::uint64_t matrices = 0, vectors = 0;
  std::uint64_t block_matrices = 0;  // of the matrices, those in blocks

  std::uint64_t all() const { return matrices + vectors; }
  void add(const FloatParameter& parameter, std::uint64_t elements) {
    (parameter.is_matrix ? matrices : vectors) += elements;
    if (parameter.is_block_matrix()) block_matrices += elements;
  }
  RankParameters& operator+=(const RankParameters& other) {
    matrices += other.matrices;
    vectors += other.vectors;
    block_matrices += other.block_matrices;
    return *this;
  }
};

// Parameters of a layer that are learned, or those that the head reads, as a rank has them.
struct ParameterBlock {
  std::vector<FloatParameter> parameters;
  std::size_t layer = 0;  // of the net; the head's comes after them
  bool is_head = false;
  bool has_table = false;  // the first parameter is one that the head and layer 0 share
};

struct FloatLayout {
  // Rows of activations in a micro-batch.
  std::uint64_t rows() const { return std::uint64_t{options.micro_batch} * model.tokens; }
  // Bytes of a micro-batch that layer `i` gets, and that a part gives.
  std::uint64_t input_bytes(std::size_t i) const;
  std::uint64_t output_bytes(std::size_t part) const;

  bool has_head(std::size_t part) const { return !model.vocabulary_heads.empty() && part + 1 == shape.parts(); }
  // The table of the first head, in elements that a rank has.
  std::uint64_t table() const { return model.vocabulary_heads.front().table().of(tensor); }
  // Whether that is the table of layer 0 on the same rank.
  bool reads_first_table() const { return model.has_tied_head() && stages == 1; }
  // Whether the stage of a part has the table that another stage has, too.
  bool shares_table(std::size_t part) const;

  // Those of a part that have any.
  std::vector<ParameterBlock> blocks_of(std::size_t part) const;
  RankParameters count(const ParameterBlock& block) const;
  // Whether they are learned there: not where they are another block's of the same rank.
  bool is_own(const ParameterBlock& block) const { return !block.is_head || !reads_first_table(); }
  // All of a part that are learned, and those that are not, which no rank divides.
  RankParameters all_of(std::size_t part) const;
  RankParameters frozen_of(std::size_t part) const;
  std::uint64_t bytes_of_values(const RankParameters& parameters) const {
    return parameters.matrices * value_bytes + parameters.vectors * parameter_bytes;
  }
  std::uint64_t bytes_of_gradients(const RankParameters& parameters) const { return parameters.all() * parameter_bytes; }

  // Data ranks that have the same shards, or all.
  std::size_t copies() const { return data / shards; }
  // Whether matrices of blocks are divided each by itself (train::divide_matrix()).
  bool cuts_matrices() const { return divided.optimizer && options.compress_rank > 0; }

  // Whether stages keep the inputs of their parts alone. The last part is passed forward once, when its backward pass comes.
  bool recomputes_stages() const { return options.recompute == Recompute::stage; }
  bool is_late(std::size_t part) const { return recomputes_stages() && part + 1 == shape.parts(); }
  bool recomputes_block(const FloatLayer& layer) const { return options.recompute == Recompute::block && layer.is_block; }
  // Whether a layer of a part is passed forward twice.
  bool is_again(std::size_t part, const FloatLayer& layer) const {
    return !is_late(part) && (recomputes_stages() || recomputes_block(layer));
  }

  const FloatModel& model;  // outlives this, as options do
  const FloatOptions& options;
  mpi::GridShape grid;
  std::size_t data = 1, stages = 1, tensor = 1;        // ranks of each axis
  std::size_t shards = 1;                              // data ranks that have one copy of what is divided together
  std::uint64_t value_bytes = 4, parameter_bytes = 4;  // of an element of V and of P
  Divided divided;
  train::PipelineShape shape;
  train::Partition parts;
  CompressionNeeds compression;  // with options.compress_rank; without it nothing
};

// For a grid and options that reason_against() has nothing against. The parts are those that are given, or those whose
// operations are most alike.
FloatLayout layout_of(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options);

}  // namespace bitloom::plan
