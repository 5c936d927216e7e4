// Rows of tables that ids name, and sums over all rows.
#include "nn/cuda/columns.cuh"

namespace bitloom::nn::cuda {
namespace {

constexpr unsigned threads = 256;  // where a warp has a row
constexpr unsigned warp_columns = 32 * pack_size;

__device__ void report(FaultWord* fault, std::size_t row, Fault kind) {
  atomicMin(fault, static_cast<FaultWord>(row) << 8U | static_cast<FaultWord>(kind));
}

// A warp per row.
template <typename X, typename Y>
__global__ void __launch_bounds__(threads)
    gather_rows(Lookup lookup, Rows<const X> table, const std::int32_t* ids, bool accumulate, Rows<Y> out, FaultWord* fault) {
  const std::size_t row = first_piece() / 32;
  if (row >= lookup.rows) return;
  const unsigned lane = threadIdx.x % 32;
  const std::int64_t id = ids[row];
  if (id < 0 || id >= static_cast<std::int64_t>(lookup.all)) {
    if (lane == 0) report(fault, row, Fault::gather_id);
    return;
  }
  const std::size_t place = static_cast<std::size_t>(id) - lookup.first;
  const bool is_here = place < lookup.table_rows;
  if (accumulate && !is_here) return;
  for (std::size_t first = lane * pack_size; first < lookup.columns; first += warp_columns) {
    float v[pack_size] = {};
    if (is_here) table.load(place, first, v);
    if (accumulate) {
      float before[pack_size];
      Rows<const Y>{out.data, out.columns, out.is_wide}.load(row, first, before);
#pragma unroll
      for (int j = 0; j < pack_size; ++j) v[j] += before[j];
    }
    out.store(row, first, v);
  }
}

// --- Numbers of rows, sorted by their ids: least digit first, every pass keeps the order of equal digits ---

constexpr unsigned digits = 256, digit_bits = 8;
constexpr unsigned sorted_at_once = 1024;  // number of keys a block sorts at once

// A row of `dout` and where it goes: rows that go nowhere have the key table_rows, behind all others.
struct Keyed {
  std::uint32_t key, row;
};

// The rows as they come, or as the pass before has left them.
struct SortInput {
  Lookup lookup;
  const std::int32_t* ids;
  const Keyed* sorted;  // or none
  unsigned shift;       // position of this pass's digit

  __device__ Keyed operator[](std::size_t i) const {
    if (sorted != nullptr) return sorted[i];
    const std::size_t place = is_id(i) ? static_cast<std::size_t>(ids[i]) - lookup.first : lookup.table_rows;
    return {static_cast<std::uint32_t>(place < lookup.table_rows ? place : lookup.table_rows), static_cast<std::uint32_t>(i)};
  }
  __device__ bool is_id(std::size_t i) const { return ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < lookup.all; }
};

// Visits the block's share: thread d calls visit(i) for every element i that has digit d, in order. Every thread calls.
template <typename Visit>
__device__ void for_digit(const SortInput& in, Visit visit) {
  __shared__ std::uint32_t packed[sorted_at_once / 4];  // digits, four to a word
  const std::size_t begin = static_cast<std::size_t>(blockIdx.x) * sorted_at_once;
  const std::size_t left = in.lookup.rows - begin;
  const unsigned count = left < sorted_at_once ? static_cast<unsigned>(left) : sorted_at_once;
  std::uint32_t four = 0;
#pragma unroll
  for (unsigned j = 0; j < 4; ++j) {
    const unsigned i = 4 * threadIdx.x + j;
    if (i < count) four |= (in[begin + i].key >> in.shift) % digits << (digit_bits * j);
  }
  packed[threadIdx.x] = four;
  __syncthreads();
  for (unsigned i = 0; i < count; i += 4) {
    const std::uint32_t word = packed[i / 4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      if ((word >> (digit_bits * j)) % digits == threadIdx.x && i + j < count) visit(begin + i + j);
    }
  }
}

// counts (blocks,digits)
__global__ void __launch_bounds__(digits) count_digits(SortInput in, std::uint32_t* counts, FaultWord* fault) {
  std::uint32_t count = 0;
  for_digit(in, [&](std::size_t i) {
    ++count;
    if (in.sorted == nullptr && !in.is_id(i)) report(fault, i, Fault::scatter_id);
  });
  counts[blockIdx.x * digits + threadIdx.x] = count;
}

// starts (blocks,digits): how many elements come before those of that block with that digit. One block.
__global__ void __launch_bounds__(digits)
    scan_counts(std::size_t blocks, const std::uint32_t* __restrict__ counts, std::uint32_t* __restrict__ starts) {
  __shared__ std::uint32_t totals[digits];
  std::uint32_t total = 0;
#pragma unroll 8
  for (std::size_t block = 0; block < blocks; ++block) total += counts[block * digits + threadIdx.x];
  totals[threadIdx.x] = total;
  __syncthreads();
  std::uint32_t start = 0;
  for (unsigned digit = 0; digit < threadIdx.x; ++digit) start += totals[digit];
#pragma unroll 8
  for (std::size_t block = 0; block < blocks; ++block) {
    starts[block * digits + threadIdx.x] = start;
    start += counts[block * digits + threadIdx.x];
  }
}

__global__ void __launch_bounds__(digits) place_by_digit(SortInput in, const std::uint32_t* starts, Keyed* out) {
  std::uint32_t place = starts[blockIdx.x * digits + threadIdx.x];
  for_digit(in, [&](std::size_t i) { out[place++] = in[i]; });
}

// --- Sums of rows of one key: a run of the sorted rows ---

constexpr std::size_t tile_rows = 64;  // sorted rows that a warp goes through

template <typename T>
struct Runs {
  std::size_t rows, table_rows;
  unsigned column_warps;
  const Keyed* sorted;
  Rows<const T> dout;
  Rows<float> dtable;
  Rows<float> open;  // (2 tiles,columns): per tile, its sums of a run from before, and of one that goes on after it

