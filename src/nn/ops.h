// Operations of the float engine. Every function checks its arguments and throws Error(usage) that names the op, the tensor,
// its shape and type, and what was expected; then the engine's backend runs it. Outputs are given by the caller and are
// overwritten unless it is said that something is added to them. An op runs after those that were asked for before it.
//
// Types. Values (activations, their gradients, weights of matrices) are of one type V in an op: f32, bf16, f16 (CUDA and ref),
// f64 (ref). Parameters that are vectors, statistics, losses and all gradients of parameters are of type P: f64 where V is f64,
// otherwise f32. Sums are formed in P at least.
//
// Letters: R rows, C columns (channels, features); B sequences, T tokens, H heads, D size of a head; N images, Y and X rows and
// columns of pixels; I and O input and output channels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nn/activation.h"
#include "nn/attention_mask.h"
#include "nn/engine.h"
#include "nn/part.h"
#include "nn/tensor.h"

namespace bitloom::nn {

struct FewBitTable;

// P for V.
DType parameter_type(DType values);

// --- Matrices ---

struct MatmulOptions {
  bool transpose_a = false;                // a is (K,M)
  bool transpose_b = false;                // b is (N,K)
  bool accumulate = false;                 // the product is added to what `out` has
  double scale = 1;                        // of the product
  Tensor bias = {};                        // (N) of type P, added to every row; or none. Not with accumulate
  const Activation* activation = nullptr;  // applied last. Not with accumulate
};

// out (M,N) = scale a (M,K) b (K,N) + bias. With three axes, (S,M,K) (S,K,N) -> (S,M,N), S products. a and b of type V, out of
// type V or P.
void matmul(Engine& engine, const Tensor& a, const Tensor& b, Tensor& out, const MatmulOptions& options = {});

// sums (C) of type P += the rows of x (R,C), which may have more axes: the gradient of a bias.
void add_row_sums(Engine& engine, const Tensor& x, Tensor& sums);

// --- Elements ---

// y = x converted; types differ.
void convert(Engine& engine, const Tensor& x, Tensor& y);
// x converted, or x itself if it is of that type.
Tensor converted(Engine& engine, const Tensor& x, DType type);
// y, of any type, integers too, is `value` throughout.
void fill(Engine& engine, Tensor& y, double value);
// y = a + b; y may be one of them.
void add(Engine& engine, const Tensor& a, const Tensor& b, Tensor& y);
// y = alpha x + beta y; x may be of another floating type than y. beta 0: whatever y has, NaN too, is gone.
void scale_add(Engine& engine, double alpha, const Tensor& x, double beta, Tensor& y);
// y += alpha x where x is finite; where it is infinite or NaN y stays. x may be of another floating type than y.
void add_finite(Engine& engine, double alpha, const Tensor& x, Tensor& y);
// y = x, but no magnitude above `limit`, which is above 0; y may be x. dx = dy where x is below it, else 0; dx may be dy.
void clamp(Engine& engine, double limit, const Tensor& x, Tensor& y);
void clamp_backward(Engine& engine, double limit, const Tensor& x, const Tensor& dy, Tensor& dx);

// y = f(x); dx = f'(x) dy. y may be x, dx may be x or dy.
void activate(Engine& engine, const Activation& activation, const Tensor& x, Tensor& y);
void activate_backward(Engine& engine, const Activation& activation, const Tensor& x, const Tensor& dy, Tensor& dx);

// The same with a derivative of few bits (Novikov et al. 2022): stash, u8 (ceil(size bits / 8)), takes the place of x. It
// holds, packed as in nn/bit_pack.h, the number of boundaries below every x, 0 for NaN; dx = levels[that] dy. Boundaries and
// levels are rounded to f32 whatever V is, so that all types agree. The table has 2, 4, ... 256 levels and one boundary fewer.
void activate_few_bit(Engine& engine, const Activation& activation, const FewBitTable& table, const Tensor& x, Tensor& y,
                      Tensor& stash);
void activate_few_bit_backward(Engine& engine, const FewBitTable& table, const Tensor& stash, const Tensor& dy, Tensor& dx);

// Any saved tensor in few bits: ActNN's quantiser (nn/group_quantiser.h). Which way an element is rounded is a function of
// seed, site and the element's number alone.
struct GroupRounding {
  unsigned bits = 0;  // of an element, 1 to 8
  std::uint64_t seed = 0;
  std::uint64_t site = 0;   // distinct for every layer and step
  std::uint64_t first = 0;  // number of the first element, a multiple of 8
};
// Groups of x's elements in order, the last of which may be short: packed, u8 (ceil(size bits / 8)), as in nn/bit_pack.h;
// ranges, f32 (groups,2): the lowest and the highest of each, NaN and numbers of 0 where one is not finite.
void quantise_groups(Engine& engine, const GroupRounding& rounding, const Tensor& x, Tensor& packed, Tensor& ranges);
// Restores x from its packed groups and their ranges.
void restore_groups(Engine& engine, unsigned bits, const Tensor& packed, const Tensor& ranges, Tensor& x);

// Which elements are dropped is a function of seed, site and the element's number alone: 16 bits of Philox 4x32-10 (Salmon et
// al. 2011) under the key `seed` at the counter (number / 8, site) are below rate 2^16, rounded: nn/dropout.h.
struct Dropout {
  double rate = 0;  // 0 <= rate < 1, also after rounding
  std::uint64_t seed = 0;
  std::uint64_t site = 0;   // distinct for every layer and step
  std::uint64_t first = 0;  // number of the first element; of dropout() a multiple of 8
};
// y = x / (1 - rate) where it is kept (with the rate after rounding), 0 elsewhere; backward is the same on gradients. y may be
// x.
void dropout(Engine& engine, const Dropout& dropout, const Tensor& x, Tensor& y);

// --- Tables of rows ---

// Which ids of a vocabulary a process has, where several divide it: row i of its table, or column i of its logits, is that of
// id first + i. Ids are below `all`; rows and columns from there on are padding.
struct VocabularySlice {
  std::size_t first = 0, all = 0;

