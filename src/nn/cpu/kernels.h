// The vector kernels of the backend "cpu": one table of functions per instruction set, chosen at run time. Private to
// src/nn/cpu and to the tests. One call covers a piece of a tensor that one thread works on; arguments are checked by ops.cpp.
//
// Letters as in ops.h: R rows, C columns, n elements, B sequences, H heads, D size of a head. V is float or bf16: bf16 is
// widened when it is loaded and rounded to the nearest even when it is stored; all arithmetic is done in float. Functions of
// bf16 may be approximated to a tenth of what that rounding loses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/half.h"
#include "core/narrow.h"

namespace bitloom::nn {

// The functions of activation.h, in its order.
inline constexpr std::size_t point_functions = 8;
inline constexpr const char* point_function_names[point_functions] = {"gelu", "gelu_tanh", "silu",     "sigmoid",
                                                                      "tanh", "selu",      "softplus", "relu"};

struct AdamWFactors {
  float gradient_scale = 1;
  float beta1 = 0, rest1 = 0;  // and 1 - beta1
  float beta2 = 0, rest2 = 0;
  float mean_factor = 1, variance_factor = 1;  // the bias corrections 1 / (1 - beta^step)
  float variance_limit = std::numeric_limits<float>::infinity();
  float epsilon = 0, rate = 0;
  float decay = 0;  // rate * weight decay
};

// Under what AdamW rounds new values and moments to 16 bits (stochastic_rounding.h).
struct RoundingKey {
  std::uint64_t key = 0, step = 0;
};

// Which elements are dropped (dropout.h); threshold 0: none.
struct DropoutKey {
  std::uint64_t seed = 0, site = 0;
  std::uint32_t threshold = 0;
  float factor = 1;  // factor of the elements that are kept
};

// Noise of gumbel_softmax() (nn/gumbel.h).
struct GumbelKey {
  std::uint64_t seed = 0, site = 0;
  float inverse_temperature = 1;
};
// Floats of scratch memory for rows of this length: noise is drawn for up to 128 elements at once, from a multiple of 4 on.
constexpr std::size_t gumbel_scratch(std::size_t columns) { return (columns + 3 + 127) / 128 * 128; }

// Factors of cross_entropy(): of its gradient, and the share of a target that all classes have.
struct TargetFactors {
  float scale = 1, smoothing = 0;
};

// Rows of logits, `pitch` apart, whose first columns are classes first .. first + classes - 1 of more.
struct ClassColumns {
  std::size_t first = 0, classes = 0, pitch = 0;
};

// attention_mask.h as plain data.
inline constexpr std::size_t attention_block = 64;
struct AttentionEntry {
  std::uint32_t keys = 0;               // block of keys
  const std::uint64_t* bits = nullptr;  // 64 words, one per query; or null where all is seen
};

// One head of one sequence. Pointers are to the head's first element of token 0; from a token to the next it is `pitch`.
template <typename T>
struct HeadRows {
  T* data = nullptr;
  std::size_t pitch = 0;
};

template <typename V>
struct AttentionHead {
  HeadRows<const V> q, k, v;
  std::size_t queries = 0, keys = 0, head_size = 0;
  float scale = 1;
  const std::uint32_t* first_entry = nullptr;  // per block of queries, and one more
  const AttentionEntry* entries = nullptr;
  DropoutKey dropout;
  std::uint64_t first_element = 0;             // number of the pair (query 0, key 0), for dropout
  std::size_t first_block = 0, end_block = 0;  // blocks of queries of this call
  float* scratch = nullptr;                    // attention_scratch() or attention_backward_scratch() floats, 64-byte aligned
};

template <typename V>
struct AttentionForward : AttentionHead<V> {
  HeadRows<V> out;
  float* lse = nullptr;  // (queries)
};

template <typename V>
struct AttentionBackward : AttentionHead<V> {
  HeadRows<const V> out, dout;
  const float* lse = nullptr;  // (queries)
  HeadRows<V> dq, dk, dv;
  std::size_t first_key_block = 0, end_key_block = 0;
  // Which of the results are wanted. dq: all blocks of keys must be in this call; dk and dv: all blocks of queries.
  bool gives_dq = true, gives_dkv = true;
};

// Blocks of queries that share what is packed of a block of keys, and the reverse in the backward pass. A group is what tasks
// are cut into; results do not depend on how they are.
inline constexpr std::size_t attention_group = 4;

constexpr std::size_t padded_head(std::size_t head_size) { return (head_size + 15) / 16 * 16; }

constexpr std::size_t attention_scratch(std::size_t head_size) {
  const std::size_t tile = attention_block * padded_head(head_size);
  return (2 * attention_group + 4) * tile + 2 * attention_block * attention_block + (2 * attention_group + 1) * attention_block;
}

constexpr std::size_t attention_backward_scratch(std::size_t head_size, std::size_t query_blocks) {
  const std::size_t tile = attention_block * padded_head(head_size);
  return (query_blocks + 5 * attention_group + 8) * tile + 5 * attention_block * attention_block + 2 * attention_block;
}

template <typename V>
struct ValueKernels {
  // y = a + b
  void (*add)(const V* a, const V* b, V* y, std::size_t n);
  // y = alpha x + beta y; beta 0: y is not read.
  void (*scale_add_f32)(float alpha, const float* x, float beta, V* y, std::size_t n);
  void (*scale_add_bf16)(float alpha, const bf16* x, float beta, V* y, std::size_t n);

