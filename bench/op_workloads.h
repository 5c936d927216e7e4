// The ops of the float engine on the shapes of GPT-2's smallest model (Radford et al. 2019: width 768, 12 heads, 50257 tokens),
// and on those of a small convnet. bench/ops_torch.py has the same in PyTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "nn/ops.h"

namespace bitloom::bench {

// An op with tensors in an engine's memory.
struct OpRun {
  std::function<void()> pass;
  std::vector<nn::Tensor> results;  // written by pass, floats or u8; right after the first pass
};

// How much of an op is made: for the reference's plain loops less may have to do. Its results are the first rows of the
// whole's.
enum class Extent { whole, slice };

struct OpWorkload {
  std::string name;
  // Its bound: multiplications and additions, if there are any, otherwise memory.
  double flops = 0;
  // Elements of type V, and bytes besides, that are read and written at least.
  double values = 0, other_bytes = 0;
  std::function<OpRun(nn::Engine&, DType, Extent)> make;

  double bytes(DType dtype) const { return values * static_cast<double>(dtype_size(dtype)) + other_bytes; }
};

std::vector<OpWorkload> matrix_workloads();
std::vector<OpWorkload> attention_workloads();
std::vector<OpWorkload> element_workloads();
std::vector<OpWorkload> row_workloads();
std::vector<OpWorkload> image_workloads();

// How much is computed on at once: what occupies a few cores. Set before the workloads are made.
inline std::size_t images = 16;  // batch of the convnet
namespace gpt2 {
inline std::size_t sequences = 4, tokens = 256;
inline std::size_t rows() { return sequences * tokens; }
inline constexpr std::size_t width = 768, heads = 12, head_size = width / heads, hidden = 4 * width;
inline constexpr std::size_t vocabulary = 50257, columns = 50304;  // columns of logits: a multiple of 64
}  // namespace gpt2

// Rows of a slice.
inline constexpr std::size_t slice_rows = 8;
constexpr std::size_t rows_of(Extent extent, std::size_t rows) { return extent == Extent::slice ? slice_rows : rows; }

// Normal numbers of mean 0, the same for every engine. row_length: of the whole rows that the shape's begin, if those are
// longer.
nn::Tensor numbers(nn::Engine& engine, DType dtype, const nn::Shape& shape, std::uint64_t seed, double deviation = 1,
                   std::size_t row_length = 0);
nn::Tensor constant(nn::Engine& engine, DType dtype, const nn::Shape& shape, double value);
nn::Tensor blank(nn::Engine& engine, DType dtype, const nn::Shape& shape);
// i32 in [0, limit).
nn::Tensor ids(nn::Engine& engine, std::size_t n, std::size_t limit, std::uint64_t seed);

}  // namespace bitloom::bench
