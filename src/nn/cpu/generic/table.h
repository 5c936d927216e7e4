// The table of an instruction set, of the bodies of this folder.
#pragma once

#include "nn/cpu/generic/activations.h"
#include "nn/cpu/generic/attention.h"
#include "nn/cpu/generic/attention_backward.h"
#include "nn/cpu/generic/categorical.h"
#include "nn/cpu/generic/elements.h"
#include "nn/cpu/generic/few_bit.h"
#include "nn/cpu/generic/norm.h"
#include "nn/cpu/generic/optimizer.h"
#include "nn/cpu/generic/random_bits.h"
#include "nn/cpu/generic/softmax.h"
#include "nn/cpu/generic/windows.h"

namespace bitloom::nn {
namespace {

template <typename Isa, typename V>
constexpr ValueKernels<V> make_value_kernels() {
  return {
      .add = &add<Isa, V>,
      .scale_add_f32 = &scale_add<Isa, float, V>,
      .scale_add_bf16 = &scale_add<Isa, bf16, V>,
      .activate = {&activate<Isa, V, typename GeluOf<Isa, V>::Type>, &activate<Isa, V, GeluTanh<Isa>>,
                   &activate<Isa, V, Silu<Isa>>, &activate<Isa, V, Sigmoid<Isa>>, &activate<Isa, V, Tanh<Isa>>,
                   &activate<Isa, V, Selu<Isa>>, &activate<Isa, V, Softplus<Isa>>, &activate<Isa, V, Relu<Isa>>},
      .activate_backward = {&activate_backward<Isa, V, Gelu<Isa>>, &activate_backward<Isa, V, GeluTanh<Isa>>,
                            &activate_backward<Isa, V, Silu<Isa>>, &activate_backward<Isa, V, Sigmoid<Isa>>,
                            &activate_backward<Isa, V, Tanh<Isa>>, &activate_backward<Isa, V, Selu<Isa>>,
                            &activate_backward<Isa, V, Softplus<Isa>>, &activate_backward<Isa, V, Relu<Isa>>},
      .activate_few_bit = {&activate_few_bit<Isa, V, typename GeluOf<Isa, V>::Type>, &activate_few_bit<Isa, V, GeluTanh<Isa>>,
                           &activate_few_bit<Isa, V, Silu<Isa>>, &activate_few_bit<Isa, V, Sigmoid<Isa>>,
                           &activate_few_bit<Isa, V, Tanh<Isa>>, &activate_few_bit<Isa, V, Selu<Isa>>,
                           &activate_few_bit<Isa, V, Softplus<Isa>>, &activate_few_bit<Isa, V, Relu<Isa>>},
      .few_bit_backward = &few_bit_backward<Isa, V>,
      .dropout = &dropout<Isa, V>,
      .layer_norm = &layer_norm<Isa, V>,
      .layer_norm_backward = &layer_norm_backward<Isa, V>,
      .column_sums = &column_sums<Isa, V>,
      .column_moments = &column_moments<Isa, V>,
      .column_products = &column_products<Isa, V>,
      .normalise_columns = &normalise_columns<Isa, V>,
      .combine_columns = &combine_columns<Isa, V>,
      .softmax = &softmax<Isa, V>,
      .softmax_backward = &softmax_backward<Isa, V>,
      .gumbel_softmax = &gumbel_softmax<Isa, V>,
      .categorical_kl = &categorical_kl<Isa, V>,
      .cross_entropy = &cross_entropy<Isa, V>,
      .cross_entropy_maxima = &cross_entropy_maxima<Isa, V>,
      .cross_entropy_terms = &cross_entropy_terms<Isa, V>,
      .cross_entropy_gradient = &cross_entropy_gradient<Isa, V>,
      .attention = &attention<Isa, V>,
      .attention_backward = &attention_backward<Isa, V>,
      .max_pool_row = &max_pool_row<Isa, V>,
      .max_pool_backward_row = &max_pool_backward_row<Isa, V>,
      .sum_windows_row = &sum_windows_row<Isa, V>,
      .adamw = &adamw<Isa, V>,
      .sum_of_squares = &sum_of_squares<Isa, V>,
  };
}

template <typename Isa>
constexpr VectorKernels make_vector_kernels(const char* name) {
  return {name,
          make_value_kernels<Isa, float>(),
          make_value_kernels<Isa, bf16>(),
          &adamw_rounding<Isa>,
          &widen_moments<Isa>,
          &round_moments<Isa>};
}

}  // namespace
}  // namespace bitloom::nn
