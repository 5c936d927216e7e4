// A learned parameter: a tensor, its gradient, and what trainers and parallel layouts must know about it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nn/engine.h"
#include "nn/part.h"
#include "nn/tensor.h"

namespace bitloom::nn {

enum class MasterWeights : std::uint8_t;

struct Parameter {
  std::string name;  // "blocks.0.attention.qkv.weight", that of the whole
  Shape shape;       // of what this process has
  // Where several processes divide it between them: which part of it this one has.
  std::optional<Part> part;
  std::size_t begin = 0;  // first element of that which this process has, where others have the rest
  // A matrix is stored as (outputs, inputs), not (inputs, outputs).
  bool transposed = false;
  // Equal blocks of columns that are matrices of their own, of a matrix (inputs, outputs): what makes queries, keys and values
  // has three.
  std::size_t column_blocks = 1;
  bool decays = true;
  bool reads_values = true;  // ops read it as values, of type V; false: vectors, which stay of type P
  double rate = 1;           // factor on the learning rate; its weight decay is as strong as that of others
  bool is_frozen = false;    // has values, which no optimiser moves
  // The residual block that it belongs to, for optimiser steps that leave out a block; none: outside all.
  std::optional<std::size_t> block;
  // Initial values, element by element: normal with this deviation, or this constant if the deviation is 0.
  double deviation = 0, constant = 0;

  Tensor value;     // of type P, moved by the optimiser; without a master of type V
  Tensor copy;      // of type V, read by ops; the same as value where V is P
  Tensor gradient;  // of type P

  // Its layer forms the gradient by products alone, each after asking must_add(): clearing marks it, and the first product
  // overwrites it. Zeros to add to would be written once and read once more, and bf16 products that add are slower.
  bool overwrites = false;
  bool is_cleared = false;  // `gradient` stands for zeros, whatever it holds

  const Tensor& read() const { return reads_values ? copy : value; }
  // A matrix of a residual block. These may be kept and sent in 16 bits; gains, biases, embeddings and what logits are made by
  // stay in 32 (Ramesh et al. 2021, appendix D, 2).
  bool is_block_matrix() const { return block.has_value() && reads_values; }
  bool has_master(MasterWeights masters) const;
  ElementNumbers numbers() const {
    ElementNumbers numbers = part ? part->numbers() : ElementNumbers{};
    numbers.begin = begin;
    return numbers;
  }
};

// A vector that ops read as it is, and that weight decay leaves alone.
Parameter vector_parameter(const std::string& name, std::size_t size, double constant);

// Whether matrices of residual blocks, which ops read in bf16, have values in f32 as well. All others have (Ramesh et al. 2021,
// appendix D, 2: embeddings in 16 bits made nets diverge).
enum class MasterWeights : std::uint8_t { f32, none };

// Gives the parameters memory for values and copies of type V, none for gradients. Not initialised. Without masters V is bf16,
// f32 or f64.
void make_parameters(Engine& engine, std::span<Parameter* const> parameters, DType values,
                     MasterWeights masters = MasterWeights::f32);
// Gives the parameters memory and their initial values: an element of a parameter follows from the seed, the parameter's name
// and the element's number alone, in the whole of which the parameter may be a part.
// Without masters it is rounded to the nearest.
void initialise(Engine& engine, std::span<Parameter* const> parameters, DType values, std::uint64_t seed,
                MasterWeights masters = MasterWeights::f32);
// After values were written: the copies follow.
void refresh_copies(Engine& engine, std::span<Parameter* const> parameters);
// Before the first micro-batch of a step. settle_gradients() follows the last.
void clear_gradients(Engine& engine, std::span<Parameter* const> parameters);
// Whether what comes next must be added to the gradient, or may overwrite it because it was cleared. From then on it was not.
bool must_add(Parameter& parameter);
// Gradients that were cleared and got nothing since become zeros.
void settle_gradients(Engine& engine, std::span<Parameter* const> parameters);

}  // namespace bitloom::nn
