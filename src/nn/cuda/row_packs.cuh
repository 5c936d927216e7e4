// Rows of numbers, of which a thread has 8 neighbours at a time, as floats. C++17.
#pragma once

#include "nn/cuda/numbers.cuh"

namespace bitloom::nn::cuda {

// Rows of a tensor (rows,columns), or a vector, which is its row 0. T may be const.
template <typename T>
struct Rows {
  T* data = nullptr;
  std::size_t columns = 0;
  bool is_wide = false;  // a thread can read a pack at once, unless the row ends in it

  // Elements first .. first + 7, first a multiple of 8; `absent` for those behind the row's end.
  __device__ void load(std::size_t row, std::size_t first, float (&v)[pack_size], float absent = 0) const;
  // Those that the row has.
  __device__ void store(std::size_t row, std::size_t first, const float (&v)[pack_size]) const;
};

template <typename T>
Rows<T> rows_of(T* data, std::size_t columns) {
  return {data, columns, columns % pack_size == 0 && is_aligned(data)};
}
template <typename T>
Rows<T> vector_of(T* data, std::size_t size) {
  return {data, size, is_aligned(data)};
}

template <typename T>
struct WithoutConst {
  using type = T;
};
template <typename T>
struct WithoutConst<const T> {
  using type = T;
};

template <typename T>
__device__ inline void Rows<T>::load(std::size_t row, std::size_t first, float (&v)[pack_size], float absent) const {
  const T* from = data + row * columns + first;
  if (is_wide && first + pack_size <= columns) {
    const auto pack = *reinterpret_cast<const Pack<typename WithoutConst<T>::type>*>(from);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] = to_float(pack.values[j]);
    return;
  }
#pragma unroll
  for (int j = 0; j < pack_size; ++j) v[j] = first + j < columns ? to_float(from[j]) : absent;
}

template <typename T>
__device__ inline void Rows<T>::store(std::size_t row, std::size_t first, const float (&v)[pack_size]) const {
  T* to = data + row * columns + first;
  if (is_wide && first + pack_size <= columns) {
    Pack<T> pack;
#pragma unroll
    for (int j = 0; j < pack_size; ++j) pack.values[j] = from_float<T>(v[j]);
    *reinterpret_cast<Pack<T>*>(to) = pack;
    return;
  }
#pragma unroll
  for (int j = 0; j < pack_size; ++j) {
    if (first + j < columns) to[j] = from_float<T>(v[j]);
  }
}

// How many threads have a row, and how many packs each of them keeps of it: thread `lane` has packs lane, lane + Width, ...
template <unsigned Width, int Packs>
struct RowLayout {
  static constexpr unsigned width = Width;
  static constexpr int packs = Packs;
  static constexpr unsigned threads = Width == 32 ? 128 : Width;  // of a block
  static constexpr unsigned rows = threads / Width;               // rows of a block at once
};

// work(layout) for one that holds rows of `columns` columns, few packs each: a backward pass has four numbers per element in
// registers. False if they are too long to be held.
template <typename Work>
bool with_row_layout(std::size_t columns, Work&& work) {
  if (columns <= 256) return work(RowLayout<32, 1>{}), true;
  if (columns <= 512) return work(RowLayout<32, 2>{}), true;
  if (columns <= 1024) return work(RowLayout<128, 1>{}), true;
  if (columns <= 2048) return work(RowLayout<256, 1>{}), true;
  if (columns <= 4096) return work(RowLayout<256, 2>{}), true;
  if (columns <= 8192) return work(RowLayout<512, 2>{}), true;
  return false;
}
// Where rows are not held but read several times, by a block each.
constexpr unsigned long_row_threads = 512;

}  // namespace bitloom::nn::cuda
