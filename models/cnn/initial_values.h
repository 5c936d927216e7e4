// Initial values of a net that its description, not a random number, says: whitening kernels of the training images, and
// kernels that begin as the identity.
#pragma once

#include "core/safetensors.h"
#include "models/cnn/cnn.h"
#include "models/cnn/image_batches.h"
#include "nn/engine.h"

namespace bitloom::models {

// Kernels (2 P, channels, k, k), P = channels k k: the eigenvectors of the covariance of patches of k x k of the first 5,000
// images, by descending eigenvalue, each divided by sqrt(eigenvalue + 5e-4), then their negatives (Jordan 2024, section 3.2).
// Every eigenvector's largest number is positive. Returned in the order of the parameter.
std::vector<float> whitening_kernels(const data::Dataset& images, const PixelScale& scale, std::size_t k);

// All of a new net's parameters and moving averages, under their names and in f32: random numbers by the seed, but for those
// that write_initial_values() says. The same whatever processes train the net.
TensorFile initial_values(nn::Engine& engine, const CnnConfig& config, const data::Dataset& images, const PixelScale& scale,
                          std::uint64_t seed);

// Writes the values of the net's whitening layer, if it has one, and of net.identities, whose parameters have memory:
// output channel o < inputs of a kernel becomes 1 at the centre of input o and 0 elsewhere.
void write_initial_values(nn::Engine& engine, Cnn& net, const data::Dataset& images, const PixelScale& scale);

}  // namespace bitloom::models
