// The engine of attention (attention_tiles.cuh) in floats without tensor cores, for f32 and for heads too large for them: 16 x
// 16 threads, each with 4 x 4 numbers of a tile. Tiles are read from global memory for every product, a part at a time. C++17.
#pragma once

#include "nn/cuda/attention_tiles.cuh"

namespace bitloom::nn::cuda {

// T: of numbers in global memory. D: the size of heads, rounded up to a multiple of 64.
template <typename T, unsigned D>
class SimtEngine {
 public:
  using Element = T;
  static constexpr unsigned threads = 256;
  static constexpr unsigned most_stages = 1;
  static constexpr unsigned forward_blocks = D <= 128 ? 2 : 1;
  static constexpr unsigned keys_blocks = D <= 64 ? 2 : 1;
  static constexpr unsigned queries_blocks = forward_blocks;
  static constexpr unsigned rows = 4, columns = 4, row_lanes = 16;
  __device__ static unsigned first_row() { return threadIdx.x / row_lanes * rows; }
  __device__ static constexpr unsigned row_step(unsigned i) { return i; }
  __device__ static unsigned first_column() { return threadIdx.x % row_lanes; }
  __device__ static constexpr unsigned column_step(unsigned j) { return row_lanes * j; }

  static constexpr std::size_t shared_bytes(unsigned /*kept_tiles*/, unsigned /*stages*/) {
    return sizeof(AttentionShared) + sizeof(float) * (part_floats + p_floats);
  }

  template <unsigned N>
  struct Accumulators {
    static constexpr unsigned columns = N / row_lanes;
    float c[rows][columns];
    __device__ float& at(unsigned i, unsigned j) { return c[i][j]; }
  };
  using Scores = Accumulators<tile_size>;
  using Wide = Accumulators<D>;  // number (i, j) is in column 64 (j / 4) + 4 (thread % 16) + j % 4
  using Rows = TileRows<const T>;
  template <unsigned most>
  using Held = Rows;

  __device__ SimtEngine(unsigned char* shared, unsigned /*kept_tiles*/)
      : part_(reinterpret_cast<float*>(shared)), p_(part_ + part_floats) {}

  __device__ void keep(unsigned i, const TileRows<const T>& from) { kept_[i] = from; }
  __device__ void hold(unsigned i, Rows& held) const { held = kept_[i]; }
  __device__ void start(unsigned /*stage*/, const TileRows<const T>& a, const TileRows<const T>& b) {
    first_ = a;
    second_ = b;
  }
  __device__ const Rows& first(unsigned /*stage*/) const { return first_; }
  __device__ const Rows& second(unsigned /*stage*/) const { return second_; }

  __device__ Scores product(const Rows& a, const Rows& b) const {
    Scores result = {};
    float* b_part = part_ + tile_size * narrow_stride;
    for (unsigned column = 0; column < a.columns; column += narrow) {
      __syncthreads();  // the part of before was used
      copy_in<narrow>(part_, a, column);
      copy_in<narrow>(b_part, b, column);
      __syncthreads();
#pragma unroll 1
      for (unsigned d = 0; d < narrow; d += 4) {
        Four left[rows], right[columns];
#pragma unroll
        for (unsigned i = 0; i < rows; ++i) left[i] = four(part_ + (first_row() + row_step(i)) * narrow_stride + d);
#pragma unroll
        for (unsigned j = 0; j < columns; ++j) right[j] = four(b_part + (first_column() + column_step(j)) * narrow_stride + d);
#pragma unroll
        for (unsigned l = 0; l < 4; ++l) {
#pragma unroll
          for (unsigned i = 0; i < rows; ++i) {
#pragma unroll
            for (unsigned j = 0; j < columns; ++j) result.c[i][j] += left[i].values[l] * right[j].values[l];
          }
        }
      }
    }
    return result;
  }

  __device__ void add_product(Wide& x, const Scores& p, const Rows& b) const {
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < rows; ++i) {
#pragma unroll
      for (unsigned j = 0; j < columns; ++j) {
        p_[(first_row() + row_step(i)) * wide_stride + first_column() + column_step(j)] = p.c[i][j];
      }
    }
#pragma unroll
    for (unsigned part = 0; part < D / tile_size; ++part) {
      if (part * tile_size >= b.columns) break;
      __syncthreads();
      copy_in<tile_size>(part_, b, part * tile_size);
      __syncthreads();
#pragma unroll 1
      for (unsigned k = 0; k < tile_size; k += 4) {
        Four left[rows], right[4];
#pragma unroll
        for (unsigned i = 0; i < rows; ++i) left[i] = four(p_ + (first_row() + row_step(i)) * wide_stride + k);
#pragma unroll
        for (unsigned l = 0; l < 4; ++l) right[l] = four(part_ + (k + l) * wide_stride + 4 * first_column());
#pragma unroll
        for (unsigned l = 0; l < 4; ++l) {
#pragma unroll
          for (unsigned i = 0; i < rows; ++i) {
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) x.c[i][4 * part + j] += left[i].values[l] * right[l].values[j];
          }
        }
      }
    }
  }

  __device__ void store(const Wide& x, const float (&factors)[rows], unsigned /*i*/, const TileRows<T>& to) const {
#pragma unroll
    for (unsigned i = 0; i < rows; ++i) {
      const unsigned row = first_row() + row_step(i);
      if (row >= to.rows) continue;
#pragma unroll
      for (unsigned j = 0; j < Wide::columns; ++j) {
        const unsigned column = tile_size * (j / 4) + 4 * first_column() + j % 4;
        if (column < to.columns)
          to.first[static_cast<std::size_t>(row) * to.stride + column] = from_float<T>(x.c[i][j] * factors[i]);
      }
    }
  }

 private:
  struct alignas(16) Four {
    float values[4];
  };
  // Columns of a part, and 4 floats more per row, so that rows that are read together are in different banks.
  static constexpr unsigned narrow = 32, narrow_stride = narrow + 4, wide_stride = tile_size + 4;
  static constexpr unsigned part_floats = 2 * tile_size * narrow_stride;  // two narrow parts, or a wide one
  static constexpr unsigned p_floats = tile_size * wide_stride;
  static_assert(tile_size * wide_stride <= part_floats);

  __device__ static Four four(const float* place) { return *reinterpret_cast<const Four*>(place); }

  // `width` columns from `column` on; zeros where there are none.
  template <unsigned width>
  __device__ static void copy_in(float* part, const Rows& from, unsigned column) {
    constexpr unsigned step = threads / width;
    const unsigned own = threadIdx.x % width;
#pragma unroll 8
    for (unsigned row = threadIdx.x / width; row < tile_size; row += step) {
      const bool is_there = row < from.rows && column + own < from.columns;
      part[row * (width + 4) + own] =
          is_there ? to_float(from.first[static_cast<std::size_t>(row) * from.stride + column + own]) : 0.0F;
    }
  }

  float* part_;
  float* p_;
  Rows kept_[2] = {};
  Rows first_ = {}, second_ = {};
};

}  // namespace bitloom::nn::cuda
