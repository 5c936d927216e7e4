// The kernels of this folder, as functions that start them on a stream and return: the seam between host code (C++20, no CUDA)
// and .cu files (C++17). Pointers are into the device's memory, sizes are in elements, arguments are checked already. Nothing
// is started for no elements.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace bitloom::nn::cuda {

using Stream = CUstream_st*;

// V of nn/ops.h.
enum class Number : unsigned char { f32, bf16, f16 };

// Faults that kernels find in arguments, which the host cannot look at: it is told when it next waits. The word, in the
// device's memory, has
// ~0 or the smallest of (number of the element << 8 | Fault).
enum class Fault : unsigned char { gather_id, scatter_id, target };
using FaultWord = unsigned long long;
inline constexpr FaultWord no_fault = ~0ULL;

// --- elements.cu ---

// y (n) = x (n) converted.
void convert(Stream stream, Number from, const void* x, Number to, void* y, std::size_t n);
// Every element, of 1, 2, 4 or 8 bytes, gets these bits.
void fill(Stream stream, void* y, std::size_t n, std::size_t element_bytes, std::uint64_t bits);
// y = a + b; y may be one of them.
void add(Stream stream, Number number, const void* a, const void* b, void* y, std::size_t n);
// y = alpha x + beta y; beta 0: y is not read.
void scale_add(Stream stream, float alpha, Number x_number, const void* x, float beta, Number y_number, void* y, std::size_t n);
// y += alpha x where x is finite.
void add_finite(Stream stream, float alpha, Number x_number, const void* x, Number y_number, void* y, std::size_t n);
// y = x, but no magnitude above the limit; y may be x. dx = dy where x is below it, else 0; dx may be dy.
void clamp(Stream stream, float limit, Number number, const void* x, void* y, std::size_t n);
void clamp_backward(Stream stream, float limit, Number number, const void* x, const void* dy, void* dx, std::size_t n);
// As nn/dropout.h says, elements counted from `first`, of dropout() a multiple of 8; y may be x.
struct Drops {
  std::uint64_t seed = 0, site = 0;
  std::uint32_t threshold = 0;  // in units of 2^-16
  float factor = 1;             // factor of the elements that are kept
  std::uint64_t first = 0;
};
void dropout(Stream stream, const Drops& drops, Number number, const void* x, void* y, std::size_t n);
// y (matrices,y_rows,y_columns) = x (matrices,x_rows,x_columns) as far as they reach, and 0 beyond.
struct Resize {
  std::size_t matrices = 0, x_rows = 0, x_columns = 0, y_rows = 0, y_columns = 0;
};
void resize(Stream stream, const Resize& sizes, Number number, const void* x, void* y);

// --- attention_forward.cu, attention_backward.cu ---

// Blocks of an AttentionMask in which somebody sees something: block i's are blocks[first[i]] up to blocks[first[i + 1]].
struct MaskBlock {
  std::uint32_t block = 0;  // the other one's number
  std::uint32_t rows = 0;   // 64 words from bits[64 rows] on, one per query, as AttentionMask::bits_of() has them; or all_seen
};
inline constexpr std::uint32_t all_seen = ~0U;
struct MaskMap {
  const std::uint32_t* first = nullptr;
  const MaskBlock* blocks = nullptr;
};
struct DeviceMask {
  std::size_t queries = 0, keys = 0;
  MaskMap keys_of_queries, queries_of_keys;
  const std::uint64_t* bits = nullptr;
};

// The heads of a tensor (B,T,W): element (b, t, h, d) at first[(b T + t) stride + h D + d].
template <typename Void>
struct AttentionRows {
  Void* first = nullptr;
  std::size_t stride = 0;   // W
  bool is_aligned = false;  // all rows of D begin at multiples of 16 bytes, and D elements are one
};

