// Parts that the backward passes of layer and batch norm share. C++17.
#pragma once

#include "nn/cuda/columns.cuh"

namespace bitloom::nn::cuda {

// Sums over rows for the gradients of a column's gain and bias.
struct GradientSums {
  float gain, bias;
  __device__ void merge(const GradientSums& other) {
    gain += other.gain;
    bias += other.bias;
  }
};

// The end of a reduction to gradients of gain and bias.
struct AddGradients {
  using Sum = GradientSums;
  float *dgain, *dbias;
  GradientSums* totals;  // (columns), or none

  __device__ void finish(std::size_t column, const GradientSums& sums) const {
    dgain[column] += sums.gain;
    dbias[column] += sums.bias;
    if (totals != nullptr) totals[column] = sums;
  }
};

}  // namespace bitloom::nn::cuda
