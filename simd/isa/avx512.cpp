// The table for CPUs with AVX-512 F, BW, DQ and VL but no vector popcount (Skylake-SP, Cascade Lake).
#include "simd/generic/elementwise.h"
#include "simd/isa/avx512_conv.h"
#include "simd/isa/avx512_csa_conv.h"
#include "simd/isa/avx512_gemm.h"
#include "simd/isa/avx512_rows.h"
#include "simd/tables.h"

namespace bitloom::simd {

const Kernels avx512_kernels = {"avx512",
                                conv<CsaCounter>,
                                conv_counts<CsaCounter>,
                                accumulate_rows,
                                pool_counts,
                                gemm_s16,
                                threshold_pack,
                                prepare_rounding,
                                centre_gradient,
                                descend,
                                combine_s16,
                                adam,
                                CsaCounter::peak_loop};

}  // namespace bitloom::simd