  __device__ std::size_t end_of(std::size_t tile) const {
    return (tile + 1) * tile_rows < rows ? (tile + 1) * tile_rows : rows;
  }
  // Whether a run goes on from sorted row i - 1 to row i.
  __device__ bool is_inside(std::size_t i) const { return i > 0 && i < rows && sorted[i - 1].key == sorted[i].key; }

  __device__ void add_to_table(std::size_t row, std::size_t first, float (&sum)[pack_size]) const {
    float before[pack_size];
    Rows<const float>{dtable.data, dtable.columns, dtable.is_wide}.load(row, first, before);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sum[j] += before[j];
    dtable.store(row, first, sum);
  }
};

// A warp per tile and 256 columns: runs within the tile go to the table, others to `open`.
template <typename T>
__global__ void __launch_bounds__(threads) add_runs(Runs<T> a) {
  constexpr int at_once = 4;
  const std::size_t piece = first_piece() / 32;
  const std::size_t tile = piece / a.column_warps;
  if (tile * tile_rows >= a.rows) return;
  const std::size_t first = piece % a.column_warps * warp_columns + threadIdx.x % 32 * pack_size;
  const std::size_t end = a.end_of(tile);
  std::size_t run = tile * tile_rows;  // where it begins
  float sum[pack_size] = {};
  for (std::size_t i = run; i < end; i += at_once) {
    Keyed keyed[at_once];
    float v[at_once][pack_size];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      keyed[k] = a.sorted[i + k < end ? i + k : end - 1];
      a.dout.load(keyed[k].row, first, v[k]);
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      if (i + k >= end) break;
#pragma unroll
      for (int j = 0; j < pack_size; ++j) sum[j] += v[k][j];
      const bool goes_on = a.is_inside(i + k + 1);
      if (goes_on && i + k + 1 < end) continue;
      const bool begins = !a.is_inside(run);
      if (!begins || goes_on) {
        a.open.store(2 * tile + (begins ? 1 : 0), first, sum);
      } else if (keyed[k].key < a.table_rows) {
        a.add_to_table(keyed[k].key, first, sum);
      }
      run = i + k + 1;
#pragma unroll
      for (int j = 0; j < pack_size; ++j) sum[j] = 0;
    }
  }
}

// A warp per tile and 256 columns: the run that begins in this tile and goes on after it.
template <typename T>
__global__ void __launch_bounds__(threads) add_open_runs(Runs<T> a) {
  const std::size_t piece = first_piece() / 32;
  std::size_t tile = piece / a.column_warps;
  if (tile * tile_rows >= a.rows) return;
  const std::size_t first = piece % a.column_warps * warp_columns + threadIdx.x % 32 * pack_size;
  std::size_t end = a.end_of(tile);
  const std::uint32_t key = a.sorted[end - 1].key;
  const bool begins = a.sorted[tile * tile_rows].key != key || !a.is_inside(tile * tile_rows);
  if (!a.is_inside(end) || !begins || key >= a.table_rows) return;
  const Rows<const float> open{a.open.data, a.open.columns, a.open.is_wide};
  float sum[pack_size];
  open.load(2 * tile + 1, first, sum);
  do {
    ++tile;
    end = a.end_of(tile);
    float v[pack_size];
    open.load(2 * tile, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sum[j] += v[j];
  } while (a.is_inside(end) && a.sorted[end - 1].key == key);
  a.add_to_table(key, first, sum);
}

// Where in the workspace what is, in bytes.
struct ScatterRoom {
  std::size_t blocks, tiles;
  std::size_t other, counts, starts, open, all;  // the sorted rows are at 0

  ScatterRoom(std::size_t rows, std::size_t columns)
      : blocks((rows + sorted_at_once - 1) / sorted_at_once), tiles((rows + tile_rows - 1) / tile_rows) {
    constexpr std::size_t line = 256;
    const auto behind = [](std::size_t begin, std::size_t bytes) { return (begin + bytes + line - 1) / line * line; };
    other = behind(0, rows * sizeof(Keyed));
    counts = behind(other, rows * sizeof(Keyed));
    starts = behind(counts, blocks * digits * sizeof(std::uint32_t));
    open = behind(starts, blocks * digits * sizeof(std::uint32_t));
    all = behind(open, 2 * tiles * columns * sizeof(float));
  }
};

// The rows in the order of their ids, in one of two halves of the workspace.
const Keyed* sort_rows(Stream stream, const Lookup& lookup, const ScatterRoom& room, const std::int32_t* ids,
                       std::byte* workspace, FaultWord* fault) {
  auto* counts = reinterpret_cast<std::uint32_t*>(workspace + room.counts);
  auto* starts = reinterpret_cast<std::uint32_t*>(workspace + room.starts);
  auto* to = reinterpret_cast<Keyed*>(workspace);
  auto* from = reinterpret_cast<Keyed*>(workspace + room.other);
  const auto blocks = static_cast<unsigned>(room.blocks);
  SortInput in{lookup, ids, nullptr, 0};
  for (unsigned shift = 0; shift < 32 && (shift == 0 || lookup.table_rows >> shift > 0); shift += digit_bits) {
    in.shift = shift;
    launch(stream, "scatter_add", {blocks, digits}, count_digits, in, counts, fault);
    launch(stream, "scatter_add", {1, digits}, scan_counts, room.blocks, counts, starts);
    launch(stream, "scatter_add", {blocks, digits}, place_by_digit, in, starts, to);
    in.sorted = to;
    to = from;
    from = const_cast<Keyed*>(in.sorted);
  }
  return in.sorted;
}

struct ColumnSum {
  float sum;
  __device__ void merge(const ColumnSum& other) { sum += other.sum; }
};

template <typename T>
struct AddColumnSums {
  using Sum = ColumnSum;
  Rows<const T> x;
  float* sums;

  struct Running {
    float sums[pack_size];
  };
  __device__ Running start(std::size_t /*first*/) const { return {}; }
  __device__ void add(Running& running, std::size_t row, std::size_t first) const {
    float v[pack_size];
    x.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) running.sums[j] += v[j];
  }
  __device__ ColumnSum sum(const Running& running, int j) const { return {running.sums[j]}; }
  __device__ void finish(std::size_t column, const ColumnSum& sum) const { sums[column] += sum.sum; }
};

}  // namespace

