// The table for CPUs with AVX-512 F, BW, DQ and VL.
#include "nn/cpu/isa/avx512_vectors.h"

#include "nn/cpu/generic/table.h"
#include "nn/cpu/kernel_tables.h"

namespace bitloom::nn {
namespace {

struct Isa : Avx512<NarrowByIntegers> {
  template <typename V>
  using Product = FloatProduct<Isa>;
};

}  // namespace

constinit const VectorKernels avx512_vector_kernels = make_vector_kernels<Isa>("avx512");

}  // namespace bitloom::nn