inline constexpr std::size_t most_head_size = 256;
struct AttentionTask {
  Number number = Number::f32;
  std::size_t sequences = 0, heads = 0, head_size = 0;  // B, H, D <= most_head_size
  std::size_t first_head = 0, other_heads = 0;          // heads before these and in all besides, which dropout counts too
  float scale = 1;
  Drops drops;
  DeviceMask mask;
  AttentionRows<const void> q, k, v;
  std::size_t shared_limit = 0;  // bytes of shared memory that a block of this device may have
};
// out and lse (B,H,Q).
void attention(Stream stream, const AttentionTask& task, const AttentionRows<void>& out, float* lse);
struct AttentionGradients {
  AttentionRows<const void> out, dout;
  const float* lse = nullptr;
  float* delta = nullptr;  // (B,H,Q), for the time of the call
  AttentionRows<void> dq, dk, dv;
};
void attention_backward(Stream stream, const AttentionTask& task, const AttentionGradients& gradients);

// --- bias.cu ---

// Those of nn/activation.h.
enum class Function : unsigned char { none, gelu, gelu_tanh, silu, sigmoid, tanh, selu, softplus, relu };
// y (rows,columns) = function(x + bias (columns), or none); in: f32 or `out`. y may be x where types are equal.
void bias_activate(Stream stream, Number in, const void* x, const float* bias, Function function, Number out, void* y,
                   std::size_t rows, std::size_t columns);

// --- activations.cu ---

// Function::none is none of these. y may be x, dx may be dy.
void activate(Stream stream, Function function, Number number, const void* x, void* y, std::size_t n);
void activate_backward(Stream stream, Function function, Number number, const void* x, const void* dy, void* dx, std::size_t n);

// Numbers of a table for few bits (nn/few_bit_stash.h): its 2^bits - 1 boundaries, or its 2^bits levels.
struct FewBitNumbers {
  unsigned bits = 1;     // 1..8
  bool is_even = false;  // looked up by |x|
  float numbers[256] = {};
};
// y = function(x), and for every x the number of boundaries below it, packed as in nn/bit_pack.h.
void activate_few_bit(Stream stream, Function function, const FewBitNumbers& boundaries, Number number, const void* x, void* y,
                      std::uint8_t* stash, std::size_t n);
void activate_few_bit_backward(Stream stream, const FewBitNumbers& levels, Number number, const std::uint8_t* stash,
                               const void* dy, void* dx, std::size_t n);

// nn/group_quantiser.h, elements counted from `first`, a multiple of 8; ranges: two for every group.
struct GroupDraws {
  unsigned bits = 1;  // 1..8
  std::uint64_t seed = 0, site = 0, first = 0;
};
void quantise_groups(Stream stream, const GroupDraws& draws, Number number, const void* x, std::uint8_t* packed, float* ranges,
                     std::size_t n);
void restore_groups(Stream stream, unsigned bits, const std::uint8_t* packed, const float* ranges, Number number, void* x,
                    std::size_t n);

// --- convolution.cu ---

// y (N,Y',X',O) = x (N,Y,X,I) * w (O,KY,KX,I), the layout of weights that the hardware's products take; none of the lengths is
// 0.
struct Convolution {
  std::size_t images = 0, rows = 0, columns = 0, inputs = 0;
  std::size_t outputs = 0, kernel_rows = 0, kernel_columns = 0;
  std::size_t out_rows = 0, out_columns = 0;
  std::size_t stride = 1, padding = 0;
  Number number = Number::f32;
};

void convolve(Stream stream, const Convolution& c, const void* x, const void* w, void* y);
void convolve_backward_data(Stream stream, const Convolution& c, const void* dy, const void* w, void* dx);
// dw of type V.
void convolve_backward_weights(Stream stream, const Convolution& c, const void* x, const void* dy, void* dw);

// --- images.cu ---

// y (outputs,pixels,inputs) = w (outputs,inputs,pixels), pixels those of the kernel.
void lay_out_weights(Stream stream, Number number, const void* w, void* y, std::size_t outputs, std::size_t inputs,
                     std::size_t pixels);
