// Activation functions, also with a stash of few bits for the backward pass.
#include <limits>

#include "nn/cuda/activation_functions.cuh"
#include "nn/cuda/map.cuh"
#include "nn/cuda/reduce.cuh"
#include "nn/cuda/row_packs.cuh"
#include "nn/group_quantiser.h"

namespace bitloom::nn::cuda {
namespace {

template <typename F>
struct Value {
  __device__ float operator()(float x) const { return F::value(x); }
};
template <typename F>
struct Gradient {
  __device__ float operator()(float x, float dy) const { return F::derivative(x) * dy; }
};

// The stash of a pack of 8 elements: `bits` bytes, as many bits to an element, which are the low ones of a word. Of a tensor's
// last pack there are `count` elements.
template <typename Word>
__device__ Word& word_at(std::uint8_t* bytes) {
  return *reinterpret_cast<Word*>(bytes);
}
__device__ inline unsigned stash_bytes(unsigned bits, std::size_t count) {
  return count < pack_size ? (static_cast<unsigned>(count) * bits + 7) / 8 : bits;
}

__device__ inline void write_stash(std::uint8_t* stash, unsigned bits, std::size_t count, bool is_wide, std::uint64_t word) {
  const unsigned bytes = stash_bytes(bits, count);
  if (is_wide && bytes == bits) {
    if (bits == 2) return void(word_at<std::uint16_t>(stash) = static_cast<std::uint16_t>(word));
    if (bits == 4) return void(word_at<std::uint32_t>(stash) = static_cast<std::uint32_t>(word));
    if (bits == 8) return void(word_at<std::uint64_t>(stash) = word);
  }
#pragma unroll
  for (unsigned i = 0; i < pack_size; ++i) {
    if (i < bytes) stash[i] = static_cast<std::uint8_t>(word >> (8 * i));
  }
}

__device__ inline std::uint64_t read_stash(const std::uint8_t* stash, unsigned bits, std::size_t count, bool is_wide) {
  const unsigned bytes = stash_bytes(bits, count);
  if (is_wide && bytes == bits) {
    if (bits == 2) return *reinterpret_cast<const std::uint16_t*>(stash);
    if (bits == 4) return *reinterpret_cast<const std::uint32_t*>(stash);
    if (bits == 8) return *reinterpret_cast<const std::uint64_t*>(stash);
  }
  std::uint64_t word = 0;
#pragma unroll
  for (unsigned i = 0; i < pack_size; ++i) {
    if (i < bytes) word |= static_cast<std::uint64_t>(stash[i]) << (8 * i);
  }
  return word;
}

// Into shared memory.
__device__ inline void copy_numbers(const FewBitNumbers& table, float* numbers) {
  for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) numbers[i] = table.numbers[i];
  __syncthreads();
}

constexpr unsigned few_bit_threads = 256;

template <typename F, typename T>
__global__ void __launch_bounds__(few_bit_threads)
    activate_and_stash(const __grid_constant__ FewBitNumbers table, Rows<const T> x, Rows<T> y, std::uint8_t* stash,
                       bool is_wide) {
  __shared__ float boundaries[256];
  copy_numbers(table, boundaries);
  const std::size_t n = x.columns;
  for (std::size_t first = first_piece() * pack_size; first < n; first += piece_stride() * pack_size) {
    float v[pack_size];
    // NaN has the number 0, as the bits behind the last element should be.
    x.load(0, first, v, std::numeric_limits<float>::quiet_NaN());
    unsigned below[pack_size] = {};
    for (unsigned half = 1U << (table.bits - 1); half > 0; half /= 2) {
#pragma unroll
      for (int j = 0; j < pack_size; ++j) {
        const float key = table.is_even ? fabsf(v[j]) : v[j];
        below[j] += boundaries[below[j] + half - 1] < key ? half : 0;
      }
    }
    std::uint64_t word = 0;
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      word |= static_cast<std::uint64_t>(below[j]) << (j * table.bits);
      v[j] = F::value(v[j]);
    }
    y.store(0, first, v);
    write_stash(stash + first / pack_size * table.bits, table.bits, n - first, is_wide, word);
  }
}

template <typename T>
__global__ void __launch_bounds__(few_bit_threads)
    multiply_by_levels(const __grid_constant__ FewBitNumbers table, const std::uint8_t* stash, bool is_wide, Rows<const T> dy,
                       Rows<T> dx) {
  __shared__ float levels[256];
  copy_numbers(table, levels);
  const std::size_t n = dy.columns;
  const unsigned mask = (1U << table.bits) - 1;
  for (std::size_t first = first_piece() * pack_size; first < n; first += piece_stride() * pack_size) {
    float v[pack_size];
    dy.load(0, first, v);
    const std::uint64_t word = read_stash(stash + first / pack_size * table.bits, table.bits, n - first, is_wide);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] *= levels[static_cast<unsigned>(word >> (j * table.bits)) & mask];
    dx.store(0, first, v);
  }
}

// A warp has a group, a thread eight neighbours of it.
constexpr unsigned quantiser_threads = 128;
static_assert(quantiser_group == warp_size * pack_size && quantiser_draws == pack_size);

