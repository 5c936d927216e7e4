// Muon (Jordan et al. 2024): matrices of residual blocks move by their momentum made orthogonal, everything else by AdamW.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "mpi/comm.h"
#include "nn/parameter.h"
#include "train/update_rule.h"

namespace bitloom::train {

// x (R,C), of type P, with its singular values pushed towards 1, nearly its factor U V^T: five steps of Newton and Schulz by
// the polynomial of Jordan et al. (2024), after which singular values above a hundredth or so of the matrix's norm lie between
// 0.7 and 1.2. Of zeros zeros. The memory of x is used.
nn::Tensor orthogonalised(nn::Engine& engine, nn::Tensor x);

// Each of x's `blocks` equal blocks of columns by itself.
nn::Tensor orthogonalised(nn::Engine& engine, nn::Tensor x, std::size_t blocks);

// Multiplications and additions of that.
double orthogonalise_operations(std::size_t rows, std::size_t columns, std::size_t blocks);

// Workspace of that, x included, for elements of `bytes` bytes each.
std::uint64_t orthogonalise_bytes(std::size_t rows, std::size_t columns, std::size_t blocks, std::uint64_t bytes);

// Whether all processes of the group come to the same bits by that, tried with one matrix of each shape among these parameters'
// matrices of residual blocks: products have other last bits on other processors, and with other numbers of threads.
// Collective.
bool orthogonalise_alike(nn::Engine& engine, mpi::Comm& comm, std::span<nn::Parameter* const> parameters);

// m = momentum m + g; value -= rate (0.2 sqrt(max(R,C)) orthogonalised(g + momentum m) + decay value). The factor makes the
// root mean square of a step that of AdamW's, so that both take the same learning rate and weight decay (Liu et al. 2025,
// equation 4). R and C are those of a block of columns, each made orthogonal by itself, where parameters have several. Throws
// Error(usage) for a matrix that several processes divide.
std::unique_ptr<UpdateRule> make_muon(nn::Engine& engine, std::span<nn::Parameter* const> parameters,
                                      const OptimizerOptions& options, std::uint64_t seed);

}  // namespace bitloom::train