  // Ids of `size` rows or columns.
  std::size_t count(std::size_t size) const { return first < all ? std::min(size, all - first) : 0; }
  // Place of an id, at least count() if the slice has it not.
  std::size_t place_of(std::int32_t id) const { return static_cast<std::size_t>(id) - first; }
};

// out (R,C) = table (V,C)[ids (R)] or, with accumulate, += it. ids i32 in [0, V), or in [0, all) of a slice that the table is:
// those that it has not give zeros. table of type V or P.
void gather(Engine& engine, const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate = false,
            const VocabularySlice& slice = {});
// dtable (V,C) of type P: dtable[ids[r]] += dout[r], rows of equal ids in ascending order of r. Ids that a slice has not add
// nothing.
void scatter_add(Engine& engine, const Tensor& dout, const Tensor& ids, Tensor& dtable, const VocabularySlice& slice = {});

// --- Normalisation ---

// Per row of x (R,C): y = (x - mean) rstd gain + bias, rstd = 1 / sqrt(variance + epsilon) (Ba et al. 2016). gain, bias (C);
// mean, rstd (R), of type P, are kept for backward.
void layer_norm(Engine& engine, const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y,
                Tensor& mean, Tensor& rstd);
// dgain, dbias (C) are added to; dx too where accumulate says so.
void layer_norm_backward(Engine& engine, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                         const Tensor& rstd, Tensor& dx, Tensor& dgain, Tensor& dbias, bool accumulate = false);

// Per column of x (R,C), which may have more axes, R > 1 (Ioffe, Szegedy 2015): statistics of these rows, kept for backward;
// the variance, that of the R rows themselves (divided by R), is what moving averages follow.
void batch_norm(Engine& engine, const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y,
                Tensor& mean, Tensor& variance);
// dgain, dbias (C) are added to.
void batch_norm_backward(Engine& engine, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                         const Tensor& variance, double epsilon, Tensor& dx, Tensor& dgain, Tensor& dbias);
// With statistics that are given.
void batch_norm_inference(Engine& engine, const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean,
                          const Tensor& variance, double epsilon, Tensor& y);

// --- Softmax and attention ---

// Per row of x (R,C). y may be x, dx may be dy.
void softmax(Engine& engine, const Tensor& x, Tensor& y);
void softmax_backward(Engine& engine, const Tensor& y, const Tensor& dy, Tensor& dx);

// A relaxed categorical variable per row (Jang et al. 2017; Maddison et al. 2017). Its noise is a function of seed, site and
// the element's number alone, that of word number % 4 of Philox 4x32-10 under the key `seed` at the counter (number / 4, site):
// nn/gumbel.h.
struct Gumbel {
  double temperature = 1;
  std::uint64_t seed = 0;
  std::uint64_t site = 0;   // distinct for every layer and step
  std::uint64_t first = 0;  // number of the first element
};
// Per row of x (R,C): y = softmax((x + noise) / temperature), the noise Gumbel's standard distribution. y may be x.
void gumbel_softmax(Engine& engine, const Gumbel& gumbel, const Tensor& x, Tensor& y);
// The noise is not needed again. dx may be dy.
void gumbel_softmax_backward(Engine& engine, double temperature, const Tensor& y, const Tensor& dy, Tensor& dx);
// ids (R) i32: the column of the largest of each row of x (R,C), which may have more axes, C > 0; the first of equals. NaN
// is passed over; a row of nothing else gives 0.
void argmax_rows(Engine& engine, const Tensor& x, Tensor& ids);

// H vectors of size D for every token: element (b, t, first + h D + d) of a tensor (B,T,W). Queries, keys and values may be
// parts of one tensor.
struct Heads {
  Tensor tensor;
  std::size_t first = 0;
};

struct AttentionShape {
  std::size_t heads = 0;      // H
  std::size_t head_size = 0;  // D
  double scale = 0;           // of products of queries and keys, usually 1 / sqrt(D)
  // Where several processes divide the heads: these are heads first_head, ... of all_heads, A, by which dropout counts.
  std::size_t first_head = 0, all_heads = 0;  // 0: H

