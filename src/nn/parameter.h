// What is learned: a tensor, its gradient, and what trainers and parallel layouts must know about it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nn/engine.h"
#include "nn/tensor.h"

namespace bitloom::nn {

struct Parameter {
  std::string name;  // "blocks.0.attention.qkv.weight"
  Shape shape;
  // The axis along which tensor-parallel ranks may divide it; none: all have all of it.
  std::optional<std::size_t> split_axis;
  // Of a matrix: stored as (outputs, inputs), not (inputs, outputs).
  bool transposed = false;
  bool decays = true;
  bool reads_values = true;  // ops read it as values, of type V; false: vectors, which stay of type P
  // The residual block that it belongs to, for optimiser steps that leave out a block; none: outside all.
  std::optional<std::size_t> block;
  // Of the initial values, element by element: normal with this deviation, or this constant if the deviation is 0.
  double deviation = 0, constant = 0;

  Tensor value;     // of type P: what the optimiser moves
  Tensor copy;      // of type V: what ops read; the same as value where V is P
  Tensor gradient;  // of type P

  const Tensor& read() const { return reads_values ? copy : value; }
};

// Gives the parameters memory for values and copies of type V, none for gradients. Not initialised.
void make_parameters(Engine& engine, std::span<Parameter* const> parameters, DType values);
// Gives the parameters memory and their initial values: element i of a parameter follows from the seed, its name and i alone.
void initialise(Engine& engine, std::span<Parameter* const> parameters, DType values, std::uint64_t seed);
// After values were written: the copies follow.
void refresh_copies(Engine& engine, std::span<Parameter* const> parameters);
void clear_gradients(Engine& engine, std::span<Parameter* const> parameters);

}  // namespace bitloom::nn
