// The table avx512_vpopcntdq, with intrinsics in plain code. A file of its own: objects of a folder isa/ export nothing but
// their tables.
#define avx512_vpopcntdq_kernels emulated_avx512_vpopcntdq_kernels
#include "simd/isa/avx512_vpopcntdq.cpp"