  // y = f(x); dx = f'(x) dy
  void (*activate[point_functions])(const V* x, V* y, std::size_t n);
  void (*activate_backward[point_functions])(const V* x, const V* dy, V* dx, std::size_t n);
  // y = f(x), which may be x, and of each x the number of boundaries (2^bits - 1, ascending) below it, below |x| if even;
  // packed as bit_pack.h says into ceil(n bits / 8) bytes.
  void (*activate_few_bit[point_functions])(const V* x, V* y, std::size_t n, const float* boundaries, unsigned bits, bool even,
                                            std::uint8_t* stash);
  // dx = levels[index] dy; levels (256), those beyond 2^bits are not used.
  void (*few_bit_backward)(const std::uint8_t* stash, const float* levels, unsigned bits, const V* dy, V* dx, std::size_t n);
  // Elements number 8 first_group, ...
  void (*dropout)(const DropoutKey& key, std::uint64_t first_group, const V* x, V* y, std::size_t n);

  // Rows of C. mean, rstd (R).
  void (*layer_norm)(const V* x, const float* gain, const float* bias, float epsilon, V* y, float* mean, float* rstd,
                     std::size_t rows, std::size_t columns);
  // dgain, dbias (C) are overwritten with the sums over these rows; with accumulate dx is added to.
  void (*layer_norm_backward)(const V* dy, const V* x, const float* gain, const float* mean, const float* rstd, V* dx,
                              float* dgain, float* dbias, std::size_t rows, std::size_t columns, bool accumulate);

  // sums (C) = of these rows.
  void (*column_sums)(const V* x, std::size_t rows, std::size_t columns, float* sums);
  // The mean of these rows and the sum of squared distances from it, per column; rows > 0.
  void (*column_moments)(const V* x, std::size_t rows, std::size_t columns, float* mean, float* squares);
  // Per column: the sums of dy and of dy (x - mean).
  void (*column_products)(const V* dy, const V* x, const float* mean, std::size_t rows, std::size_t columns, float* dy_sum,
                          float* product_sum);
  // y = (x - mean) factor + bias, per column.
  void (*normalise_columns)(const V* x, const float* mean, const float* factor, const float* bias, V* y, std::size_t rows,
                            std::size_t columns);
  // dx = dy factor + (x - mean) slope + shift, per column.
  void (*combine_columns)(const V* dy, const V* x, const float* mean, const float* factor, const float* slope,
                          const float* shift, V* dx, std::size_t rows, std::size_t columns);

