// The part of oneDNN's interface that differs between its versions 2 and 3, as functions that are the same for both. A bias
// that is an empty memory::desc is none. Scratch memory is always the caller's.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

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

inline dnnl::memory::dim channels(const dnnl::memory::desc& images) {
#if DNNL_VERSION_MAJOR >= 3
  return images.get_dims()[1];
#else
  return images.dims()[1];
#endif
}

// Kernels of oneDNN 2.6 for AVX2, of convolutions of 1 x 1 with a stride, write beyond the scratch memory that they ask for
// where channels are no multiple of a vector's: the next implementation is taken. The descriptors that `pd` was made of are
// still there.
template <typename Descriptor>
void avoid_overrun(Descriptor& pd, const Convolution& conv) {
  constexpr dnnl::memory::dim lanes = 8;
  if (conv.strides[0] == 1 || (channels(conv.x) % lanes == 0 && channels(conv.y) % lanes == 0)) return;
  const auto overruns = [&] {
    const std::string name = pd.impl_info_str();
    return name.starts_with("jit_1x1:") && name.find("avx512") == std::string::npos;
  };
  while (overruns() && pd.next_impl()) {
  }
}

inline dnnl::convolution_forward::primitive_desc forward(const dnnl::engine& engine, const Convolution& conv) {
  constexpr auto kind = dnnl::prop_kind::forward_training;
  constexpr auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::primitive_attr attr = attributes();
#if DNNL_VERSION_MAJOR >= 3
  dnnl::convolution_forward::primitive_desc pd(engine, kind, algorithm, conv.x, conv.w, conv.bias, conv.y, conv.strides,
                                               conv.padding, conv.padding, attr);
#else
  const dnnl::convolution_forward::desc desc(kind, algorithm, conv.x, conv.w, conv.bias, conv.y, conv.strides, conv.padding,
                                             conv.padding);
  dnnl::convolution_forward::primitive_desc pd(desc, attr, engine);
#endif
  avoid_overrun(pd, conv);
  return pd;
}

inline dnnl::convolution_backward_data::primitive_desc backward_data(const dnnl::engine& engine, const Convolution& conv,
                                                                     const dnnl::convolution_forward::primitive_desc& hint) {
  constexpr auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::primitive_attr attr = attributes();
#if DNNL_VERSION_MAJOR >= 3
  dnnl::convolution_backward_data::primitive_desc pd(engine, algorithm, conv.x, conv.w, conv.y, conv.strides, conv.padding,
                                                     conv.padding, hint, attr);
#else
  const dnnl::convolution_backward_data::desc desc(algorithm, conv.x, conv.w, conv.y, conv.strides, conv.padding, conv.padding);
  dnnl::convolution_backward_data::primitive_desc pd(desc, attr, engine, hint);
#endif
  avoid_overrun(pd, conv);
  return pd;
}

inline dnnl::convolution_backward_weights::primitive_desc backward_weights(
    const dnnl::engine& engine, const Convolution& conv, const dnnl::convolution_forward::primitive_desc& hint) {
  constexpr auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::primitive_attr attr = attributes();
#if DNNL_VERSION_MAJOR >= 3
  dnnl::convolution_backward_weights::primitive_desc pd(engine, algorithm, conv.x, conv.w, conv.y, conv.strides, conv.padding,
                                                        conv.padding, hint, attr);
#else
  const dnnl::convolution_backward_weights::desc desc(algorithm, conv.x, conv.w, conv.y, conv.strides, conv.padding,
                                                      conv.padding);
  dnnl::convolution_backward_weights::primitive_desc pd(desc, attr, engine, hint);
#endif
  avoid_overrun(pd, conv);
  return pd;
}

}  // namespace bitloom::nn::compat
