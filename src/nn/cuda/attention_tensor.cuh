// The engine of attention (attention_tiles.cuh) for bf16 and f16 on tensor cores: 4 warps, each with 16 rows of a tile. C++17.
#pragma once

#include <type_traits>

#include "nn/cuda/attention_tiles.cuh"

namespace bitloom::nn::cuda {

// T: Bf16 or F16. D: the size of heads, rounded up to a multiple of 16; what is beyond is zero.
template <typename T, unsigned D>
class TensorEngine {
 public:
  using Element = T;
  static constexpr unsigned threads = 128;
  static constexpr unsigned most_stages = 2;
  static constexpr unsigned forward_blocks = D <= 32 ? 5 : D <= 64 ? 4 : D <= 96 ? 3 : 2;
  static constexpr unsigned keys_blocks = D <= 64 ? 3 : 2;
  static constexpr unsigned queries_blocks = D <= 32 ? 4 : keys_blocks;
  static constexpr unsigned rows = 2, columns = 16, row_lanes = 4;
  static constexpr unsigned tile_bytes = tile_size * (D + 8) * sizeof(T);
  __device__ static unsigned first_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
  __device__ static constexpr unsigned row_step(unsigned i) { return 8 * i; }
  __device__ static unsigned first_column() { return 2 * (threadIdx.x % 4); }
  __device__ static constexpr unsigned column_step(unsigned j) { return 8 * (j / 2) + j % 2; }

  static constexpr std::size_t shared_bytes(unsigned kept_tiles, unsigned stages) {
    return sizeof(AttentionShared) + std::size_t{tile_bytes} * (kept_tiles + 2 * stages);
  }

  // Accumulators of mma.m16n8k16, one of 16 x 8 after the other.
  template <unsigned N>
  struct Accumulators {
    static constexpr unsigned columns = N / 4;
    float c[N / 8][4];
    __device__ float& at(unsigned i, unsigned j) { return c[j / 2][2 * i + j % 2]; }
  };
  using Scores = Accumulators<tile_size>;
  using Wide = Accumulators<D>;

  // The left side of products, read once or for every product: where registers are scarce.
  struct HeldInRegisters {
    std::uint32_t a[D / 16][4];
    __device__ void fragment(unsigned step, std::uint32_t (&out)[4]) const {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) out[i] = a[step][i];
    }
  };
  struct HeldInShared {
    const T* place;
    __device__ void fragment(unsigned step, std::uint32_t (&out)[4]) const { load_matrices(out, place + 16 * step); }
  };

  // In registers where heads are no larger than `most`, which leaves enough for the rest.
  template <unsigned most>
  using Held = std::conditional_t<(D <= most), HeldInRegisters, HeldInShared>;

  __device__ TensorEngine(unsigned char* shared, unsigned kept_tiles) : kept_(reinterpret_cast<T*>(shared)) {
    staged_ = kept_ + kept_tiles * tile_elements;
  }

  __device__ void keep(unsigned i, const TileRows<const T>& from) const { copy_in(kept_ + i * tile_elements, from); }
  __device__ void hold(unsigned i, HeldInShared& held) const {
    const unsigned lane = threadIdx.x % 32;
    held.place = kept_ + i * tile_elements + (threadIdx.x / 32 * 16 + lane % 16) * row_stride + lane / 16 * 8;
  }
  __device__ void hold(unsigned i, HeldInRegisters& held) const {
    HeldInShared in_shared;
    hold(i, in_shared);
#pragma unroll
    for (unsigned step = 0; step < D / 16; ++step) in_shared.fragment(step, held.a[step]);
  }
  __device__ void start(unsigned stage, const TileRows<const T>& a, const TileRows<const T>& b) const {
    copy_in(staged_ + 2 * stage * tile_elements, a);
    copy_in(staged_ + (2 * stage + 1) * tile_elements, b);
  }
  __device__ const T* first(unsigned stage) const { return staged_ + 2 * stage * tile_elements; }
  __device__ const T* second(unsigned stage) const { return staged_ + (2 * stage + 1) * tile_elements; }

  template <typename Left>
  __device__ static Scores product(const Left& a, const T* b) {
    Scores result;
#pragma unroll
    for (auto& c : result.c) c[0] = c[1] = c[2] = c[3] = 0;
    const unsigned lane = threadIdx.x % 32;
    const T* place = b + (lane % 8 + lane / 16 * 8) * row_stride + lane / 8 % 2 * 8;
#pragma unroll
    for (unsigned step = 0; step < D / 16; ++step) {
      std::uint32_t left[4];
      a.fragment(step, left);
#pragma unroll
      for (unsigned n = 0; n < tile_size / 16; ++n) {
        std::uint32_t right[4];
        load_matrices(right, place + n * 16 * row_stride + step * 16);
        multiply(result.c[2 * n], left, right[0], right[1]);
        multiply(result.c[2 * n + 1], left, right[2], right[3]);
      }
    }
    return result;
  }