// dw (outputs,inputs,pixels) += x (outputs,pixels,inputs).
void add_laid_out_weights(Stream stream, Number number, const void* x, float* dw, std::size_t outputs, std::size_t inputs,
                          std::size_t pixels);
// The elements of a small tensor (rows,columns,channels), rows those of all images, are windows of a large one that has k times
// as many rows and columns.
struct Windows {
  std::size_t k = 1, images = 0, rows = 0, columns = 0, channels = 0;
  std::size_t large_rows = 0, large_columns = 0;  // pixels; at least k times as many
  std::size_t size() const { return images * rows * columns * channels; }
  std::size_t large_size() const { return images * large_rows * large_columns * channels; }
};
// The first of the largest, and its place in the window.
void max_pool(Stream stream, const Windows& windows, Number number, const void* x, void* y, std::uint8_t* which);
// y, the large one, has an element of x at its place of the window and 0 elsewhere; with no `which`, throughout.
void spread(Stream stream, const Windows& windows, Number number, const void* x, const std::uint8_t* which, void* y);
void sum_of_windows(Stream stream, const Windows& windows, Number number, const void* dy, void* dx);

// --- layer_norm.cu, batch_norm.cu ---

// Shape of x, y and their gradients.
struct NormShape {
  Number number = Number::f32;
  std::size_t rows = 0, columns = 0;
  float epsilon = 0;
};
// The bytes of the workspace that the functions below want.
std::size_t layer_norm_workspace(std::size_t rows, std::size_t columns);
std::size_t batch_norm_workspace(std::size_t rows, std::size_t columns);

void layer_norm(Stream stream, const NormShape& shape, const void* x, const float* gain, const float* bias, void* y,
                float* mean, float* rstd);
void layer_norm_backward(Stream stream, const NormShape& shape, const void* dy, const void* x, const float* gain,
                         const float* mean, const float* rstd, void* dx, bool accumulate, float* dgain, float* dbias,
                         void* workspace);
// mean and variance (columns) of the columns of x.
void batch_norm_moments(Stream stream, const NormShape& shape, const void* x, float* mean, float* variance, void* workspace);
// With moments that are given.
void batch_norm(Stream stream, const NormShape& shape, const void* x, const float* gain, const float* bias, const float* mean,
                const float* variance, void* y);
void batch_norm_backward(Stream stream, const NormShape& shape, const void* dy, const void* x, const float* gain,
                         const float* mean, const float* variance, void* dx, float* dgain, float* dbias, void* workspace);

// --- rows.cu ---

// Rows of a table (table_rows,columns) that ids (rows) name; row i is that of id first + i of `all`. rows < 2^32.
struct Lookup {
  std::size_t rows = 0, table_rows = 0, columns = 0;
  std::size_t first = 0, all = 0;
};
// out = table[ids] or, with accumulate, += it; ids of other rows give zeros, the row of an id that is none stays.
void gather(Stream stream, const Lookup& lookup, Number table_number, const void* table, const std::int32_t* ids,
            bool accumulate, Number out_number, void* out, FaultWord* fault);
// dtable[ids] += dout. workspace: as many bytes as the function says.
std::size_t scatter_add_workspace(const Lookup& lookup);
void scatter_add(Stream stream, const Lookup& lookup, Number number, const void* dout, const std::int32_t* ids, float* dtable,
                 void* workspace, FaultWord* fault);
// sums (columns) += the rows of x.
std::size_t column_sums_workspace(std::size_t rows, std::size_t columns);
void column_sums(Stream stream, Number number, const void* x, std::size_t rows, std::size_t columns, float* sums,
                 void* workspace);

// --- softmax.cu ---

void softmax(Stream stream, Number number, const void* x, void* y, std::size_t rows, std::size_t columns);
void softmax_backward(Stream stream, Number number, const void* y, const void* dy, void* dx, std::size_t rows,
                      std::size_t columns);

// --- categorical.cu ---

