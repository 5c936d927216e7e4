// The table avx512, with intrinsics in plain code. A file of its own: objects of a folder isa/ export nothing but their tables.
#define avx512_kernels emulated_avx512_kernels
#include "simd/isa/avx512.cpp"