void gather(Stream stream, const Lookup& lookup, Number table_number, const void* table, const std::int32_t* ids,
            bool accumulate, Number out_number, void* out, FaultWord* fault) {
  if (lookup.rows == 0 || lookup.columns == 0) return;
  const auto blocks = static_cast<unsigned>((lookup.rows + threads / 32 - 1) / (threads / 32));
  with_numbers(table_number, out_number, [&](auto x_type, auto y_type) {
    using X = typename decltype(x_type)::type;
    using Y = typename decltype(y_type)::type;
    launch(stream, "gather", {blocks, threads}, gather_rows<X, Y>, lookup,
           rows_of(static_cast<const X*>(table), lookup.columns), ids, accumulate,
           rows_of(static_cast<Y*>(out), lookup.columns), fault);
  });
}

std::size_t scatter_add_workspace(const Lookup& lookup) { return ScatterRoom(lookup.rows, lookup.columns).all; }

void scatter_add(Stream stream, const Lookup& lookup, Number number, const void* dout, const std::int32_t* ids, float* dtable,
                 void* workspace, FaultWord* fault) {
  if (lookup.rows == 0 || lookup.columns == 0) return;
  const ScatterRoom room(lookup.rows, lookup.columns);
  auto* bytes = static_cast<std::byte*>(workspace);
  const Keyed* sorted = sort_rows(stream, lookup, room, ids, bytes, fault);
  const std::size_t column_warps = (lookup.columns + warp_columns - 1) / warp_columns;
  const auto blocks = static_cast<unsigned>((room.tiles * column_warps + threads / 32 - 1) / (threads / 32));
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    const Runs<T> runs{lookup.rows,
                       lookup.table_rows,
                       static_cast<unsigned>(column_warps),
                       sorted,
                       rows_of(static_cast<const T*>(dout), lookup.columns),
                       rows_of(dtable, lookup.columns),
                       rows_of(reinterpret_cast<float*>(bytes + room.open), lookup.columns)};
    launch(stream, "scatter_add", {blocks, threads}, add_runs<T>, runs);
    launch(stream, "scatter_add", {blocks, threads}, add_open_runs<T>, runs);
  });
}

std::size_t column_sums_workspace(std::size_t rows, std::size_t columns) {
  return rows == 0 || columns == 0 ? 0 : tiles_of(rows, columns).chunks * columns * sizeof(ColumnSum);
}

void column_sums(Stream stream, Number number, const void* x, std::size_t rows, std::size_t columns, float* sums,
                 void* workspace) {
  if (rows == 0 || columns == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    reduce_columns(stream, "add_row_sums", AddColumnSums<T>{rows_of(static_cast<const T*>(x), columns), sums},
                   tiles_of(rows, columns), workspace);
  });
}

}  // namespace bitloom::nn::cuda
