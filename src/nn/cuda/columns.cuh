// Computations per column of (rows,columns): reductions over all rows, in two launches and in an order that shapes alone
// decide, and functions of elements with parameters per column. C++17.
#pragma once

#include "nn/cuda/row_packs.cuh"

namespace bitloom::nn::cuda {

constexpr unsigned column_threads = 256;

// A block has `width` threads side by side with 8 columns each and `lanes` rows at once; it is tile blockIdx.x of the columns
// and chunk blockIdx.y of the rows.
struct ColumnTiles {
  std::size_t rows, columns;
  unsigned width, lanes, tiles, chunks;
  std::size_t rows_per_chunk;
};

// Neither is 0.
inline ColumnTiles tiles_of(std::size_t rows, std::size_t columns) {
  constexpr std::size_t enough_blocks = 1024;
  constexpr std::size_t least_rows = 4;  // smallest number of rows of a thread
  const std::size_t packs = (columns + pack_size - 1) / pack_size;
  unsigned width = 1;
  while (width < 32 && width < packs) width *= 2;
  const unsigned lanes = column_threads / width;
  const std::size_t tiles = (packs + width - 1) / width;
  const std::size_t wanted = tiles < enough_blocks ? enough_blocks / tiles : 1;
  const std::size_t most = (rows + lanes * least_rows - 1) / (lanes * least_rows);
  const std::size_t rows_per_chunk = (rows + (wanted < most ? wanted : most) - 1) / (wanted < most ? wanted : most);
  const std::size_t chunks = (rows + rows_per_chunk - 1) / rows_per_chunk;
  return {rows, columns, width, lanes, static_cast<unsigned>(tiles), static_cast<unsigned>(chunks), rows_per_chunk};
}

// visit(row) for the rows of this thread, whose columns begin with first_column().
template <typename Visit>
__device__ void for_rows(const ColumnTiles& tiles, Visit visit) {
  const std::size_t begin = blockIdx.y * tiles.rows_per_chunk;
  const std::size_t end = begin + tiles.rows_per_chunk < tiles.rows ? begin + tiles.rows_per_chunk : tiles.rows;
#pragma unroll 4
  for (std::size_t row = begin + threadIdx.x / tiles.width; row < end; row += tiles.lanes) visit(row);
}
__device__ inline std::size_t first_column(const ColumnTiles& tiles) {
  return (static_cast<std::size_t>(blockIdx.x) * tiles.width + threadIdx.x % tiles.width) * pack_size;
}

// Merges the sums of a block's lanes for each of `columns` columns: sums (lanes,columns) into sums (columns). lanes: a
// power of two.
template <typename Sum>
__device__ void merge_lanes(Sum* sums, unsigned lanes, unsigned columns) {
  for (unsigned half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < half * columns; i += blockDim.x) sums[i].merge(sums[i + half * columns]);
  }
  __syncthreads();
}

// A reduction says
//   Sum      of one column, with merge(other); Sum{} is that of no rows
//   Running  what a thread has while it goes through rows, of 8 columns
//   Running start(first)                        for columns first .. first + 7
//   void add(Running&, row, first)
//   Sum sum(Running, j)                         of column first + j
//   void finish(column, Sum)                    of all rows
template <typename Reduction>
__global__ void __launch_bounds__(column_threads)
    reduce_chunks(Reduction reduction, ColumnTiles tiles, typename Reduction::Sum* partial) {
  using Sum = typename Reduction::Sum;
  const std::size_t first = first_column(tiles);
  typename Reduction::Running running = reduction.start(first);
  if (first < tiles.columns) for_rows(tiles, [&](std::size_t row) { reduction.add(running, row, first); });
  auto* sums = reinterpret_cast<Sum*>(dynamic_shared());
  const unsigned columns = tiles.width * pack_size;
#pragma unroll
  for (int j = 0; j < pack_size; ++j) sums[threadIdx.x * pack_size + j] = reduction.sum(running, j);
  merge_lanes(sums, tiles.lanes, columns);
  for (unsigned i = threadIdx.x; i < columns; i += blockDim.x) {
    const std::size_t column = static_cast<std::size_t>(blockIdx.x) * columns + i;
    if (column < tiles.columns) partial[blockIdx.y * tiles.columns + column] = sums[i];
  }
}

constexpr unsigned finishing_columns = 8, finishing_lanes = column_threads / finishing_columns;

// partial (chunks,columns)
template <typename Reduction>
__global__ void __launch_bounds__(column_threads)
    finish_chunks(Reduction reduction, std::size_t chunks, std::size_t columns, const typename Reduction::Sum* partial) {
  using Sum = typename Reduction::Sum;
  const std::size_t column = static_cast<std::size_t>(blockIdx.x) * finishing_columns + threadIdx.x % finishing_columns;
  const unsigned lane = threadIdx.x / finishing_columns;
  Sum sum{};
  if (column < columns) {
#pragma unroll 4
    for (std::size_t chunk = lane; chunk < chunks; chunk += finishing_lanes) sum.merge(partial[chunk * columns + column]);
  }
  auto* sums = reinterpret_cast<Sum*>(dynamic_shared());
  sums[threadIdx.x] = sum;
  merge_lanes(sums, finishing_lanes, finishing_columns);
  if (lane == 0 && column < columns) reduction.finish(column, sums[threadIdx.x]);
}

template <typename Reduction>
void finish_columns(Stream stream, const char* name, const Reduction& reduction, std::size_t chunks, std::size_t columns,
                    const typename Reduction::Sum* partial) {
  const auto blocks = static_cast<unsigned>((columns + finishing_columns - 1) / finishing_columns);
  launch(stream, name, {blocks, column_threads, column_threads * sizeof(typename Reduction::Sum)}, finish_chunks<Reduction>,
         reduction, chunks, columns, partial);
}

// workspace: room for chunks x columns of Reduction::Sum.
template <typename Reduction>
void reduce_columns(Stream stream, const char* name, const Reduction& reduction, const ColumnTiles& tiles, void* workspace) {
  using Sum = typename Reduction::Sum;
  auto* partial = static_cast<Sum*>(workspace);
  launch(stream, name, {{tiles.tiles, tiles.chunks}, column_threads, column_threads * pack_size * sizeof(Sum)},
         reduce_chunks<Reduction>, reduction, tiles, partial);
  finish_columns(stream, name, reduction, tiles.chunks, tiles.columns, partial);
}

// A function says
//   Columns                                     parameters of 8 columns
//   Columns start(first)                        for columns first .. first + 7
//   void apply(Columns, row, first)             reads and writes these elements
template <typename Function>
__global__ void __launch_bounds__(column_threads) apply_to_columns(Function function, ColumnTiles tiles) {
  const std::size_t first = first_column(tiles);
  if (first >= tiles.columns) return;
  const typename Function::Columns columns = function.start(first);
  for_rows(tiles, [&](std::size_t row) { function.apply(columns, row, first); });
}

template <typename Function>
void apply_columns(Stream stream, const char* name, const Function& function, const ColumnTiles& tiles) {
  launch(stream, name, {{tiles.tiles, tiles.chunks}, column_threads}, apply_to_columns<Function>, function, tiles);
}

}  // namespace bitloom::nn::cuda