// Noise of nn/gumbel.h.
struct GumbelNoise {
  std::uint64_t seed = 0, site = 0;
  float inverse_temperature = 1;
  std::uint64_t first = 0;  // number of the first element
};
void gumbel_softmax(Stream stream, const GumbelNoise& noise, Number number, const void* x, void* y, std::size_t rows,
                    std::size_t columns);
// dlogits, added to, or none; columns > 0.
void categorical_kl(Stream stream, Number number, const void* logits, float scale, float* kl, void* dlogits, std::size_t rows,
                    std::size_t columns);
// maps and dmaps (rows,2 channels), dmaps may be maps or none.
struct PixelLoss {
  std::size_t rows = 0, channels = 0;
  float least_log_b = 0, scale = 1;
};
void logit_laplace(Stream stream, const PixelLoss& shape, Number number, const void* maps, const float* pixels, float* loss,
                   void* dmaps);
// columns from 1 to 2^24.
void argmax_rows(Stream stream, Number number, const void* x, std::int32_t* ids, std::size_t rows, std::size_t columns);

// --- cross_entropy.cu ---

// Types and shape of logits and dlogits, which have the same type unless logits are f32.
struct CrossEntropy {
  Number number = Number::f32, gradient_number = Number::f32;
  std::size_t rows = 0, columns = 0, classes = 0;
  float scale = 1, smoothing = 0;
};
// dlogits: none, or it may be logits. A target that is none counts as -1.
void cross_entropy(Stream stream, const CrossEntropy& shape, const void* logits, const std::int32_t* targets, float* loss,
                   void* dlogits, FaultWord* fault);

// The parts of ops.h for a slice of the classes: the first `classes` columns are classes `first`, ... of `all`. terms (2,rows).
struct ClassColumns {
  Number number = Number::f32, gradient_number = Number::f32;
  std::size_t rows = 0, columns = 0, classes = 0, first = 0, all = 0;
};
void cross_entropy_maxima(Stream stream, const ClassColumns& shape, const void* logits, float* maxima);
void cross_entropy_terms(Stream stream, const ClassColumns& shape, const void* logits, const std::int32_t* targets,
                         const float* maxima, float* terms, FaultWord* fault);
// dlogits as in cross_entropy().
void cross_entropy_of_terms(Stream stream, const ClassColumns& shape, const void* logits, const std::int32_t* targets,
                            const float* maxima, const float* terms, float scale, float* loss, void* dlogits, FaultWord* fault);

// --- optimizer.cu ---

// Tensors are gone through in chunks of this number of elements, those of one after those of the other; part i has chunks
// first_chunk .. first_chunk + ceil(size / optimizer_chunk) - 1. Parts have elements.
inline constexpr std::size_t optimizer_chunk = 8192;
struct AdamWPart {
  void* value;            // f32; or bf16, rounded stochastically
  void *mean, *variance;  // f32; or 1-6-9 and 0-6-10, rounded stochastically
  const float* gradient;
  void* copy;  // or none
  std::size_t size, first_chunk;
  std::uint64_t rounding_key;
  std::size_t first_number, run, stride, begin;  // ElementNumbers of nn/part.h, for rounding
  Number value_number, copy_number;
  bool decays, has_narrow_moments, is_wide;  // is_wide: all pointers are multiples of 16
};
// The terms of nn/ops.h: rest = 1 - beta, corrections as factors.
struct AdamWFactors {
  float rate, beta1, rest1, beta2, rest2, correction1, correction2, variance_limit, epsilon, decay, gradient_scale;
  std::uint64_t step;  // step for nn/stochastic_rounding.h
};
// parts (count): on the device.
void adamw(Stream stream, const AdamWFactors& factors, const AdamWPart* parts, std::size_t count, std::size_t chunks);
struct SquaresPart {
  const void* x;
  std::size_t size, first_chunk;
  Number number;
};
// sums (chunks): on the device too.
void sums_of_squares(Stream stream, const SquaresPart* parts, std::size_t count, std::size_t chunks, double* sums);

}  // namespace bitloom::nn::cuda
