// The table for CPUs with AVX-512 F, BW, DQ, VL and BF16 (Cooper Lake, Sapphire Rapids, Zen 4 and later): products of bf16
// matrices by vdpbf16ps, which adds two products per lane to a float, and conversions by vcvtneps2bf16. Both take numbers that
// are too small to be normal for 0.
#include "nn/cpu/isa/avx512_pairs.h"

#include "nn/cpu/generic/table.h"
#include "nn/cpu/kernel_tables.h"

namespace bitloom::nn {
namespace {

template <typename Isa, typename V>
struct ProductOf {
  using Type = FloatProduct<Isa>;
};
template <typename Isa>
struct ProductOf<Isa, bf16> {
  using Type = PairProduct;
};

struct Isa : Avx512<NarrowNatively> {
  template <typename V>
  using Product = typename ProductOf<Isa, V>::Type;
};

template <>
struct Packing<Isa, PairProduct> : PairPacking<Isa> {};

}  // namespace

constinit const VectorKernels avx512_bf16_vector_kernels = make_vector_kernels<Isa>("avx512_bf16");

}  // namespace bitloom::nn