  // p is rounded to T. A thread's accumulators are where fragments of the left side have them.
  __device__ static void add_product(Wide& x, const Scores& p, const T* b) {
    const unsigned lane = threadIdx.x % 32;
    const T* place = b + lane % 16 * row_stride + lane / 16 * 8;
#pragma unroll
    for (unsigned step = 0; step < tile_size / 16; ++step) {
      const float(&low)[4] = p.c[2 * step];
      const float(&high)[4] = p.c[2 * step + 1];
      const std::uint32_t left[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]),
                                     pack(high[2], high[3])};
#pragma unroll
      for (unsigned n = 0; n < D / 16; ++n) {
        std::uint32_t right[4];
        load_matrices_transposed(right, place + step * 16 * row_stride + n * 16);
        multiply(x.c[2 * n], left, right[0], right[1]);
        multiply(x.c[2 * n + 1], left, right[2], right[3]);
      }
    }
  }

  // All threads together, after for_each_block(), which ends with a barrier.
  __device__ void store(const Wide& x, const float (&factors)[rows], unsigned i, const TileRows<T>& to) const {
    T* tile = kept_ + i * tile_elements;
    T* place = tile + first_row() * row_stride + first_column();
#pragma unroll
    for (unsigned n = 0; n < D / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(place + 8 * n) = pack(x.c[n][0] * factors[0], x.c[n][1] * factors[0]);
      *reinterpret_cast<std::uint32_t*>(place + 8 * row_stride + 8 * n) = pack(x.c[n][2] * factors[1], x.c[n][3] * factors[1]);
    }
    __syncthreads();
    copy_out(tile, to);
  }

 private:
  // 16 bytes more than needed, so that the 8 rows that a load of a matrix reads are in different banks.
  static constexpr unsigned row_stride = D + 8;
  static constexpr unsigned tile_elements = tile_size * row_stride;
  static constexpr unsigned packs = D / pack_size;  // packs of a row

  __device__ static void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    if constexpr (std::is_same_v<T, Bf16>) {
      multiply_bf16(c, a, b0, b1);
    } else {
      multiply_f16(c, a, b0, b1);
    }
  }
  __device__ static std::uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<T, Bf16>) {
      return pack_bf16(low, high);
    } else {
      return pack_f16(low, high);
    }
  }

  // The n-th 16 bytes of a tile that a thread copies.
  struct Place {
    unsigned row, column;
    __device__ explicit Place(unsigned n)
        : row((threadIdx.x + n * threads) / packs), column((threadIdx.x + n * threads) % packs * pack_size) {}
    template <typename U>
    __device__ bool is_in(const TileRows<U>& rows) const {
      return row < rows.rows && column < rows.columns;
    }
    template <typename U>
    __device__ U* in(const TileRows<U>& rows) const {
      return rows.first + static_cast<std::size_t>(row) * rows.stride + column;
    }
    __device__ unsigned in_tile() const { return row * row_stride + column; }
  };
  static constexpr unsigned places = tile_size * packs / threads;

  __device__ static void copy_in(T* tile, const TileRows<const T>& from) {
    if (from.is_aligned) {
#pragma unroll
      for (unsigned n = 0; n < places; ++n) {
        const Place place(n);
        const bool is_there = place.is_in(from);
        copy_async<16>(tile + place.in_tile(), is_there ? place.in(from) : from.first, is_there);
      }
      return;
    }
#pragma unroll 1
    for (unsigned n = 0; n < places; ++n) {
      const Place place(n);
      Pack<T> pack;
#pragma unroll
      for (unsigned j = 0; j < pack_size; ++j) {
        pack.values[j] = place.is_in(from) && place.column + j < from.columns ? place.in(from)[j] : T{0};
      }
      *reinterpret_cast<Pack<T>*>(tile + place.in_tile()) = pack;
    }
  }

  __device__ static void copy_out(const T* tile, const TileRows<T>& to) {
#pragma unroll 1
    for (unsigned n = 0; n < places; ++n) {
      const Place place(n);
      if (!place.is_in(to)) continue;
      const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(tile + place.in_tile());
      if (to.is_aligned) {
        *reinterpret_cast<Pack<T>*>(place.in(to)) = pack;
        continue;
      }
#pragma unroll
      for (unsigned j = 0; j < pack_size; ++j) {
        if (place.column + j < to.columns) place.in(to)[j] = pack.values[j];
      }
    }
  }

  T* kept_;
  T* staged_;
};

}  // namespace bitloom::nn::cuda
