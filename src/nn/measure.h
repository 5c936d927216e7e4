// How fast a device is: what the speed of training is a share of.
#pragma once

#include "nn/engine.h"

namespace bitloom::nn {

// Floating-point operations (a multiplication and an addition are two) per second of products of large square matrices of type
// V, with all threads: the fastest of those that `seconds` allow, at least two.
double measure_matmul(Engine& engine, DType values, double seconds);

// Bytes per second, read and written, of copying a block larger than the caches; measured in the same way.
double measure_copy(Engine& engine, double seconds);

}  // namespace bitloom::nn
