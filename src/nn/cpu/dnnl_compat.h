// The part of oneDNN's interface that differs between its versions 2 and 3, as functions that are the same for both. A bias
// that is an empty memory::desc is none. Scratch memory is always the caller's.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace bitloom::nn::compat {

inline void append_eltwise(dnnl::post_ops& post_ops, dnnl::algorithm algorithm, float alpha, float beta) {
#if DNNL_VERSION_MAJOR >= 3
  post_ops.append_eltwise(algorithm, alpha, beta);
#else
  post_ops.append_eltwise(1.F, algorithm, alpha, beta);
#endif
}

inline dnnl::primitive_attr attributes(const dnnl::post_ops& post_ops = {}) {
  dnnl::primitive_attr attr;
  attr.set_post_ops(post_ops);
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

inline dnnl::matmul::primitive_desc matmul(const dnnl::engine& engine, const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                           const dnnl::memory::desc& bias, const dnnl::memory::desc& out,
                                           const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, bias, out, attr};
#else
  return {dnnl::matmul::desc(a, b, bias, out), attr, engine};
#endif
}

// Tensors and options of a convolution: (N,C,Y,X) and (O,I,KY,KX) in oneDNN's order of axes, whatever their layout in memory.
struct Convolution {
  dnnl::memory::desc x, w, bias, y;
  dnnl::memory::dims strides, padding;
};

inline dnnl::convolution_forward::primitive_desc forward(const dnnl::engine& engine, const Convolution& conv) {
  constexpr auto kind = dnnl::prop_kind::forward_training;
  constexpr auto algorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return {engine, kind, algorithm, conv.x, conv.w, conv.bias, conv.y, conv.strides, conv.padding, conv.padding, attributes()};
#else
  return {dnnl::convolution_forward::desc(kind, algorithm, conv.x, conv.w, conv.bias, conv.y, conv.strides, conv.padding,
                                          conv.padding),
          attributes(), engine};
#endif
}

inline dnnl::convolution_backward_data::primitive_desc backward_data(const dnnl::engine& engine, const Convolution& conv,
                                                                     const dnnl::convolution_forward::primitive_desc& hint) {
  constexpr auto algorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return {engine, algorithm, conv.x, conv.w, conv.y, conv.strides, conv.padding, conv.padding, hint, attributes()};
#else
  return {dnnl::convolution_backward_data::desc(algorithm, conv.x, conv.w, conv.y, conv.strides, conv.padding, conv.padding),
          attributes(), engine, hint};
#endif
}

inline dnnl::convolution_backward_weights::primitive_desc backward_weights(
    const dnnl::engine& engine, const Convolution& conv, const dnnl::convolution_forward::primitive_desc& hint) {
  constexpr auto algorithm = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return {engine, algorithm, conv.x, conv.w, conv.y, conv.strides, conv.padding, conv.padding, hint, attributes()};
#else
  return {dnnl::convolution_backward_weights::desc(algorithm, conv.x, conv.w, conv.y, conv.strides, conv.padding, conv.padding),
          attributes(), engine, hint};
#endif
}

}  // namespace bitloom::nn::compat