  // Number of head h of sequence b among those of all sequences and processes.
  std::size_t number_of(std::size_t sequence, std::size_t head) const {
    return sequence * (all_heads == 0 ? heads : all_heads) + first_head + head;
  }
};

// out (B,Q,...) = softmax(scale q k^T, of the pairs that the mask shows) dropped out, times v, per head; never more than a
// block of the Q x K matrix is in memory (Dao et al. 2022). q, out: B sequences of mask.queries() tokens; k, v: of mask.keys().
// lse (B,H,Q) of type P: the logarithm of the softmax's denominator, for backward. Dropout's elements are numbered
// dropout.first + ((b A + first_head + h) Q + q) K + k.
void attention(Engine& engine, const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q,
               const Heads& k, const Heads& v, const Heads& out, Tensor& lse);
// dq, dk, dv are overwritten (in their columns). Bitwise the same for any number of threads.
void attention_backward(Engine& engine, const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout,
                        const Heads& q, const Heads& k, const Heads& v, const Heads& out, const Tensor& lse, const Heads& dout,
                        const Heads& dq, const Heads& dk, const Heads& dv);

// --- Images ---

struct Conv2d {
  std::size_t stride = 1;
  std::size_t padding = 0;  // zeros on each side
};

// y (N,Y',X',O) = x (N,Y,X,I) * w (O,I,KY,KX) + bias (O) or none, as cross-correlation; Y' = (Y + 2 padding - KY) / stride + 1.
void conv2d(Engine& engine, const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y);
void conv2d_backward_data(Engine& engine, const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx);
// dw (O,I,KY,KX) of type P is added to.
void conv2d_backward_weights(Engine& engine, const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw);

// y (N,Y/k,X/k,C), rounded down, = the largest of windows of k x k, k <= 15; rows and columns of x that no window has left do
// not count. which, u8, of y's shape: its place in the window, counted row by row, the first of equals.
void max_pool(Engine& engine, std::size_t k, const Tensor& x, Tensor& y, Tensor& which);
void max_pool_backward(Engine& engine, std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx);
// y (N,kY,kX,C): every pixel k x k times, k <= 4096; backward: the sum of each window.
void upsample(Engine& engine, std::size_t k, const Tensor& x, Tensor& y);
void upsample_backward(Engine& engine, std::size_t k, const Tensor& dy, Tensor& dx);

// --- Loss ---

// Per row of logits (R,C): loss (R) of type P = -log softmax(logits[:classes])[target]; targets (R) i32, -1: the row does not
// count, its loss is 0. dlogits = scale (softmax - one-hot), 0 in columns from `classes` on and in rows that do not count; may
// be logits; or none. Of logits of f32 it may be of 16 bits, with the bits that it has once it is converted. smoothing, 0 to 1:
// this share of a target is spread over all classes (Szegedy et al. 2016, section 7), in the loss and in dlogits.
void cross_entropy(Engine& engine, const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                   Tensor* dlogits, double smoothing = 0);

// The same in three parts where several processes divide the classes, of which logits (R,C) are a slice; types as above.
// First: maxima (R) of type P, the largest logits of the slice's classes, at least the lowest finite number of f32.
void cross_entropy_maxima(Engine& engine, const Tensor& logits, const VocabularySlice& slice, Tensor& maxima);
// Then, by the maxima over all processes: terms (2,R) of type P, sums over the slice's classes of exp(logit - maximum), and
// target's logit - maximum, 0 where the slice has not the target or the row does not count.
void cross_entropy_terms(Engine& engine, const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                         const Tensor& maxima, Tensor& terms);
// At last, by the terms summed over all processes: losses, and the slice's columns of dlogits.
void cross_entropy_of_terms(Engine& engine, const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                            const Tensor& maxima, const Tensor& terms, double scale, Tensor& loss, Tensor* dlogits);

// Per row of logits (R,C), which may have more axes: kl (R) of type P = the divergence of p = softmax(logits) from the uniform
// distribution, log C + sum p log p. dlogits += scale p (log p - sum p log p); or none.
void categorical_kl(Engine& engine, const Tensor& logits, double scale, Tensor& kl, Tensor* dlogits);

// Logit-Laplace distribution (Ramesh et al. 2021, equation 2): density of pixels x of (0,1) exp(-|logit x - mu| / b) / (2 b x
// (1 - x)). Below `least_log_b` ln b counts as that, so that pixels that are certain do not outweigh all others; gradients that
// would lower it further are 0 there.
struct LogitLaplace {
  double least_log_b = -100;
};
// Per row of maps (R,2C), mu of C channels and then ln b of each, and pixels (R,C) of type P, which may have more axes: loss
// (R) of type P = minus the sum of the log densities. dmaps, of maps' type, = scale times the gradient, may be maps; or none.
void logit_laplace(Engine& engine, const LogitLaplace& distribution, const Tensor& maps, const Tensor& pixels, double scale,
                   Tensor& loss, Tensor* dmaps);

// --- Optimiser ---

// All (size) of type P but the copy; or the value of type bf16, beside the others of f32 and no copy. With beta1 0 the mean may
// be the gradient, which is scaled then, so that none is kept. Beside gradients of f32 the mean may be of 1-6-9 and the
// variance of 0-6-10.
struct AdamWTensors {
  Tensor value, gradient, mean, variance;
  Tensor copy = {};  // the new values converted to V, or none
  bool decays = true;
  std::uint64_t rounding_key = 0;  // of what has 16 bits: another for every tensor
  ElementNumbers numbers = {};     // of what has 16 bits, where it is part of a tensor
};
struct AdamWStep {
  double rate = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0;
  double gradient_scale = 1;  // gradients are multiplied by it first
  double variance_limit = 0;  // the variance becomes at most this; 0: any
  std::uint64_t step = 1;     // counted from 1
};
// mean = beta1 mean + (1 - beta1) g; variance = beta2 variance + (1 - beta2) g^2, or the limit if that is more, "before it is
// used to update the parameters or moments" (Ramesh et al. 2021, appendix B.2); value -= rate (m / (sqrt(v) + epsilon) + decay
// value), with m and v the bias-corrected ones (Loshchilov, Hutter 2019, algorithm 2). Values and moments of 16 bits are
// computed in f32, from which the step follows, and rounded stochastically when they are stored (nn/stochastic_rounding.h): the
// element of number i draws 16 bits for each from Philox 4x32-10 under its tensor's key at the counter (i / 8,
// rounding_step()), the same on every backend. Moments end at the largest numbers that their formats have, 15.98 and 7.996.
void adamw(Engine& engine, std::span<const AdamWTensors> tensors, const AdamWStep& step);

// Elements of a tensor whose squares are summed first: processes that have whole chunks come to the same sums.
inline constexpr std::size_t squares_chunk = 8192;
// Sums of squares in double precision, of each chunk of each tensor. Infinite or NaN if an element is.
std::vector<double> sums_of_squares(Engine& engine, std::span<const Tensor> tensors);
// All of them together, in their order.
double sum_of_squares(Engine& engine, std::span<const Tensor> tensors);

}  // namespace bitloom::nn