  void (*softmax)(const V* x, V* y, std::size_t rows, std::size_t columns);
  // dx = y (dy - sum of y dy)
  void (*softmax_backward)(const V* y, const V* dy, V* dx, std::size_t rows, std::size_t columns);
  // y = softmax((x + noise) inverse_temperature) of elements number first, first + 1, ...; y may be x.
  void (*gumbel_softmax)(const GumbelKey& key, std::uint64_t first, const V* x, V* y, float* scratch, std::size_t rows,
                         std::size_t columns);
  // kl (R); dlogits, if it is not null, is added to.
  void (*categorical_kl)(const V* logits, float scale, float* kl, V* dlogits, std::size_t rows, std::size_t columns);
  // Rows `pitch` apart of which the first `classes` columns count; dlogits may be null.
  void (*cross_entropy)(const V* logits, const std::int32_t* targets, std::size_t classes, std::size_t pitch,
                        const TargetFactors& factors, float* loss, V* dlogits, std::size_t rows);

  // The parts of ops.h that look at a slice of the logits. maxima, sums, of_target, loss (R).
  void (*cross_entropy_maxima)(const V* logits, const ClassColumns& columns, float* maxima, std::size_t rows);
  void (*cross_entropy_terms)(const V* logits, const std::int32_t* targets, const ClassColumns& columns, const float* maxima,
                              float* sums, float* of_target, std::size_t rows);
  void (*cross_entropy_gradient)(const V* logits, const std::int32_t* targets, const ClassColumns& columns, const float* maxima,
                                 const float* sums, const float* loss, float scale, V* dlogits, std::size_t rows);

  void (*attention)(const AttentionForward<V>& task);
  void (*attention_backward)(const AttentionBackward<V>& task);

  // One row of windows of k x k pixels that do not overlap, of k rows of at least `windows` k pixels of C channels, `pitch`
  // elements apart; which as ops.h has it.
  void (*max_pool_row)(std::size_t k, const V* x, std::size_t pitch, V* y, std::uint8_t* which, std::size_t windows,
                       std::size_t channels);
  void (*max_pool_backward_row)(std::size_t k, const V* dy, const std::uint8_t* which, V* dx, std::size_t pitch,
                                std::size_t windows, std::size_t channels);
  // y = the sum of each window.
  void (*sum_windows_row)(std::size_t k, const V* x, V* y, std::size_t windows, std::size_t channels);

  // copy: the new values, or null.
  void (*adamw)(const AdamWFactors& factors, float* value, const float* gradient, float* mean, float* variance, V* copy,
                std::size_t n);
  // Sixteen partial sums, of elements i % 16, added pairwise: the same for every table.
  double (*sum_of_squares)(const V* x, std::size_t n);
};

struct VectorKernels {
  const char* name;  // baseline, avx2, avx512, avx512_bf16, amx, neon
  ValueKernels<float> on_f32;
  ValueKernels<bf16> on_bf16;
  // Values without f32 masters, of numbers `first`, first + 1, ...
  void (*adamw_rounding)(const AdamWFactors& factors, const RoundingKey& key, std::uint64_t first, bf16* value,
                         const float* gradient, float* mean, float* variance, std::size_t n);
  // AdamW's moments between 16 bits and float: exact, and rounded stochastically, of numbers `first`, first + 1, ...
  void (*widen_moments)(const f1_6_9* from_mean, const f0_6_10* from_variance, float* mean, float* variance, std::size_t n);
  void (*round_moments)(const RoundingKey& of_mean, const RoundingKey& of_variance, std::uint64_t first, const float* mean,
                        const float* variance, f1_6_9* to_mean, f0_6_10* to_variance, std::size_t n);

  template <typename V>
  const ValueKernels<V>& of() const {
    if constexpr (sizeof(V) == sizeof(float)) {
      return on_f32;
    } else {
      return on_bf16;
    }
  }
};

}  // namespace bitloom::nn
