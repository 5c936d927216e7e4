// Gradients of a convolution's weights as products of shifted matrices: on processors with AMX faster than oneDNN's
// kernel for them (7 x 7 pixels and 256 channels: 1.4 times, 3 x 3: 3.5 times). Private to src/nn/cpu.
#pragma once

#include "nn/cpu/onednn.h"
#include "nn/ops.h"

namespace bitloom::nn {

// Whether shifted products are the faster way on this machine: with AMX, for bf16, a stride of 1, outputs as large as inputs,
// and enough channels.
bool takes_shifted_products(const OneDnn& onednn, const Conv2d& conv, const Tensor& x, const Tensor& dy, const Shape& w);

// dw (O,I,KY,KX) is added to, as conv2d_backward_weights() of ops.h has it. The same bits for any number of threads.
void add_shifted_products(OneDnn& onednn, const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw);

}  // namespace bitloom::nn
