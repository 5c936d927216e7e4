// Arguments of ops as the vector kernels take them.
#pragma once

#include "nn/cpu/kernels.h"
#include "nn/ops.h"

namespace bitloom::nn {

DropoutKey key_of(const Dropout& dropout);  // vector_ops.cpp

}  // namespace bitloom::nn