template <typename T>
__global__ void __launch_bounds__(quantiser_threads)
    quantise(GroupDraws draws, Rows<const T> x, std::uint8_t* packed, bool is_wide, float* ranges) {
  const std::size_t n = x.columns;
  const std::size_t group = first_piece() / warp_size;
  if (group >= quantiser_groups(n)) return;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::size_t first = (group * warp_size + threadIdx.x % warp_size) * pack_size;
  const std::size_t count = first < n ? n - first : 0;
  float v[pack_size];
  x.load(0, first, v);
  float lowest = infinity, highest = -infinity, is_odd = 0;
#pragma unroll
  for (unsigned j = 0; j < pack_size; ++j) {
    if (j >= count) continue;
    lowest = fminf(lowest, v[j]);
    highest = fmaxf(highest, v[j]);
    if (!(fabsf(v[j]) < infinity)) is_odd = 1;
  }
  lowest = -group_max<warp_size>(-lowest);
  highest = group_max<warp_size>(highest);
  if (group_max<warp_size>(is_odd) > 0) lowest = highest = std::numeric_limits<float>::quiet_NaN();
  if (threadIdx.x % warp_size == 0) {
    ranges[2 * group] = lowest;
    ranges[2 * group + 1] = highest;
  }
  if (count == 0) return;
  const GroupScale scale(lowest, highest, draws.bits);
  const Philox4x32 drawn = quantiser_rounding(draws.seed, draws.site, (draws.first + first) / quantiser_draws);
  std::uint64_t word = 0;
#pragma unroll
  for (unsigned j = 0; j < pack_size; ++j) {
    const std::uint32_t number = j < count ? scale.number(v[j], philox_half(drawn, j)) : 0;
    word |= static_cast<std::uint64_t>(number) << (j * draws.bits);
  }
  write_stash(packed + first / pack_size * draws.bits, draws.bits, count, is_wide, word);
}

template <typename T>
__global__ void __launch_bounds__(quantiser_threads)
    restore(unsigned bits, const std::uint8_t* packed, bool is_wide, const float* ranges, Rows<T> x) {
  const std::size_t n = x.columns;
  const std::size_t first = first_piece() * pack_size;
  if (first >= n) return;
  const float lowest = ranges[2 * (first / quantiser_group)], highest = ranges[2 * (first / quantiser_group) + 1];
  const std::uint64_t word = read_stash(packed + first / pack_size * bits, bits, n - first, is_wide);
  const unsigned mask = (1U << bits) - 1;
  float v[pack_size];
#pragma unroll
  for (int j = 0; j < pack_size; ++j) {
    v[j] = group_value(lowest, highest, static_cast<unsigned>(word >> (j * bits)) & mask, bits);
  }
  x.store(0, first, v);
}

unsigned quantiser_blocks(std::size_t n) {
  constexpr unsigned groups = quantiser_threads / warp_size;
  return static_cast<unsigned>((quantiser_groups(n) + groups - 1) / groups);
}

unsigned few_bit_blocks(std::size_t n) { return blocks_for((n + pack_size - 1) / pack_size, few_bit_threads); }

}  // namespace

void activate(Stream stream, Function function, Number number, const void* x, void* y, std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    with_function(function, [&](auto f) {
      using T = typename decltype(type)::type;
      map(stream, "activate", n, Value<decltype(f)>{}, static_cast<T*>(y), static_cast<const T*>(x));
    });
  });
}

void activate_backward(Stream stream, Function function, Number number, const void* x, const void* dy, void* dx,
                       std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    with_function(function, [&](auto f) {
      using T = typename decltype(type)::type;
      map(stream, "activate_backward", n, Gradient<decltype(f)>{}, static_cast<T*>(dx), static_cast<const T*>(x),
          static_cast<const T*>(dy));
    });
  });
}

void activate_few_bit(Stream stream, Function function, const FewBitNumbers& boundaries, Number number, const void* x, void* y,
                      std::uint8_t* stash, std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    with_function(function, [&](auto f) {
      using T = typename decltype(type)::type;
      launch(stream, "activate_few_bit", {few_bit_blocks(n), few_bit_threads}, activate_and_stash<decltype(f), T>, boundaries,
             vector_of(static_cast<const T*>(x), n), vector_of(static_cast<T*>(y), n), stash, is_aligned(stash));
    });
  });
}

void activate_few_bit_backward(Stream stream, const FewBitNumbers& levels, Number number, const std::uint8_t* stash,
                               const void* dy, void* dx, std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "activate_few_bit_backward", {few_bit_blocks(n), few_bit_threads}, multiply_by_levels<T>, levels, stash,
           is_aligned(stash), vector_of(static_cast<const T*>(dy), n), vector_of(static_cast<T*>(dx), n));
  });
}

void quantise_groups(Stream stream, const GroupDraws& draws, Number number, const void* x, std::uint8_t* packed, float* ranges,
                     std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "quantise_groups", {quantiser_blocks(n), quantiser_threads}, quantise<T>, draws,
           vector_of(static_cast<const T*>(x), n), packed, is_aligned(packed), ranges);
  });
}

void restore_groups(Stream stream, unsigned bits, const std::uint8_t* packed, const float* ranges, Number number, void* x,
                    std::size_t n) {
  if (n == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "restore_groups", {quantiser_blocks(n), quantiser_threads}, restore<T>, bits, packed, is_aligned(packed),
           ranges, vector_of(static_cast<T*>(x), n));
  });
}

}  // namespace bitloom::nn::cuda
